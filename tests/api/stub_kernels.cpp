#include "stub_kernels.h"

#include <HalideRuntime.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernel.h"

namespace stub {

Behaviour behaviour;
Call last_call;
std::atomic<int64_t> num_calls{0};

const char *const prefill_d64 = "attention_prefill_f32_d64_contiguous_x86_64";
const char *const prefill_any = "attention_prefill_f32_dany_contiguous_x86_64";
const char *const prefill_any_wide = "attention_prefill_f32_dany_bias_mask_contiguous_x86_64";
const char *const decode_d64 = "attention_decode_f32_d64_contiguous_x86_64";
const char *const decode_any = "attention_decode_f32_dany_bias_mask_contiguous_x86_64";
const char *const heap_row = "attention_prefill_f32_dany_bias_mask_heap_contiguous_x86_64";
const char *const foreign_row = "attention_prefill_f32_d64_contiguous_foreign";
const char *const f16_row = "attention_prefill_f16_d64_contiguous_x86_64";

namespace {

using heed::Isa;
using heed::Kernel;
using heed::Phase;

const halide_buffer_t &buffer_at(void **args, int index) { return *static_cast<const halide_buffer_t *>(args[index]); }

template <typename T>
T scalar_at(void **args, int index) {
    return *static_cast<const T *>(args[index]);
}

Buffer describe(const halide_buffer_t &buffer) {
    Buffer result = {buffer.host, {}, {}};
    for (int32_t i = 0; i < buffer.dimensions; i++) {
        result.extents.push_back(buffer.dim[i].extent);
        result.strides.push_back(buffer.dim[i].stride);
    }
    return result;
}

template <typename T>
T &element(const halide_buffer_t &buffer, std::initializer_list<int32_t> index) {
    int64_t offset = 0;
    int32_t dimension = 0;
    for (int32_t i : index) offset += int64_t{i} * buffer.dim[dimension++].stride;
    return reinterpret_cast<T *>(buffer.host)[offset];
}

void record(const char *row, void **args) {
    Call call = {};
    call.row = row;
    call.q = describe(buffer_at(args, heed::arg_q));
    call.k = describe(buffer_at(args, heed::arg_k));
    call.v = describe(buffer_at(args, heed::arg_v));
    call.mask = describe(buffer_at(args, heed::arg_mask));
    call.bias = describe(buffer_at(args, heed::arg_bias));
    call.seq = describe(buffer_at(args, heed::arg_seq));
    call.out = describe(buffer_at(args, heed::arg_out));
    call.lse = describe(buffer_at(args, heed::arg_lse));
    const auto *seq = static_cast<const int32_t *>(call.seq.data);
    call.seq_values.assign(seq, seq + int64_t{heed::num_seq_fields} * call.seq.extents[1]);
    call.scale = scalar_at<float>(args, heed::arg_scale);
    call.split_len = scalar_at<int32_t>(args, heed::arg_split_len);
    call.num_splits = scalar_at<int32_t>(args, heed::arg_num_splits);
    call.mask_true_hides = scalar_at<uint8_t>(args, heed::arg_mask_true_hides);
    call.first_mask = *static_cast<const uint8_t *>(call.mask.data);
    call.first_bias = *static_cast<const float *>(call.bias.data);
    last_call = call;
}

struct Closure {
    void **args;
};

bool visible(void **args, int32_t b, int32_t h, int32_t i, int32_t j) {
    const int32_t *seq = &element<int32_t>(buffer_at(args, heed::arg_seq), {0, b});
    if (j < std::max(0, i + seq[heed::seq_visible_begin])) return false;
    if (j >= std::min(seq[heed::seq_kv_len], i + seq[heed::seq_visible_end])) return false;
    const bool element_true = element<uint8_t>(buffer_at(args, heed::arg_mask), {j, i, h, b}) != 0;
    return element_true != (scalar_at<uint8_t>(args, heed::arg_mask_true_hides) != 0);
}

// Row (b, h, i), weights in `weights`.
void compute_row(void **args, float *weights, int32_t b, int32_t h, int32_t i) {
    const halide_buffer_t &q = buffer_at(args, heed::arg_q), &k = buffer_at(args, heed::arg_k),
                          &v = buffer_at(args, heed::arg_v), &out = buffer_at(args, heed::arg_out);
    const int32_t g = h / (q.dim[1].extent / k.dim[1].extent), kv_len = k.dim[2].extent;
    float row_max = -std::numeric_limits<float>::infinity(), row_sum = 0;
    for (int32_t j = 0; j < kv_len; j++) {
        weights[j] = -std::numeric_limits<float>::infinity();
        if (!visible(args, b, h, i, j)) continue;
        float dot = 0;
        for (int32_t d = 0; d < q.dim[0].extent; d++)
            dot += element<float>(q, {d, h, i, b}) * element<float>(k, {d, g, j, b});
        weights[j] = dot * scalar_at<float>(args, heed::arg_scale) +
                     element<float>(buffer_at(args, heed::arg_bias), {j, i, h, b});
        row_max = std::max(row_max, weights[j]);
    }
    const bool empty = std::isinf(row_max);
    for (int32_t j = 0; j < kv_len; j++) {
        weights[j] = empty ? 0 : std::exp(weights[j] - row_max);
        row_sum += weights[j];
    }
    for (int32_t d = 0; d < v.dim[0].extent; d++) {
        float sum = 0;
        for (int32_t j = 0; j < kv_len; j++) {
            if (weights[j] > 0) sum += weights[j] * element<float>(v, {d, g, j, b});
        }
        element<float>(out, {d, h, i, b}) = empty ? 0 : sum / row_sum;
    }
    element<float>(buffer_at(args, heed::arg_lse), {0, h, i, b}) = row_max + std::log(row_sum);
}

// One task is one (batch, head).
int run_task(void *user_context, int task, uint8_t *closure) {
    void **args = reinterpret_cast<Closure *>(closure)->args;
    const halide_buffer_t &q = buffer_at(args, heed::arg_q);
    if (behaviour.inside) behaviour.inside(task);
    const auto weight_bytes = sizeof(float) * static_cast<size_t>(buffer_at(args, heed::arg_k).dim[2].extent);
    void *weights = halide_malloc(user_context, weight_bytes);
    if (weights == nullptr) return halide_error_code_out_of_memory;
    void *extra = nullptr;
    if (behaviour.scratch_bytes > 0) {
        extra = halide_malloc(user_context, static_cast<size_t>(behaviour.scratch_bytes));
        if (extra == nullptr) {
            halide_error(user_context, "Out of memory (halide_malloc returned nullptr)");
            return halide_error_code_out_of_memory;
        }
        std::fill_n(static_cast<uint8_t *>(extra), behaviour.scratch_bytes, uint8_t{0xff});
    }
    const int32_t h = task % q.dim[1].extent, b = task / q.dim[1].extent;
    for (int32_t i = 0; i < q.dim[2].extent; i++) compute_row(args, static_cast<float *>(weights), b, h, i);
    halide_free(user_context, weights);  // out of order on purpose
    halide_free(user_context, extra);
    return 0;
}

int run(const char *row, void **args) {
    num_calls++;
    if (behaviour.record) record(row, args);
    void *user_context = scalar_at<void *>(args, heed::arg_user_context);
    if (behaviour.code != 0) {
        if (behaviour.message != nullptr) halide_error(user_context, behaviour.message);
        return behaviour.code;
    }
    void *root = nullptr;
    if (behaviour.root_scratch_bytes > 0) {
        const auto bytes = static_cast<size_t>(behaviour.root_scratch_bytes);
        root = halide_malloc(user_context, bytes);
        if (root == nullptr) return halide_error_code_out_of_memory;
        std::fill_n(static_cast<uint8_t *>(root), bytes, uint8_t{0x5a});
    }
    const halide_buffer_t &q = buffer_at(args, heed::arg_q);
    Closure closure = {args};
    int code = halide_do_par_for(user_context, run_task, 0, q.dim[1].extent * q.dim[3].extent,
                                 reinterpret_cast<uint8_t *>(&closure));
    const auto *bytes = static_cast<const uint8_t *>(root);
    if (root != nullptr &&
        !std::all_of(bytes, bytes + behaviour.root_scratch_bytes, [](uint8_t x) { return x == 0x5a; })) {
        code = halide_error_code_internal_error;  // a task got the root's memory
    }
    halide_free(user_context, root);
    return code;
}

constexpr uint32_t wide = heed::feature_bias | heed::feature_mask;
constexpr heed_kv_storage contiguous = HEED_KV_CONTIGUOUS;

// One function per row: a kernel gets nothing but its arguments.
template <int index>
int kernel(void **args);

const Kernel rows[] = {
    {prefill_any, Phase::prefill, HEED_F32, HEED_F32, 0, 0, 0, contiguous, Isa::x86_64, 8, kv_block, scratch_per_thread,
     "stub", kernel<0>},
    {prefill_d64, Phase::prefill, HEED_F32, HEED_F32, 64, 64, 0, contiguous, Isa::x86_64, 8, kv_block,
     scratch_per_thread, "stub", kernel<1>},
    {prefill_any_wide, Phase::prefill, HEED_F32, HEED_F32, 0, 0, wide, contiguous, Isa::x86_64, 8, kv_block,
     scratch_per_thread, "stub", kernel<2>},
    {decode_d64, Phase::decode, HEED_F32, HEED_F32, 64, 64, 0, contiguous, Isa::x86_64, 1, kv_block, scratch_per_thread,
     "stub", kernel<3>},
    {decode_any, Phase::decode, HEED_F32, HEED_F32, 0, 0, wide, contiguous, Isa::x86_64, 1, kv_block,
     scratch_per_thread, "stub", kernel<4>},
    {heap_row, Phase::prefill, HEED_F32, HEED_F32, 0, 0, wide, contiguous, Isa::x86_64, 1, kv_block, -1, "stub",
     kernel<5>},
    {foreign_row, Phase::prefill, HEED_F32, HEED_F32, 64, 64, 0, contiguous, static_cast<Isa>(20), 1, kv_block,
     scratch_per_thread, "stub", kernel<6>},
    {f16_row, Phase::prefill, HEED_F16, HEED_F16, 64, 64, 0, contiguous, Isa::x86_64, 8, kv_block, scratch_per_thread,
     "stub", kernel<7>},
};

template <int index>
int kernel(void **args) {
    return run(rows[index].name, args);
}

}  // namespace
}  // namespace stub

extern "C" const heed::KernelTable heed_kernel_table = {stub::rows, std::extent_v<decltype(stub::rows)>};
