#include "tests/api/stub_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/validate.h"

namespace stub {
namespace {

constexpr float negative_infinity = -std::numeric_limits<float>::infinity();

int64_t offset_of(const halide_buffer_t &buffer, std::initializer_list<int32_t> index) {
    int64_t offset = 0;
    int32_t dimension = 0;
    for (int32_t i : index) offset += int64_t{i} * buffer.dim[dimension++].stride;
    return offset;
}

template <typename T>
T &element(const halide_buffer_t &buffer, std::initializer_list<int32_t> index) {
    return reinterpret_cast<T *>(buffer.host)[offset_of(buffer, index)];
}

// Elements along d of a tensor, times a factor. 16-bit ones are read and written as bf16 by every kernel: the runtime
// does not look into them.
struct Vector {
    const halide_buffer_t &buffer;
    int64_t offset;  // of element 0
    float factor = 1;

    float operator[](int32_t d) const {
        const int64_t index = offset + int64_t{d} * buffer.dim[0].stride;
        if (buffer.type.bits == 8) return static_cast<float>(reinterpret_cast<int8_t *>(buffer.host)[index]) * factor;
        if (buffer.type.bits == 32) return reinterpret_cast<float *>(buffer.host)[index];
        const uint32_t bits = uint32_t{reinterpret_cast<uint16_t *>(buffer.host)[index]} << 16;
        float value = 0;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }
};

float load(const halide_buffer_t &buffer, std::initializer_list<int32_t> index) {
    return Vector{buffer, offset_of(buffer, index)}[0];
}

void store(const halide_buffer_t &buffer, std::initializer_list<int32_t> index, float value) {
    if (buffer.type.bits == 32) {
        element<float>(buffer, index) = value;
        return;
    }
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    element<uint16_t>(buffer, index) = static_cast<uint16_t>(bits >> 16);
}

// A task, and what its rows share.
class TaskRows {
public:
    TaskRows(const heed::Kernel &kernel, void **args, int32_t task)
        : args_(args), task_(&element<int32_t>(buffer(heed::arg_tasks), {0, task})),
          group_(kernel.phase == heed::Phase::decode
                     ? buffer(heed::arg_q).dim[1].extent / buffer(heed::arg_k).dim[1].extent
                     : 1),
          first_(field(heed::task_first_row)),
          end_(std::min(first_ + kernel.row_block, field(heed::task_q_len) * group_)) {}

    void compute(float *weights) const {
        for (int32_t row = first_; row < end_; row++) {
            compute_row(weights, row / group_, field(heed::task_head) + row % group_);
        }
    }

private:
    const halide_buffer_t &buffer(heed::Argument index) const { return buffer_at(args_, index); }
    int32_t field(heed::TaskField index) const { return task_[index]; }

    // Key or value j. As in the generated kernels no page id leaves the pool.
    Vector key(heed::Argument tensor, heed::Argument scale, int32_t j) const {
        const int32_t page_size = scalar_at<int32_t>(args_, heed::arg_page_size), head = field(heed::task_kv_head);
        const halide_buffer_t &keys = buffer(tensor);
        int32_t page = field(heed::task_kv_batch), slot = field(heed::task_first_key) + j;
        if (page_size > 0) {
            page = element<volatile int32_t>(buffer(heed::arg_page_table), {j / page_size, field(heed::task_sequence)});
            page = std::clamp(page, 0, keys.dim[3].extent - 1);
            slot = j % page_size;
        }
        return {keys, offset_of(keys, {0, head, slot, page}),
                keys.type.bits == 8 ? load(buffer(scale), {head, slot, page}) : 1};
    }

    float bias_at(int32_t j, int32_t i, int32_t h) const {
        const int32_t form = scalar_at<int32_t>(args_, heed::arg_bias_form);
        if (form == heed::no_bias) return 0;
        return load(buffer(form == heed::bias_of_f32 ? heed::arg_bias : heed::arg_bias_16),
                    {j, i, h, field(heed::task_sequence)});
    }

    bool visible(int32_t j, int32_t i, int32_t h) const {
        if (j < std::max(0, i + field(heed::task_visible_begin))) return false;
        if (j >= std::min(field(heed::task_kv_len), i + field(heed::task_visible_end))) return false;
        if (bias_at(j, i, h) == negative_infinity) return false;
        const int32_t form = scalar_at<int32_t>(args_, heed::arg_mask_form);
        if (form == heed::no_mask) return true;
        const bool is_true = element<uint8_t>(buffer(heed::arg_mask), {j, i, h, field(heed::task_sequence)}) != 0;
        return is_true == (form == heed::mask_true_attends);
    }

    float logit(int32_t j, int32_t i, int32_t h) const {
        const halide_buffer_t &queries = buffer(heed::arg_q);
        const int32_t token = field(heed::task_first_q) + i, batch = field(heed::task_q_batch);
        const Vector q = {queries, offset_of(queries, {0, h, token, batch})};
        const Vector k = key(heed::arg_k, heed::arg_k_scale, j);
        const int32_t head_dim = queries.dim[0].extent;
        float dot = 0;
        for (int32_t d = 0; d < head_dim; d++) dot += q[d] * k[d];
        float x = dot * scalar_at<float>(args_, heed::arg_scale);
        const float softcap = scalar_at<float>(args_, heed::arg_softcap);
        if (softcap > 0) x = softcap * std::tanh(x / softcap);
        auto distance = static_cast<float>(j - (int64_t{i} + field(heed::task_position_offset)));
        if (scalar_at<uint8_t>(args_, heed::arg_alibi_symmetric) != 0) distance = -std::abs(distance);
        return x + bias_at(j, i, h) + load(buffer(heed::arg_alibi_slopes), {h}) * distance;
    }

    // Row i of head h.
    void compute_row(float *weights, int32_t i, int32_t h) const {
        const int32_t kv_len = field(heed::task_kv_len);
        const float sink = load(buffer(heed::arg_sink), {h});
        float row_max = sink;
        for (int32_t j = 0; j < kv_len; j++) {
            weights[j] = visible(j, i, h) ? logit(j, i, h) : negative_infinity;
            row_max = std::max(row_max, weights[j]);
        }
        const bool empty = row_max == negative_infinity;
        float row_sum = empty ? 0 : std::exp(sink - row_max);
        for (int32_t j = 0; j < kv_len; j++) {
            weights[j] = empty ? 0 : std::exp(weights[j] - row_max);
            row_sum += weights[j];
        }
        const halide_buffer_t &out = buffer(heed::arg_out);
        const int32_t token = field(heed::task_first_q) + i, batch = field(heed::task_q_batch);
        const int32_t head_dim_v = out.dim[0].extent;
        std::array<float, heed::max_head_dim> sums = {};
        for (int32_t j = 0; j < kv_len; j++) {
            if (!(weights[j] > 0)) continue;
            const Vector v = key(heed::arg_v, heed::arg_v_scale, j);
            for (int32_t d = 0; d < head_dim_v; d++) sums[static_cast<size_t>(d)] += weights[j] * v[d];
        }
        for (int32_t d = 0; d < head_dim_v; d++)
            store(out, {d, h, token, batch}, empty ? 0 : sums[static_cast<size_t>(d)] / row_sum);
        store(buffer(heed::arg_lse), {0, h, token, batch}, row_max + std::log(row_sum));
    }

    void **const args_;
    const int32_t *const task_;
    const int32_t group_, first_, end_;
};

}  // namespace

void compute_task(const heed::Kernel &kernel, void **args, int32_t task, float *weights) {
    TaskRows(kernel, args, task).compute(weights);
}

}  // namespace stub
