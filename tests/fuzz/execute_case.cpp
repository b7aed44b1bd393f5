#include "tests/fuzz/execute_case.h"

#include <algorithm>
#include <limits>

#include "runtime/reference/element.h"

namespace heed_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

// Most elements of q and out, or k and v; most products of a query and a key element.
constexpr int64_t most_elements = 1 << 14, most_work = 1 << 18;

// Mostly small, and now and then beyond a block of keys.
int32_t read_length(ByteReader *bytes, int32_t small) {
    const int32_t length = bytes->between(0, 255);
    return length < 192 ? length % (small + 1) : length - 64;
}

int32_t read_head_dim(ByteReader *bytes) {
    const int32_t dim = bytes->between(1, 255);
    return dim <= 160 ? dim : dim <= 200 ? 64 : dim * 640 / 255;
}

Shape read_shape(ByteReader *bytes) {
    Shape shape;
    shape.batch = bytes->between(0, 3);
    shape.num_kv_heads = bytes->between(1, 3);
    shape.num_heads = shape.num_kv_heads * bytes->between(1, 4);
    shape.q_len = read_length(bytes, 6);
    shape.kv_len = read_length(bytes, 40);
    shape.head_dim = read_head_dim(bytes);
    shape.head_dim_v = read_head_dim(bytes);
    const auto cut = [](int32_t *length, int64_t per_token, int64_t most) {
        if (per_token * *length > most) *length = static_cast<int32_t>(most / per_token);
    };
    const int64_t dims = shape.head_dim + shape.head_dim_v, per_query = shape.batch * shape.num_heads * dims;
    cut(&shape.q_len, per_query, most_elements);
    cut(&shape.kv_len, shape.batch * shape.num_kv_heads * dims, most_elements);
    cut(&shape.kv_len, per_query * shape.q_len, most_work);
    return shape;
}

std::vector<int32_t> read_lengths(const Shape &shape, int32_t most, ByteReader *bytes) {
    std::vector<int32_t> lengths(static_cast<size_t>(shape.batch));
    for (int32_t &length : lengths) length = std::min(most, bytes->between(0, 255));
    return lengths;
}

void read_visibility(ByteReader *bytes, Attention *a) {
    a->position = bytes->one_of({HEED_TOP_LEFT, HEED_BOTTOM_RIGHT, HEED_EXPLICIT});
    a->causal = bytes->flag();
    a->window_left = bytes->one_of({-1, 0, 1, 7, 40, std::numeric_limits<int32_t>::max()});
    a->window_right = bytes->one_of({-1, 0, 1, 7, 40, std::numeric_limits<int32_t>::max()});
    if (a->position != HEED_EXPLICIT) return;
    for (int32_t b = 0; b < a->batch; b++) {
        a->q_offsets.push_back(bytes->flag() ? bytes->between(-20, 60) : bytes->get<int32_t>());
    }
}

std::array<int32_t, 4> read_broadcast(ByteReader *bytes) {
    std::array<int32_t, 4> shape;
    for (int32_t &extent : shape) extent = bytes->between(0, 1);  // 0: full
    return shape;
}

void read_features(ByteReader *bytes, Rng *rng, Attention *a) {
    a->scale = bytes->one_of({nan, 1.0f, 0.0f, -0.5f, 0.01f});
    a->softcap = bytes->one_of({0.0f, 0.0f, 30.0f, 0.5f});
    if (bytes->flag()) {
        a->mask_true_hides = bytes->flag();
        const double density = bytes->one_of({0.5, 0.0, 0.1, 0.9, 1.0});
        add_mask(a, read_broadcast(bytes), density, rng);
    }
    if (bytes->flag()) {
        a->bias_dtype = bytes->flag() ? HEED_F32 : a->dtype;
        add_bias(a, read_broadcast(bytes), rng);
        const float hiding = bytes->one_of({0.0f, -infinity, -2e38f});
        for (size_t i = 0; hiding != 0 && i < a->bias.data.size(); i++) {
            if (rng->chance(0.3)) a->bias.data[i] = round_to(a->bias_dtype, hiding);
        }
    }
    if (bytes->flag()) {
        for (int32_t h = 0; h < a->num_heads; h++) a->sink.push_back(rng->chance(0.2) ? -infinity : rng->normal());
    }
    if (bytes->flag()) {
        std::vector<float> slopes;
        for (int32_t h = 0; h < a->num_heads; h++) slopes.push_back(rng->normal() * 0.1f);
        add_alibi(a, slopes, bytes->flag());
    }
    a->dropout_p = bytes->one_of({0.0f, 0.0f, 0.3f, 1.0f});
    a->dropout_seed = rng->bits();
    a->dropout_offset = bytes->flag() ? rng->bits() : 0;
}

