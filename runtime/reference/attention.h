// One attention problem with its data, free of layouts, pointers and kernels: what the reference computes on.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "heed/fields.h"

namespace heed_reference {

// Deterministic on every machine (xoshiro256++).
class Rng {
public:
    explicit Rng(uint64_t seed);
    uint64_t bits();
    int32_t below(int32_t n);                    // 0..n-1
    int32_t between(int32_t low, int32_t high);  // low..high
    bool chance(double probability);
    float normal();  // N(0,1)

private:
    uint64_t state_[4];
};

struct Shape {
    int32_t batch = 1, num_heads = 1, num_kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 64, head_dim_v = 64;
};

// A mask or bias: packed in `shape`, whose entries are the full extent of [batch, num_heads, q_len, kv_len] or 1.
template <class T>
struct PerLogit {
    bool used = false;
    std::array<int32_t, 4> shape = {1, 1, 1, 1};
    std::vector<T> data;

    int64_t index(int64_t b, int64_t h, int64_t i, int64_t j) const {
        const int64_t at[4] = {b, h, i, j};
        int64_t index = 0;
        for (size_t n = 0; n < 4; n++) index = index * shape[n] + (shape[n] == 1 ? 0 : at[n]);
        return index;
    }
    T at(int64_t b, int64_t h, int64_t i, int64_t j) const { return data[static_cast<size_t>(index(b, h, i, j))]; }
    T &at(int64_t b, int64_t h, int64_t i, int64_t j) { return data[static_cast<size_t>(index(b, h, i, j))]; }
};

// The fields of heed_problem that say how logits are made, at their defaults.
struct LogitFields {
#define HEED_DECLARE(name, initial, ...) decltype(heed_problem::name) name = initial;
    HEED_LOGIT_FIELDS(HEED_DECLARE)
#undef HEED_DECLARE
};

// Between structs that have these fields.
template <class From, class To>
void copy_logit_fields(const From &from, To *to) {
#define HEED_COPY(name, ...) to->name = from.name;
    HEED_LOGIT_FIELDS(HEED_COPY)
#undef HEED_COPY
}

// [num_heads] each; empty: none.
struct HeadArrays {
#define HEED_DECLARE(name, ...) std::vector<float> name;
    HEED_HEAD_ARRAYS(HEED_DECLARE)
#undef HEED_DECLARE
};

// q, k, v are packed [batch, len, heads, head_dim]; out is indexed alike. kv_len is the capacity of k and v. How they
// are stored is up to the call; all of it sees the values as their types hold them, see hold_in_types.
struct Attention : Shape, LogitFields, HeadArrays {
    heed_dtype dtype = HEED_F32;
    bool int8_kv = false;  // k and v are codes with a scale per row; else they are of dtype
    // Not of the problem but of the kernel that runs it, for the bounds: weights are rounded to dtype before they meet
    // v. Without a kernel: where one that serves the problem may.
    bool rounds_weights = false;
    heed_dtype bias_dtype = HEED_F32;
    heed_position position = HEED_TOP_LEFT;
    float dropout_p = 0;
    uint64_t dropout_seed = 0, dropout_offset = 0;
    std::vector<float> q, k, v;
    // empty: none; lengths empty: all q_len, kv_len. Query rows beyond q_lens do not exist: their results are 0 here.
    std::vector<int32_t> q_lens, kv_lens, q_offsets;
    PerLogit<uint8_t> mask;
    PerLogit<float> bias;

    heed_dtype kv_dtype() const { return int8_kv ? HEED_I8 : dtype; }
    int32_t q_len_of(int64_t b) const { return q_lens.empty() ? q_len : q_lens[static_cast<size_t>(b)]; }
    int32_t kv_len_of(int64_t b) const { return kv_lens.empty() ? kv_len : kv_lens[static_cast<size_t>(b)]; }
    int64_t position_of(int64_t b, int64_t i) const;  // p(i)
    // What ALiBi multiplies by the slope: j - p(i), or -|j - p(i)|.
    int64_t alibi_distance(int64_t b, int64_t i, int64_t j) const;

    int64_t group_size() const { return num_heads / num_kv_heads; }
    int64_t num_outputs() const { return num_rows() * head_dim_v; }
    int64_t num_rows() const { return int64_t{batch} * q_len * num_heads; }

    int64_t q_index(int64_t b, int64_t i, int64_t h) const { return ((b * q_len + i) * num_heads + h) * head_dim; }
    int64_t k_index(int64_t b, int64_t j, int64_t g) const { return ((b * kv_len + j) * num_kv_heads + g) * head_dim; }
    int64_t v_index(int64_t b, int64_t j, int64_t g) const {
        return ((b * kv_len + j) * num_kv_heads + g) * head_dim_v;
    }
    int64_t out_index(int64_t b, int64_t i, int64_t h) const { return ((b * q_len + i) * num_heads + h) * head_dim_v; }
    int64_t lse_index(int64_t b, int64_t h, int64_t i) const { return (b * num_heads + h) * q_len + i; }

    float *q_row(int64_t b, int64_t i, int64_t h) { return q.data() + q_index(b, i, h); }
    float *k_row(int64_t b, int64_t j, int64_t g) { return k.data() + k_index(b, j, g); }
    float *v_row(int64_t b, int64_t j, int64_t g) { return v.data() + v_index(b, j, g); }
    const float *q_row(int64_t b, int64_t i, int64_t h) const { return q.data() + q_index(b, i, h); }
    const float *k_row(int64_t b, int64_t j, int64_t g) const { return k.data() + k_index(b, j, g); }
    const float *v_row(int64_t b, int64_t j, int64_t g) const { return v.data() + v_index(b, j, g); }
};

// Makes q, k and v as large as the shape says, each number next(), in that order, then held in its type.
void fill(Attention *a, const std::function<float()> &next);

// Rounds q, k, v and bias to values that their types hold; with int8_kv each row of k and v to codes times a scale.
void hold_in_types(Attention *a);

// A mask or bias of `shape` (an entry of 0 is the full extent). Each mask element lets its key be seen with
// probability `density`, by the problem's own convention. The bias is N(0,1).
void add_mask(Attention *a, std::array<int32_t, 4> shape, double density, Rng *rng);
void add_bias(Attention *a, std::array<int32_t, 4> shape, Rng *rng);
void add_alibi(Attention *a, std::vector<float> slopes, bool symmetric = false);

// What the contract's text says about one existing query and every key: kv_len entries, 1 = visible.
std::vector<uint8_t> visible_keys(const Attention &a, int32_t b, int32_t h, int32_t i);

// A hash of everything, to recognise a problem that was solved before.
uint64_t content_hash(const Attention &a);

}  // namespace heed_reference
