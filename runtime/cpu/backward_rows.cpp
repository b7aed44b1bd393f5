// The workspace of gradients: rows of queries into it and out of it.
#include "cpu/backward_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/attention_backward.h"
#include "cpu/backward_words.h"
#include "float_environment.h"
#include "ops/gradient_checks.h"
#include "status.h"
#include "weight_element.h"

namespace heed {
namespace {

constexpr float no_key = 1e30f;  // as lse: every weight is 0

// Elements of a chunk as floats, zeros behind the last. Copies of a constant size become vectors.
void load_chunk(const char *from, heed_dtype dtype, int32_t elements, float *to) {
    if (dtype == HEED_F32 && elements == backward_chunk) {
        std::memcpy(to, from, backward_chunk * sizeof(float));
        return;
    }
    load_elements(from, dtype, elements, to);
    std::fill(to + elements, to + backward_chunk, 0.0f);
}

// 0 where out is: a row without keys may meet anything in dout. Eight sums, so that compilers make vectors of it.
float dot_with_out(const char *dout, const char *out, heed_dtype dtype, int32_t count) {
    float sums[8] = {};
    for (int32_t d = 0; d < count; d += backward_chunk) {
        float x[backward_chunk], y[backward_chunk];
        const int32_t elements = std::min(backward_chunk, count - d);
        load_chunk(out + d * dtype_bytes(dtype), dtype, elements, x);
        load_chunk(dout + d * dtype_bytes(dtype), dtype, elements, y);
        for (int32_t n = 0; n < backward_chunk; n += 8) {
            for (int32_t c = 0; c < 8; c++) {
                const float product = x[n + c] * y[n + c];
                sums[c] += x[n + c] == 0 ? 0 : product;
            }
        }
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

int64_t index_of(const View &view, int64_t a, int64_t b, int64_t c) {
    return a * view.stride[0] + b * view.stride[1] + c * view.stride[2];
}

const char *element_at(const heed_tensor &tensor, heed_dtype dtype, int64_t index) {
    return static_cast<const char *>(tensor.data) + index * dtype_bytes(dtype);
}

}  // namespace

bool load_row(const void *from, heed_dtype dtype, int32_t count, ChunkedRow to) {
    uint32_t largest = 0;
    for (int32_t d = 0; d < count; d += backward_chunk) {
        const int32_t elements = std::min(backward_chunk, count - d);
        load_chunk(static_cast<const char *>(from) + d * dtype_bytes(dtype), dtype, elements, to.data);
        uint32_t bits[backward_chunk];
        std::memcpy(bits, to.data, sizeof(bits));
        for (const uint32_t element : bits) largest = std::max(largest, element & 0x7fffffffu);
        to.data += to.stride;
    }
    return largest < 0x7f800000u;
}

void clear_row(ChunkedRow row, int32_t count) {
    for (int32_t d = 0; d < count; d += backward_chunk) {
        std::fill(row.data, row.data + backward_chunk, 0.0f);
        row.data += row.stride;
    }
}

void store_row(ChunkedRow from, float factor, heed_dtype dtype, int32_t count, void *to) {
    for (int32_t d = 0; d < count; d += backward_chunk) {
        const int32_t elements = std::min(backward_chunk, count - d);
        float scaled[backward_chunk];
        for (int32_t c = 0; c < backward_chunk; c++) scaled[c] = factor * from.data[c];
        char *const place = static_cast<char *>(to) + d * dtype_bytes(dtype);
        if (dtype == HEED_F32 && elements == backward_chunk) {
            std::memcpy(place, scaled, sizeof(scaled));
        } else {
            store_elements(scaled, dtype, elements, place);
        }
        from.data += from.stride;
    }
}

namespace {

// The rows of a head on their way into the workspace: floats in chunks, or words of bf16 by pairs of rows.
class QueryRows {
public:
    QueryRows(const BackwardCall &call, int64_t data, int32_t count, int32_t padded)
        : layout_(call.layout), data_(call.at<float>(data)), dtype_(call.plan.problem.dtype), count_(count),
          padded_(padded) {}

    // Row `row` of all; from NULL: zeros.
    bool set(int64_t row, const char *from) {
        const int32_t block = layout_.tile->rows;
        if (!layout_.has_words()) {
            const ChunkedRow to = ChunkedRow::at(data_, row, block, padded_);
            if (from != nullptr) return load_row(from, dtype_, count_, to);
            clear_row(to, count_);
            return true;
        }
        const auto *const bits = reinterpret_cast<const uint16_t *>(from);
        const uint16_t *const before = before_;
        before_ = bits;
        if (row % 2 == 0) return true;  // with the next one
        return WordBlock::at(data_, row, block, padded_)
            .set(static_cast<int32_t>(row % block) - 1, before, bits, count_, padded_);
    }

private:
    const BackwardLayout &layout_;
    float *const data_;
    const heed_dtype dtype_;
    const int32_t count_, padded_;
    const uint16_t *before_ = nullptr;
};

}  // namespace

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
    QueryRows q_rows(call, layout.q, p.head_dim, layout.head_dim);
    QueryRows dout_rows(call, layout.dout, p.head_dim_v, layout.head_dim_v);
    double sink_grad = 0;
    for (int64_t i = 0; i < sequence.num_rows; i++) {
        const int64_t token = sequence.place.first_q + i;
        const bool exists = i < sequence.place.q_len;
        if (exists) {
            lse[i] = static_cast<const float *>(call.args.lse.data)[index_of(views.lse, batch, head, token)];
        }
        const bool empty = !exists || lse[i] == -std::numeric_limits<float>::infinity();
        const char *q_from = nullptr, *dout_from = nullptr, *out_from = nullptr;
        if (!empty) {
            const int64_t index = index_of(views.out, batch, token, head);
            q_from = element_at(call.args.q, p.dtype, index_of(views.q, batch, token, head));
            dout_from = element_at(call.gradients.dout, p.dtype, index);
            out_from = element_at(call.args.out, p.dtype, index);
        }
        const bool finite_q = q_rows.set(first + i, q_from), finite_dout = dout_rows.set(first + i, dout_from);
        if (!finite_q || !finite_dout) special[i / block] = 1;
        if (empty) {
            lse[i] = no_key;
            delta[i] = 0;
            continue;
        }
        delta[i] = dot_with_out(dout_from, out_from, p.dtype, p.head_dim_v);
        if (p.has_sink) {
            const double sink = call.args.sink[head];
            sink_grad -= std::exp(sink - static_cast<double>(lse[i])) * static_cast<double>(delta[i]);
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
    const int32_t block = layout.tile->rows, width = layout.head_dim;
    const int64_t batch = p.q_storage == HEED_Q_VARLEN ? 0 : sequence.place.index, first = call.row_of(sequence, head);
    float *const sums = call.at<float>(layout.dq);
    for (int64_t r = 1; r < layout.num_ranges; r++) {
        float *const sum = sums + first * width;
        const float *const part = sum + r * layout.num_rows * width;
        for (int64_t n = 0; n < sequence.num_rows * width; n++) sum[n] += part[n];
    }
    const auto store = [&](int64_t i, ChunkedRow row) {
        const int64_t index = index_of(view, batch, sequence.place.first_q + i, head);
        store_row(row, p.scale, p.dtype, p.head_dim,
                  static_cast<char *>(call.gradients.dq.data) + index * dtype_bytes(p.dtype));
    };
    for (int64_t begin = 0; begin < sequence.place.q_len; begin += block) {
        // The rows of a block by columns go through its place for q, which nobody reads any more.
        float *const rows = call.at<float>(layout.q) + (first + begin) * width;
        if (layout.has_words()) transpose_block(sums + (first + begin) * width, block, width, rows);
        for (int64_t i = begin; i < std::min<int64_t>(begin + block, sequence.place.q_len); i++) {
            store(i, layout.has_words() ? ChunkedRow{rows + (i - begin) * width, backward_chunk}
                                        : ChunkedRow::at(sums, first + i, block, width));
        }
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
