// The workspace of gradients: rows of queries into it and out of it.
#include "ops/backward_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "float_environment.h"
#include "ops/attention_backward.h"
#include "status.h"
#include "weight_element.h"

namespace heed {
namespace {

constexpr float no_key = 1e30f;  // as lse: every weight is 0

// 0 where out is: a row without keys may meet anything in dout.
double dot_with_out(const float *dout, const void *out, heed_dtype dtype, int32_t count) {
    double sum = 0;
    for (int32_t d = 0; d < count; d++) {
        const float x = load_element(out, d, dtype);
        if (x != 0) sum += static_cast<double>(x) * static_cast<double>(dout[d]);
    }
    return sum;
}

int64_t index_of(const View &view, int64_t a, int64_t b, int64_t c) {
    return a * view.stride[0] + b * view.stride[1] + c * view.stride[2];
}

const char *element_at(const heed_tensor &tensor, heed_dtype dtype, int64_t index) {
    return static_cast<const char *>(tensor.data) + index * dtype_bytes(dtype);
}

}  // namespace

bool load_row(const void *from, heed_dtype dtype, int32_t count, int32_t padded, float *to) {
    if (dtype == HEED_F32) {
        std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    } else {
        for (int32_t d = 0; d < count; d++) to[d] = load_element(from, d, dtype);
    }
    std::fill(to + count, to + padded, 0.0f);
    uint32_t largest = 0;
    for (int32_t d = 0; d < count; d++) {
        uint32_t bits = 0;
        std::memcpy(&bits, to + d, sizeof(bits));
        largest = std::max(largest, bits & 0x7fffffffu);
    }
    return largest < 0x7f800000u;
}

void store_row(const float *from, float factor, heed_dtype dtype, int32_t count, void *to) {
    for (int32_t d = 0; d < count; d++) store_element(to, d, dtype, factor * from[d]);
}

void pack_queries(const BackwardCall &call, const BackwardSequence &sequence, int32_t head) {
    const DefaultFloatEnvironment environment;
    const heed_problem &p = call.plan.problem;
    const BackwardLayout &layout = call.layout;
    const ProblemViews &views = call.plan.views;
    const int64_t batch = p.q_storage == HEED_Q_VARLEN ? 0 : sequence.place.index, first = call.row_of(sequence, head);
    const int32_t block = layout.tile->rows;
    float *const lse = call.at<float>(layout.lse) + first, *const delta = call.at<float>(layout.delta) + first;
    uint8_t *const special = call.at<uint8_t>(layout.special) + first / block;
    std::fill(special, special + sequence.num_rows / block, uint8_t{0});
    double sink_grad = 0;
    for (int64_t i = 0; i < sequence.num_rows; i++) {
        float *const q = call.at<float>(layout.q) + (first + i) * layout.head_dim;
        float *const dout = call.at<float>(layout.dout) + (first + i) * layout.head_dim_v;
        const int64_t token = sequence.place.first_q + i;
        const bool exists = i < sequence.place.q_len;
        if (exists) {
            lse[i] = static_cast<const float *>(call.args.lse.data)[index_of(views.lse, batch, head, token)];
        }
        if (!exists || lse[i] == -std::numeric_limits<float>::infinity()) {
            lse[i] = no_key;
            delta[i] = 0;
            std::fill(q, q + layout.head_dim, 0.0f);
            std::fill(dout, dout + layout.head_dim_v, 0.0f);
            continue;
        }
        const int64_t q_index = index_of(views.q, batch, token, head), index = index_of(views.out, batch, token, head);
        const bool finite_q =
            load_row(element_at(call.args.q, p.dtype, q_index), p.dtype, p.head_dim, layout.head_dim, q);
        const bool finite_dout =
            load_row(element_at(call.gradients.dout, p.dtype, index), p.dtype, p.head_dim_v, layout.head_dim_v, dout);
        if (!finite_q || !finite_dout) special[i / block] = 1;
        const double product = dot_with_out(dout, element_at(call.args.out, p.dtype, index), p.dtype, p.head_dim_v);
        delta[i] = static_cast<float>(product);
        if (p.has_sink) {
            const double sink = call.args.sink[head];
            sink_grad -= std::exp(sink - static_cast<double>(lse[i])) * product;
        }
    }
    call.at<double>(layout.dsink)[int64_t{sequence.place.index} * p.num_heads + head] = sink_grad;
}

void store_queries(const BackwardCall &call, const BackwardSequence &sequence, int32_t head) {
    if (call.gradients.dq.data == nullptr) return;
    const DefaultFloatEnvironment environment;
    const heed_problem &p = call.plan.problem;
    const BackwardLayout &layout = call.layout;
    const View &view = call.plan.views.q;
    const int64_t batch = p.q_storage == HEED_Q_VARLEN ? 0 : sequence.place.index, first = call.row_of(sequence, head);
    for (int64_t i = 0; i < sequence.place.q_len; i++) {
        float *const sum = call.at<float>(layout.dq) + (first + i) * layout.head_dim;
        for (int64_t r = 1; r < layout.num_ranges; r++) {
            const float *const part = sum + r * layout.num_rows * layout.head_dim;
            for (int32_t d = 0; d < p.head_dim; d++) sum[d] += part[d];
        }
        const int64_t index = index_of(view, batch, sequence.place.first_q + i, head);
        store_row(sum, p.scale, p.dtype, p.head_dim,
                  static_cast<char *>(call.gradients.dq.data) + index * dtype_bytes(p.dtype));
    }
}

void store_sinks(const BackwardCall &call) {
    if (call.gradients.dsink.data == nullptr) return;
    const DefaultFloatEnvironment environment;
    const heed_problem &p = call.plan.problem;
    for (int64_t h = 0; h < p.num_heads; h++) {
        double sum = 0;
        for (int64_t b = 0; b < p.batch; b++) {
            if (call.sequence(b).place.q_len > 0) sum += call.at<double>(call.layout.dsink)[b * p.num_heads + h];
        }
        static_cast<float *>(call.gradients.dsink.data)[h] = static_cast<float>(sum);
    }
}

namespace {

// visit(index in the tensor, index of the element) for each element of dbias.
template <typename Visit>
void for_each_bias(const View &view, Visit visit) {
    int64_t element = 0;
    for (int64_t b = 0; b < view.extent[0]; b++) {
        for (int64_t h = 0; h < view.extent[1]; h++) {
            for (int64_t i = 0; i < view.extent[2]; i++) {
                const int64_t row = index_of(view, b, h, i);
                for (int64_t j = 0; j < view.extent[3]; j++) visit(row + j * view.stride[3], element++);
            }
        }
    }
}

}  // namespace

void clear_bias(const BackwardCall &call) {
    const heed_problem &p = call.plan.problem;
    const heed_tensor &dbias = call.gradients.dbias;
    const View view = dbias_view(p, call.plan.views);
    float *const sums = call.at<float>(call.layout.dbias);
    for_each_bias(view, [&](int64_t index, int64_t element) {
        if (call.layout.sums_bias) {
            sums[element] = 0;
        } else {
            store_element(dbias.data, index, p.bias_dtype, 0);
        }
    });
}

void store_bias(const BackwardCall &call) {
    if (!call.layout.sums_bias) return;
    const DefaultFloatEnvironment environment;
    const heed_problem &p = call.plan.problem;
    const float *const sums = call.at<float>(call.layout.dbias);
    for_each_bias(dbias_view(p, call.plan.views), [&](int64_t index, int64_t element) {
        store_element(call.gradients.dbias.data, index, p.bias_dtype, sums[element]);
    });
}

}  // namespace heed
