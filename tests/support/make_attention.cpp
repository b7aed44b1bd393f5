#include "tests/support/make_attention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "tests/support/device.h"

namespace heed_test {
namespace {

float value_of(Data data, Rng *rng) {
    switch (data) {
    case Data::normal:
        return rng->normal();
    case Data::peaked:
        return 4 * rng->normal();
    case Data::sparse:
        return rng->chance(0.8) ? 0.0f : rng->chance(0.5) ? 2.0f : -2.0f;
    case Data::zero:
        break;
    }
    return 0;
}

// Powers of two whose sum, divided by a count and rounded to the dtype, still tells them all.
int32_t exact_bits(heed_dtype dtype) { return dtype == HEED_F32 ? 16 : dtype == HEED_F16 ? 8 : 6; }

Attention draw_attention(const Shape &shape, Data data, uint64_t seed, heed_dtype dtype, bool int8_kv) {
    Attention a;
    static_cast<Shape &>(a) = shape;
    a.dtype = dtype;
    a.int8_kv = int8_kv;
    a.rounds_weights = dtype == HEED_BF16 || (test_device() == HEED_CUDA && dtype == HEED_F16);
    Rng rng(seed);
    fill(&a, [&] { return value_of(data, &rng); });
    return a;
}

}  // namespace

// Kernels of several ISAs see the same cases: what was drawn is kept.
Attention make_attention(const Shape &shape, Data data, uint64_t seed, heed_dtype dtype, bool int8_kv) {
    using Key = std::tuple<std::array<int32_t, 7>, Data, uint64_t, heed_dtype, bool>;
    constexpr size_t most_kept = size_t{1} << 23;  // numbers
    thread_local std::map<Key, Attention> kept;
    thread_local size_t num_kept = 0;
    const Key key = {
        {shape.batch, shape.num_heads, shape.num_kv_heads, shape.q_len, shape.kv_len, shape.head_dim, shape.head_dim_v},
        data,
        seed,
        dtype,
        int8_kv};
    const auto found = kept.find(key);
    if (found != kept.end()) return found->second;
    Attention a = draw_attention(shape, data, seed, dtype, int8_kv);
    const size_t numbers = a.q.size() + a.k.size() + a.v.size();
    if (num_kept + numbers > most_kept) {
        kept.clear();
        num_kept = 0;
    }
    if (numbers > most_kept) return a;
    num_kept += numbers;
    return kept.emplace(key, std::move(a)).first->second;
}

void make_exact_set(Attention *a, int32_t first_key) {
    std::fill(a->q.begin(), a->q.end(), 0.0f);
    std::fill(a->v.begin(), a->v.end(), 0.0f);
    const int32_t bits = exact_bits(a->dtype), end = std::min(a->kv_len - first_key, keys_per_run(*a));
    for (int32_t b = 0; b < a->batch; b++) {
        for (int32_t j = 0; j < end; j++) {
            for (int32_t g = 0; g < a->num_kv_heads; g++) {
                a->v_row(b, first_key + j, g)[j / bits] = static_cast<float>(1 << (j % bits));
            }
        }
    }
}

int32_t keys_per_run(const Attention &a) { return exact_bits(a.dtype) * a.head_dim_v; }

std::vector<int32_t> named_keys(const Attention &a, const float *out_row, double weight, int32_t first_key) {
    std::vector<int32_t> keys;
    const int32_t bits = exact_bits(a.dtype);
    for (int32_t d = 0; d < a.head_dim_v; d++) {
        // The sum of `bits` powers of two, off by a few 2^-24 of it, or less than a quarter where f16 and bf16 round
        // it: far from the next integer.
        const auto sum = std::llround(static_cast<double>(out_row[d]) / weight);
        for (int32_t bit = 0; bit < 63; bit++) {
            if ((sum >> bit) & 1) keys.push_back(first_key + bits * d + bit);
        }
    }
    return keys;
}

}  // namespace heed_test
