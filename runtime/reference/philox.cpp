#include "runtime/reference/philox.h"

#include <cmath>

namespace heed_reference {

std::array<uint32_t, 4> philox(uint64_t counter_low, uint64_t counter_high, uint64_t key) {
    std::array<uint32_t, 4> x = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                                 static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
    auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
    for (int32_t round = 0; round < 10; round++) {
        const uint64_t product0 = uint64_t{0xD2511F53} * x[0], product1 = uint64_t{0xCD9E8D57} * x[2];
        x = {static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(product1),
             static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(product0)};
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    return x;
}

bool dropout_keeps(uint64_t e, float p, uint64_t seed, uint64_t offset) {
    const auto threshold = static_cast<uint64_t>(std::llround(std::ldexp(static_cast<double>(p), 32)));
    return philox(e >> 2, offset, seed)[e & 3] >= threshold;
}

}  // namespace heed_reference
