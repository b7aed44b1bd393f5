#include "runtime/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "runtime/reference/element.h"
#include "runtime/reference/philox.h"
#include "runtime/reference/tolerance.h"

namespace heed_reference {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// sum = a . b, squares = the sum of the squared products.
struct Dot {
    double sum, squares;
};

// Eight partial sums let the compiler use vectors; products of floats are exact in double.
Dot dot(const float *a, const float *b, int32_t n) {
    double sums[8] = {}, squares[8] = {};
    int32_t d = 0;
    for (; d + 8 <= n; d += 8) {
        for (int32_t u = 0; u < 8; u++) {
            const double product = static_cast<double>(a[d + u]) * static_cast<double>(b[d + u]);
            sums[u] += product;
            squares[u] += product * product;
        }
    }
    for (; d < n; d++) {
        const double product = static_cast<double>(a[d]) * static_cast<double>(b[d]);
        sums[0] += product;
        squares[0] += product * product;
    }
    const auto total = [](const double *x) {
        return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
    };
    return {total(sums), total(squares)};
}

double scale_of(const Attention &a) {
    return std::isnan(a.scale) ? 1 / std::sqrt(static_cast<double>(a.head_dim)) : static_cast<double>(a.scale);
}

double bias_of(const Attention &a, int32_t b, int32_t h, int32_t i, int32_t j) {
    return a.bias.used ? static_cast<double>(a.bias.at(b, h, i, j)) : 0;
}

template <class Number>
Number alibi_of(const Attention &a, int32_t b, int32_t h, int32_t i, int32_t j) {
    if (a.alibi_slopes.empty()) return 0;
    return static_cast<Number>(a.alibi_slopes[static_cast<size_t>(h)]) * static_cast<Number>(a.alibi_distance(b, i, j));
}

// What multiplies the logits of a query.
double temperature_of(const Attention &a, int32_t b, int32_t h, int32_t i) {
    const int64_t tokens = std::max<int64_t>(a.position_of(b, i), 0) + a.temperature_shift;
    const double intervals = std::floor(static_cast<double>(tokens) / a.temperature_interval);
    const double of_head = a.temperature.empty() ? 1 : static_cast<double>(a.temperature[static_cast<size_t>(h)]);
    return of_head * (1 + static_cast<double>(a.temperature_growth) * std::log1p(intervals));
}

struct Logit {
    double value;
    // What the rounding errors of any float evaluation scale with, in units of 2^-23.
    // dot product: |value|, or where it is larger 4 times the root of the sum of the squared products. Partial
    // sums reach that size, however small the whole is; the largest of many logits is about as large.
    // temperature: right to 4 units.
    // softcap: y = softcap * tanh(x / softcap) passes an error of x on times dy/dx = 1 - (y / softcap)^2, and is itself
    // right to 4 units of its value.
    // ALiBi: the product is rounded, and the sum, which may cancel: each half a unit of |slope * (j - p)|. So is,
    // twice, a difference of more than 2^24 tokens.
    double size;
};

Logit logit(const Attention &a, int32_t b, int32_t h, int32_t i, int32_t j) {
    const Dot product = dot(a.q_row(b, i, h), a.k_row(b, j, h / a.group_size()), a.head_dim);
    const double temperature = temperature_of(a, b, h, i), scale = scale_of(a) * temperature;
    double x = scale * product.sum;
    double size = std::max(std::fabs(x), 4 * std::fabs(scale) * std::sqrt(product.squares));
    if (temperature != 1) size += 4 * std::fabs(x);
    if (a.softcap > 0) {
        const double tanh = std::tanh(x / a.softcap);
        x = a.softcap * tanh;
        size = (1 - tanh * tanh) * size + 4 * std::fabs(x);
    }
    const double alibi = alibi_of<double>(a, b, h, i, j);
    x += bias_of(a, b, h, i, j) + alibi;
    const bool rounds = std::abs(j - a.position_of(b, i)) > 1 << 24;
    return {x, std::max(std::fabs(x), size) + (rounds ? 2 : 1) * std::fabs(alibi)};
}

double sink_of(const Attention &a, int32_t h) { return a.sink.empty() ? -infinity : a.sink[static_cast<size_t>(h)]; }

// The largest |v| of every key, [batch, num_kv_heads, kv_len].
std::vector<double> largest_v(const Attention &a) {
    std::vector<double> largest;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t g = 0; g < a.num_kv_heads; g++) {
            for (int32_t j = 0; j < a.kv_len; j++) {
                float max = 0;
                for (int32_t d = 0; d < a.head_dim_v; d++) max = std::max(max, std::fabs(a.v_row(b, j, g)[d]));
                largest.push_back(static_cast<double>(max));
            }
        }
    }
    return largest;
}

