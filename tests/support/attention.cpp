#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "device.h"
#include "element.h"

namespace heed_test {
namespace {

uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

size_t count(int64_t a, int64_t b, int64_t c, int64_t d) { return static_cast<size_t>(a * b * c * d); }

std::array<int32_t, 4> resolve(const Attention &a, std::array<int32_t, 4> shape) {
    const int32_t full[4] = {a.batch, a.num_heads, a.q_len, a.kv_len};
    for (size_t n = 0; n < 4; n++) {
        if (shape[n] == 0) shape[n] = full[n];
    }
    return shape;
}

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

void hold(std::vector<float> *values, heed_dtype dtype) {
    for (float &x : *values) x = round_to(dtype, x);
}

void hold_int8_rows(std::vector<float> *values, int32_t head_dim) {
    std::vector<int8_t> codes(static_cast<size_t>(head_dim));
    for (size_t at = 0; at < values->size(); at += codes.size()) {
        const float scale = quantize_row(values->data() + at, head_dim, codes.data());
        for (size_t d = 0; d < codes.size(); d++) (*values)[at + d] = static_cast<float>(codes[d]) * scale;
    }
}

// Powers of two whose sum, divided by a count and rounded to the dtype, still tells them all.
int32_t exact_bits(heed_dtype dtype) { return dtype == HEED_F32 ? 16 : dtype == HEED_F16 ? 8 : 6; }

class Hash {
public:
    template <class T>
    void add(const T *values, size_t n) {
        const auto *bytes = reinterpret_cast<const unsigned char *>(values);
        for (size_t left = n * sizeof(T); left > 0;) {
            const size_t count = std::min(left, sizeof(uint64_t));
            uint64_t word = 0;
            std::memcpy(&word, bytes, count);
            hash_ = rotate((hash_ ^ word) * 0x9e3779b97f4a7c15ull, 29);
            bytes += count;
            left -= count;
        }
    }
    template <class T>
    void add(const std::vector<T> &values) {
        const size_t n = values.size();
        add(&n, 1);
        add(values.data(), n);
    }
    uint64_t value() const { return hash_; }

private:
    uint64_t hash_ = 0xcbf29ce484222325ull;
};

}  // namespace

Rng::Rng(uint64_t seed) {
    for (uint64_t &word : state_) {  // splitmix64
        seed += 0x9e3779b97f4a7c15ull;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        word = z ^ (z >> 31);
    }
}

uint64_t Rng::bits() {
    uint64_t *s = state_;
    const uint64_t result = rotate(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

int32_t Rng::below(int32_t n) { return static_cast<int32_t>(bits() % static_cast<uint64_t>(n)); }

int32_t Rng::between(int32_t low, int32_t high) { return low + below(high - low + 1); }

bool Rng::chance(double probability) { return static_cast<double>(bits() >> 11) * 0x1p-53 < probability; }

float Rng::normal() {
    const double u = static_cast<double>((bits() >> 11) + 1) * 0x1p-53;
    const double angle = static_cast<double>(bits() >> 11) * 0x1p-53 * 2 * 3.14159265358979323846;
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(angle));
}

namespace {

Attention draw_attention(const Shape &shape, Data data, uint64_t seed, heed_dtype dtype, bool int8_kv) {
    Attention a;
    static_cast<Shape &>(a) = shape;
    a.dtype = dtype;
    a.int8_kv = int8_kv;
    a.rounds_weights = dtype == HEED_BF16 || (test_device() == HEED_CUDA && dtype == HEED_F16);
    a.q.resize(count(a.batch, a.q_len, a.num_heads, a.head_dim));
    a.k.resize(count(a.batch, a.kv_len, a.num_kv_heads, a.head_dim));
    a.v.resize(count(a.batch, a.kv_len, a.num_kv_heads, a.head_dim_v));
    Rng rng(seed);
    for (auto *values : {&a.q, &a.k, &a.v}) {
        for (float &x : *values) x = value_of(data, &rng);
    }
    hold_in_types(&a);
    return a;
}

}  // namespace

// Rows of several ISAs see the same cases: what was drawn is kept.
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

void hold_in_types(Attention *a) {
    hold(&a->q, a->dtype);
    hold(&a->bias.data, a->bias_dtype);
    if (a->int8_kv) {
        hold_int8_rows(&a->k, a->head_dim);
        hold_int8_rows(&a->v, a->head_dim_v);
    } else {
        hold(&a->k, a->dtype);
        hold(&a->v, a->dtype);
    }
}

int64_t Attention::position_of(int64_t b, int64_t i) const {
    if (position == HEED_BOTTOM_RIGHT) return i + kv_len_of(b) - q_len_of(b);
    if (position == HEED_EXPLICIT) return i + q_offsets[static_cast<size_t>(b)];
    return i;
}

int64_t Attention::alibi_distance(int64_t b, int64_t i, int64_t j) const {
    const int64_t distance = j - position_of(b, i);
    return alibi_symmetric ? -std::abs(distance) : distance;
}

void add_mask(Attention *a, std::array<int32_t, 4> shape, double density, Rng *rng) {
    a->mask.used = true;
    a->mask.shape = resolve(*a, shape);
    a->mask.data.resize(count(a->mask.shape[0], a->mask.shape[1], a->mask.shape[2], a->mask.shape[3]));
    for (uint8_t &element : a->mask.data) {
        const bool seen = rng->chance(density);
        // Any non-zero byte is true.
        element = seen != a->mask_true_hides ? static_cast<uint8_t>(rng->between(1, 255)) : 0;
    }
}

void add_bias(Attention *a, std::array<int32_t, 4> shape, Rng *rng) {
    a->bias.used = true;
    a->bias.shape = resolve(*a, shape);
    a->bias.data.resize(count(a->bias.shape[0], a->bias.shape[1], a->bias.shape[2], a->bias.shape[3]));
    for (float &element : a->bias.data) element = round_to(a->bias_dtype, rng->normal());
}

void add_alibi(Attention *a, std::vector<float> slopes, bool symmetric) {
    a->alibi_slopes = std::move(slopes);
    a->alibi_symmetric = symmetric;
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

std::vector<uint8_t> visible_keys(const Attention &a, int32_t b, int32_t h, int32_t i) {
    std::vector<uint8_t> keys(static_cast<size_t>(a.kv_len));
    const int64_t kv_len = a.kv_len_of(b), p = a.position_of(b, i);
    for (int64_t j = 0; j < a.kv_len; j++) {
        bool visible = j < kv_len;
        if (a.causal) visible = visible && j <= p;
        if (a.window_left != -1) visible = visible && p - a.window_left <= j;
        if (a.window_right != -1) visible = visible && j <= p + a.window_right;
        if (a.mask.used) visible = visible && (a.mask.at(b, h, i, j) != 0) != a.mask_true_hides;
        // -inf alone hides; a NaN is data and spoils its row.
        if (a.bias.used) visible = visible && a.bias.at(b, h, i, j) != -std::numeric_limits<float>::infinity();
        keys[static_cast<size_t>(j)] = visible;
    }
    return keys;
}

uint64_t content_hash(const Attention &a) {
    Hash hash;
    const int64_t numbers[] = {a.batch,
                               a.num_heads,
                               a.num_kv_heads,
                               a.q_len,
                               a.kv_len,
                               a.head_dim,
                               a.head_dim_v,
                               a.dtype,
                               a.int8_kv,
                               a.rounds_weights,
                               a.bias_dtype,
                               a.position,
                               a.mask.used,
                               a.bias.used,
                               static_cast<int64_t>(a.dropout_seed),
                               static_cast<int64_t>(a.dropout_offset)};
    hash.add(numbers, sizeof(numbers) / sizeof(numbers[0]));
    hash.add(&a.dropout_p, 1);
#define HEED_ADD(name, ...) hash.add(&a.name, 1);
    HEED_LOGIT_FIELDS(HEED_ADD)
#undef HEED_ADD
    hash.add(a.mask.shape.data(), 4);
    hash.add(a.bias.shape.data(), 4);
#define HEED_ADDRESS(name, ...) , &a.name
    for (const auto *values : { &a.q, &a.k, &a.v, &a.bias.data HEED_HEAD_ARRAYS(HEED_ADDRESS) }) hash.add(*values);
#undef HEED_ADDRESS
    hash.add(a.mask.data);
    for (const auto *lens : {&a.q_lens, &a.kv_lens, &a.q_offsets}) hash.add(*lens);
    return hash.value();
}

}  // namespace heed_test
