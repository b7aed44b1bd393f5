// Problems with data, the same on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/reference/attention.h"
#include "tests/support/reference_names.h"

namespace heed_test {

enum class Data {
    normal,  // N(0,1)
    peaked,  // N(0,16): few keys have all the weight
    sparse,  // 80 % zeros, else +-2: sums are exact, ties are common
    zero
};

// q, k and v of the given kind, nothing else set.
Attention make_attention(const Shape &shape, Data data = Data::normal, uint64_t seed = 1, heed_dtype dtype = HEED_F32,
                         bool int8_kv = false);

// Values of q = 0 and v so chosen that each output row names the keys it sees, from first_key on as many as
// keys_per_run: all visible keys weigh 1/n, and with `bits` keys per lane, lane j / bits of key first_key + j holds
// 2^(j % bits).
void make_exact_set(Attention *a, int32_t first_key = 0);
int32_t keys_per_run(const Attention &a);
// The keys that such an output row names, each of them having this weight.
std::vector<int32_t> named_keys(const Attention &a, const float *out_row, double weight, int32_t first_key = 0);

}  // namespace heed_test