// The range that a running sum passes.
struct SumRange {
    double sum = 0, least = 0, largest = 0;
    void add(double x) {
        sum += x;
        least = std::min(least, sum);
        largest = std::max(largest, sum);
    }
    double size() const { return largest - least; }
};

struct Part {
    SumRange values, differences;
    double size() const { return std::max(values.size(), differences.size()); }
};

// What roundings of the weights may change in each element of out: see random_sum_bound. The sum that divides out is of
// exact weights or of rounded ones: an error of a weight counts v times or v - out times, whichever gives more. Equal
// weights of a block of keys are rounded alike, wherever the block begins and ends: they are one part, the largest sum
// over neighbouring keys. Weights within 2^-20 of each other may be equal in float. keep: what the v of each key is
// multiplied by, 0 of a dropped key, whose v may be no number. Sorts `keys`, the visible ones.
void sum_weight_roundings(const Attention &a, int32_t b, int64_t g, const std::vector<double> &weights,
                          const std::vector<double> &keep, const double *out, std::vector<size_t> *keys,
                          double *rounding) {
    std::sort(keys->begin(), keys->end(), [&](size_t x, size_t y) { return weights[x] < weights[y]; });
    std::vector<Part> parts(static_cast<size_t>(a.head_dim_v));
    std::vector<double> squares(parts.size());
    for (auto begin = keys->begin(), end = begin; begin != keys->end(); begin = end) {
        const double most = weights[*begin] * (1 + 0x1p-20);
        end = std::find_if(begin + 1, keys->end(), [&](size_t key) { return weights[key] > most; });
        std::sort(begin, end);
        std::fill(parts.begin(), parts.end(), Part());
        for (auto key = begin; key != end; key++) {
            const float *v = a.v_row(b, static_cast<int64_t>(*key), g);
            for (size_t d = 0; d < parts.size(); d++) {
                const double value = keep[*key] == 0 ? 0 : keep[*key] * static_cast<double>(v[d]);
                const double difference = value - out[d];
                parts[d].values.add(weights[*key] * value);
                parts[d].differences.add(weights[*key] * difference);
                rounding[d] += weights[*key] * std::max(std::fabs(value), std::fabs(difference));
            }
        }
        for (size_t d = 0; d < parts.size(); d++) squares[d] += parts[d].size() * parts[d].size();
    }
    for (size_t d = 0; d < squares.size(); d++) rounding[d] = random_sum_bound(rounding[d], squares[d]);
}