// Numbers that spread where they may not: into other rows, or out of keys that nobody sees.
void read_nonfinite_values(ByteReader *bytes, Attention *a) {
    for (int32_t n = bytes->between(0, 3); n > 0; n--) {
        std::vector<float> *const tensor = bytes->one_of({&a->q, &a->k, &a->v});
        const float value = tensor == &a->q ? nan : bytes->one_of({nan, infinity, -infinity});
        const size_t at = bytes->get<uint16_t>();
        if (!tensor->empty()) (*tensor)[at % tensor->size()] = value;
    }
}

void read_storage(ByteReader *bytes, Attention *a, CallOptions *options) {
    options->q_storage = bytes->one_of({HEED_Q_DENSE, HEED_Q_VARLEN});
    options->kv_storage = bytes->one_of({HEED_KV_CONTIGUOUS, HEED_KV_VARLEN, HEED_KV_PAGED});
    if (options->q_storage == HEED_Q_DENSE && options->kv_storage == HEED_KV_VARLEN) {
        options->kv_storage = HEED_KV_CONTIGUOUS;
    }
    options->page_size = bytes->between(1, 40);
    options->page_seed = bytes->get<uint8_t>();
    options->share_pages = bytes->flag();
    options->spare_columns = bytes->between(0, 2);
    if (options->q_storage == HEED_Q_VARLEN) a->q_lens = read_lengths(*a, a->q_len, bytes);
    if (bytes->flag()) a->kv_lens = read_lengths(*a, a->kv_len, bytes);
}

void read_call(ByteReader *bytes, const Attention &a, CallOptions *options) {
    const std::initializer_list<Layout> layouts = {Layout::packed, Layout::bshd, Layout::bhsd, Layout::sbhd,
                                                   Layout::padded};
    options->q = bytes->one_of(layouts);
    options->k = bytes->one_of(layouts);
    options->v = bytes->one_of(layouts);
    options->out = bytes->one_of(layouts);
    options->garbage_strides = bytes->flag();
    options->flush = bytes->one_of({Flush::rear, Flush::front});
    options->offset = bytes->between(0, 3);
    options->want_lse = bytes->flag();
    options->num_threads = bytes->between(1, 3);
    options->num_splits = bytes->one_of({0, 1, 2, 3, 7, a.kv_len + 5});
    options->batch_invariant = bytes->flag();
}

}  // namespace

ExecuteCase read_case(ByteReader *bytes) {
    using Fault = ExecuteCase::Fault;
    ExecuteCase c;
    const Shape shape = read_shape(bytes);
    const auto dtype = bytes->one_of({HEED_F32, HEED_F16, HEED_BF16});
    const bool int8_kv = bytes->between(0, 3) == 3;
    const auto data = bytes->one_of({Data::normal, Data::peaked, Data::sparse, Data::zero});
    Rng rng(bytes->get<uint16_t>());
    Attention &a = c.attention = make_attention(shape, data, rng.bits(), dtype, int8_kv);
    read_storage(bytes, &a, &c.options);
    read_call(bytes, a, &c.options);
    read_visibility(bytes, &a);
    read_features(bytes, &rng, &a);
    if (!int8_kv) read_nonfinite_values(bytes, &a);  // codes of a row with NaN are of no meaning
    c.fault = bytes->one_of(
        {Fault::none, Fault::metadata, Fault::capacity, Fault::workspace, Fault::alignment, Fault::missing});
    return c;
}

}  // namespace heed_test
