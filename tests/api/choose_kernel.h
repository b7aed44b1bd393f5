#pragma once
// A table of kernels without code, and the choice among them.
#include <list>
#include <string>
#include <vector>

#include "runtime/kernel_choice.h"
#include "runtime/kernel_registry.h"
#include "tests/api/fixture.h"

namespace heed_test {

// Pure functions on a table of their own.
class ChooseKernel : public ::testing::Test {
protected:
    static heed::Kernel kernel(const char *name, heed::Isa isa, int32_t head_dim, uint32_t features = 0,
                               heed::Phase phase = heed::Phase::prefill) {
        return {name, phase, HEED_F32, HEED_F32, head_dim, head_dim, features, HEED_KV_CONTIGUOUS,
                isa,  8,     64,       0,        "",       nullptr};
    }

    std::string choose(int32_t q_len, int32_t head_dim, uint32_t features, uint32_t isas,
                       const char *forced = nullptr) {
        const heed::KernelTable table = {kernels.data(), static_cast<int32_t>(kernels.size())};
        heed::KernelRequest request = {HEED_CPU, dtype,      kv_dtype, head_dim,   head_dim,
                                       features, kv_storage, q_len,    group_size, false};
        request.slow_bf16_dots = slow_bf16_dots;
        request.prefills_in_floats = prefills_in_floats;
        request.prefills_in_dots = prefills_in_dots;
        request.max_kv_len = max_kv_len;
        request.num_kv_heads = num_kv_heads;
        request.whole_keys = whole_keys;
        request.far_keys = far_keys;
        request.copies = copies;
        choice = heed::choose_kernel(table, request, isas, forced);
        return choice.kernel == nullptr ? "" : choice.kernel->name;
    }

    static constexpr uint32_t all = 7, up_to_avx2 = 3, none = 0;
    std::vector<heed::Kernel> kernels = {
        kernel("any_bias_avx512", heed::Isa::avx512, 0, heed::feature_bias),
        kernel("any_avx512", heed::Isa::avx512, 0),
        kernel("d64_avx2", heed::Isa::avx2, 64),
        kernel("d64_avx512", heed::Isa::avx512, 64),
        kernel("any_avx2", heed::Isa::avx2, 0),
        kernel("decode_any_avx2", heed::Isa::avx2, 0, 0, heed::Phase::decode),
    };
    std::list<std::string> names;
    heed::KernelChoice choice;
    int32_t group_size = 1, max_kv_len = 1024, num_kv_heads = 1;
    bool whole_keys = false, far_keys = false;
    heed::CopiesOfHeads copies = heed::CopiesOfHeads::no;
    heed_kv_storage kv_storage = HEED_KV_CONTIGUOUS;
    heed_dtype dtype = HEED_F32, kv_dtype = HEED_F32;
    bool slow_bf16_dots = false, prefills_in_floats = false, prefills_in_dots = false;
};

}  // namespace heed_test