// One query. `weights` holds the logits of the visible keys first, then their weights.
void solve_query(const Attention &a, int32_t b, int32_t h, int32_t i, const std::vector<double> &v_of_key,
                 Reference *ref) {
    const std::vector<uint8_t> visible = visible_keys(a, b, h, i);
    const auto row = static_cast<size_t>(a.lse_index(b, h, i));
    const int64_t g = h / a.group_size();
    const auto first_key = static_cast<size_t>((int64_t{b} * a.num_kv_heads + g) * a.kv_len);
    double *out = ref->out.data() + a.out_index(b, i, h);
    double *rounding = ref->weight_rounding.data() + a.out_index(b, i, h);
    std::vector<double> weights(visible.size()), keep(visible.size());
    std::vector<size_t> keys;
    double max = sink_of(a, h), max_logit = 0, max_v = 0;
    int32_t num_kept = 0;
    // Logits of -inf, of an infinite element of k, weigh nothing; where all are, the row is as one without keys.
    bool weightless = max == -infinity;
    for (int32_t j = 0; j < a.kv_len; j++) {
        if (!visible[static_cast<size_t>(j)]) continue;
        const Logit x = logit(a, b, h, i, j);
        weights[static_cast<size_t>(j)] = x.value;
        keys.push_back(static_cast<size_t>(j));
        if (x.value == -infinity) continue;
        weightless = false;
        max = std::max(max, x.value);
        max_logit = std::max(max_logit, x.size);
        max_v = std::max(max_v, v_of_key[first_key + static_cast<size_t>(j)]);
    }
    ref->max_logit[row] = max_logit;
    ref->max_v[row] = max_v;
    ref->num_visible[row] = static_cast<int32_t>(keys.size());
    ref->lse[row] = sink_of(a, h);
    if (keys.empty()) return;

    double sum = a.sink.empty() ? 0 : std::exp(sink_of(a, h) - max);
    for (const size_t j : keys) sum += weights[j] = weightless ? 0 : std::exp(weights[j] - max);
    if (weightless) sum = 1;
    const double keep_scale = a.dropout_p < 1 ? 1 / (1 - static_cast<double>(a.dropout_p)) : 0;
    ref->max_v[row] = max_v *= keep_scale;
    for (const size_t j : keys) {
        weights[j] /= sum;
        const auto key = static_cast<int32_t>(j);
        if (!dropout_keeps(a, b, h, i, key)) continue;
        num_kept++;
        keep[j] = keep_scale;
        const float *v = a.v_row(b, key, g);
        for (int32_t d = 0; d < a.head_dim_v; d++) out[d] += weights[j] * keep_scale * static_cast<double>(v[d]);
    }
    ref->num_kept[row] = num_kept;
    if (a.rounds_weights) sum_weight_roundings(a, b, g, weights, keep, out, &keys, rounding);
    if (std::isnan(sum)) std::fill_n(out, a.head_dim_v, sum);  // also where no key is kept
    double *effect = ref->key_effect.data() + first_key;
    double max_out = 0, max_rounding = 0;
    for (int32_t d = 0; d < a.head_dim_v; d++) {
        max_out = std::max(max_out, std::fabs(out[d]));
        max_rounding = std::max(max_rounding, rounding[d]);
    }
    const double bound = out_bound(a, max_out, max_logit, max_v, max_rounding);
    for (const size_t j : keys) {
        if (keep[j] != 0) effect[j] = std::max(effect[j], weights[j] * max_v / bound);
    }
    if (!weightless) ref->lse[row] = max + std::log(sum);
}

// The order of a naive sum: n elements from the middle or the start, upwards or downwards.
struct Order {
    bool from_middle, downwards;
    int64_t operator()(int64_t index, int64_t n) const {
        const int64_t at = (index + (from_middle ? n / 2 : 0)) % n;
        return downwards ? n - 1 - at : at;
    }
};
constexpr Order orders[] = {{false, false}, {false, true}, {true, false}, {true, true}};

// One query as a plain loop in the I/O type has it. k_columns is [head_dim][kv_len], so that the sums over head_dim
// run in order and still in vectors.
void naive_query(const Attention &a, int32_t b, int32_t h, int32_t i, const Order &order,
                 const std::vector<float> &k_columns, std::vector<float> *out) {
    const std::vector<uint8_t> visible = visible_keys(a, b, h, i);
    const auto n = static_cast<size_t>(a.kv_len);
    const int64_t g = h / a.group_size();
    const auto scale = static_cast<float>(scale_of(a) * temperature_of(a, b, h, i));
    std::vector<float> weights(n);
    for (int32_t index = 0; index < a.head_dim; index++) {
        const int64_t d = order(index, a.head_dim);
        const float q = a.q_row(b, i, h)[d], *k = k_columns.data() + static_cast<size_t>(d) * n;
        for (size_t j = 0; j < n; j++) weights[j] += q * k[j];
    }
    float max = a.sink.empty() ? -std::numeric_limits<float>::infinity() : a.sink[static_cast<size_t>(h)];
    for (size_t j = 0; j < n; j++) {
        if (!visible[j]) continue;
        float x = weights[j] * scale;
        if (a.softcap > 0) x = a.softcap * std::tanh(x / a.softcap);
        const auto key = static_cast<int32_t>(j);
        x = round_to(a.dtype, x + static_cast<float>(bias_of(a, b, h, i, key)) + alibi_of<float>(a, b, h, i, key));
        weights[j] = x;
        max = std::max(max, x);
    }
    float sum = a.sink.empty() ? 0 : std::exp(a.sink[static_cast<size_t>(h)] - max);
    const float keep_scale = 1 / (1 - a.dropout_p);
    out->assign(static_cast<size_t>(a.head_dim_v), 0.0f);
    for (size_t index = 0; index < n; index++) {
        const auto j = static_cast<size_t>(order(static_cast<int64_t>(index), a.kv_len));
        if (!visible[j]) continue;
        weights[j] = std::exp(weights[j] - max);
        sum += weights[j];
    }
    for (size_t index = 0; index < n; index++) {
        const auto j = static_cast<size_t>(order(static_cast<int64_t>(index), a.kv_len));
        if (!visible[j] || !dropout_keeps(a, b, h, i, static_cast<int32_t>(j))) continue;
        const float prob = round_to(a.dtype, weights[j] / sum * keep_scale),
                    *v = a.v_row(b, static_cast<int64_t>(j), g);
        for (size_t d = 0; d < out->size(); d++) (*out)[d] += prob * v[d];
    }
    for (float &x : *out) x = round_to(a.dtype, x);
}

