#include "runtime/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "runtime/reference/element.h"

namespace heed_reference {
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

void fill(Attention *a, const std::function<float()> &next) {
    a->q.resize(count(a->batch, a->q_len, a->num_heads, a->head_dim));
    a->k.resize(count(a->batch, a->kv_len, a->num_kv_heads, a->head_dim));
    a->v.resize(count(a->batch, a->kv_len, a->num_kv_heads, a->head_dim_v));
    for (auto *values : {&a->q, &a->k, &a->v}) {
        for (float &x : *values) x = next();
    }
    hold_in_types(a);
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

}  // namespace heed_reference
