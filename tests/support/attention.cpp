#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

class Fnv {
public:
    template <class T>
    void add(const T *values, size_t n) {
        const auto *bytes = reinterpret_cast<const unsigned char *>(values);
        for (size_t i = 0; i < n * sizeof(T); i++) hash_ = (hash_ ^ bytes[i]) * 0x100000001b3ull;
    }
    template <class T>
    void add(const std::vector<T> &values) {
        const size_t n = values.size();
        add(&n, 1);
        add(values.data(), n);
    }
    uint64_t hash() const { return hash_; }

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

bool Rng::chance(double probability) { return std::ldexp(static_cast<double>(bits() >> 11), -53) < probability; }

float Rng::normal() {
    const double u = std::ldexp(static_cast<double>((bits() >> 11) + 1), -53);
    const double angle = std::ldexp(static_cast<double>(bits() >> 11), -53) * 2 * 3.14159265358979323846;
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(angle));
}

void fill(std::vector<float> *values, Data data, heed_dtype dtype, Rng *rng) {
    for (float &x : *values) {
        switch (data) {
        case Data::normal:
            x = round_to(dtype, rng->normal());
            break;
        case Data::peaked:
            x = round_to(dtype, 4 * rng->normal());
            break;
        case Data::sparse:
            x = rng->chance(0.8) ? 0.0f : rng->chance(0.5) ? 2.0f : -2.0f;
            break;
        case Data::zero:
            x = 0;
        }
    }
}

Attention make_attention(const Shape &shape, Data data, uint64_t seed) {
    Attention a;
    static_cast<Shape &>(a) = shape;
    a.q.resize(count(a.batch, a.q_len, a.num_heads, a.head_dim));
    a.k.resize(count(a.batch, a.kv_len, a.num_kv_heads, a.head_dim));
    a.v.resize(count(a.batch, a.kv_len, a.num_kv_heads, a.head_dim_v));
    Rng rng(seed);
    fill(&a.q, data, a.dtype, &rng);
    fill(&a.k, data, a.dtype, &rng);
    fill(&a.v, data, a.dtype, &rng);
    return a;
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
    for (float &element : a->bias.data) element = rng->normal();
}

void make_exact_set(Attention *a) {
    std::fill(a->q.begin(), a->q.end(), 0.0f);
    std::fill(a->v.begin(), a->v.end(), 0.0f);
    for (int32_t b = 0; b < a->batch; b++) {
        for (int32_t j = 0; j < a->kv_len; j++) {
            for (int32_t g = 0; g < a->num_kv_heads; g++) {
                a->v_row(b, j, g)[j / 16] = static_cast<float>(1 << (j % 16));
            }
        }
    }
}

std::vector<int32_t> named_keys(const float *out_row, int32_t head_dim_v, int32_t num_visible) {
    std::vector<int32_t> keys;
    for (int32_t d = 0; d < head_dim_v; d++) {
        // The sum of 16 powers of two, off by a few 2^-24 of it: far from the next integer.
        const auto sum = std::llround(static_cast<double>(out_row[d]) * num_visible);
        for (int32_t bit = 0; bit < 63; bit++) {
            if ((sum >> bit) & 1) keys.push_back(16 * d + bit);
        }
    }
    return keys;
}

std::vector<uint8_t> visible_keys(const Attention &a, int32_t b, int32_t h, int32_t i) {
    std::vector<uint8_t> keys(static_cast<size_t>(a.kv_len));
    const int64_t kv_len = a.kv_lens.empty() ? a.kv_len : a.kv_lens[static_cast<size_t>(b)];
    int64_t p = i;
    if (a.position == HEED_BOTTOM_RIGHT) p = i + kv_len - a.q_len;
    if (a.position == HEED_EXPLICIT) p = i + int64_t{a.q_offsets[static_cast<size_t>(b)]};
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

int64_t visible_pairs(const Attention &a) {
    const bool same_for_heads = (!a.mask.used || a.mask.shape[1] == 1) && (!a.bias.used || a.bias.shape[1] == 1);
    const int32_t heads = same_for_heads ? std::min(a.num_heads, 1) : a.num_heads;
    int64_t pairs = 0;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < heads; h++) {
            for (int32_t i = 0; i < a.q_len; i++) {
                for (const uint8_t visible : visible_keys(a, b, h, i)) pairs += visible;
            }
        }
    }
    return same_for_heads ? pairs * a.num_heads : pairs;
}

uint64_t content_hash(const Attention &a) {
    Fnv fnv;
    const int64_t numbers[] = {a.batch,           a.num_heads,       a.num_kv_heads, a.q_len,
                               a.kv_len,          a.head_dim,        a.head_dim_v,   a.dtype,
                               a.position,        a.causal,          a.window_left,  a.window_right,
                               a.mask_true_hides, a.alibi_symmetric, a.mask.used,    a.bias.used};
    const float scalars[] = {a.scale, a.softcap};
    fnv.add(numbers, sizeof(numbers) / sizeof(numbers[0]));
    fnv.add(scalars, 2);
    fnv.add(a.mask.shape.data(), 4);
    fnv.add(a.bias.shape.data(), 4);
    for (const auto *values : {&a.q, &a.k, &a.v, &a.bias.data, &a.sink, &a.alibi_slopes}) fnv.add(*values);
    fnv.add(a.mask.data);
    fnv.add(a.kv_lens);
    fnv.add(a.q_offsets);
    return fnv.hash();
}

}  // namespace heed_test