// k of one head as [head_dim][kv_len].
std::vector<float> columns_of(const Attention &a, int32_t b, int64_t g) {
    std::vector<float> columns(static_cast<size_t>(a.head_dim) * static_cast<size_t>(a.kv_len));
    for (int64_t j = 0; j < a.kv_len; j++) {
        const float *k = a.k_row(b, j, g);
        for (int64_t d = 0; d < a.head_dim; d++) columns[static_cast<size_t>(d * a.kv_len + j)] = k[d];
    }
    return columns;
}

void run_baseline(const Attention &a, Reference *ref) {
    double max = 0, squares = 0, count = 0;
    std::vector<float> out;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            const std::vector<float> k_columns = columns_of(a, b, h / a.group_size());
            for (int32_t i = 0; i < a.q_len_of(b); i++) {
                if (ref->num_visible[static_cast<size_t>(a.lse_index(b, h, i))] == 0) continue;
                const double *expected = ref->out.data() + a.out_index(b, i, h);
                for (const Order &order : orders) {
                    naive_query(a, b, h, i, order, k_columns, &out);
                    for (size_t d = 0; d < out.size(); d++) {
                        const double error = std::fabs(static_cast<double>(out[d]) - expected[d]);
                        if (!std::isfinite(error)) continue;
                        max = std::max(max, error);
                        squares += error * error;
                        count++;
                    }
                }
            }
        }
    }
    ref->naive_max_error = max;
    ref->naive_rms_error = count > 0 ? std::sqrt(squares / count) : 0;
}

}  // namespace

// The mask is indexed by the longest lengths of a call, never by a sequence's own.
bool dropout_keeps(const Attention &a, int32_t b, int32_t h, int32_t i, int32_t j) {
    if (a.dropout_p == 0) return true;
    const auto n = [](int32_t x) { return static_cast<uint64_t>(x); };
    const uint64_t e = ((n(b) * n(a.num_heads) + n(h)) * n(a.q_len) + n(i)) * n(a.kv_len) + n(j);
    return dropout_keeps(e, a.dropout_p, a.dropout_seed, a.dropout_offset);
}

Reference compute_reference(const Attention &given, bool with_baseline) {
    Attention a = given;
    hold_in_types(&a);
    return compute_reference_as_held(a, with_baseline);
}

Reference compute_reference_as_held(const Attention &a, bool with_baseline) {
    Reference ref;
    const auto rows = static_cast<size_t>(a.num_rows());
    ref.out.assign(static_cast<size_t>(a.num_outputs()), 0.0);
    ref.weight_rounding = ref.out;
    ref.lse.assign(rows, -infinity);
    ref.max_logit.assign(rows, 0.0);
    ref.max_v.assign(rows, 0.0);
    ref.num_visible.assign(rows, 0);
    ref.num_kept.assign(rows, 0);
    ref.key_effect.assign(static_cast<size_t>(int64_t{a.batch} * a.num_kv_heads * a.kv_len), -1.0);
    const std::vector<double> v_of_key = largest_v(a);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < a.q_len_of(b); i++) solve_query(a, b, h, i, v_of_key, &ref);
        }
    }
    ref.naive_max_error = ref.naive_rms_error = std::numeric_limits<double>::quiet_NaN();
    if (with_baseline) run_baseline(a, &ref);
    return ref;
}

std::shared_ptr<const Reference> reference_of(const Attention &a) {
    constexpr int64_t max_cached = int64_t{1} << 24;  // numbers
    static std::map<uint64_t, std::shared_ptr<const Reference>> cache;
    static int64_t cached = 0;
    const uint64_t key = content_hash(a);
    const auto found = cache.find(key);
    if (found != cache.end()) return found->second;
    auto ref = std::make_shared<const Reference>(compute_reference(a, needs_baseline(a)));
    if (cached > max_cached) {
        cache.clear();
        cached = 0;
    }
    cached += static_cast<int64_t>(2 * ref->out.size() + 4 * ref->lse.size() + ref->key_effect.size());
    cache[key] = ref;
    return ref;
}

}  // namespace heed_reference
