#include "tests/api/stub_kernels.h"

#include <HalideRuntime.h>

#include <algorithm>
#include <type_traits>

#include "tests/api/stub_attention.h"

namespace stub {

Behaviour behaviour;
Call last_call;
std::atomic<int64_t> num_calls{0};

const char *const prefill_d64 = "attention_prefill_f32_d64_contiguous_x86_64";
const char *const prefill_any = "attention_prefill_f32_dany_contiguous_x86_64";
const char *const prefill_any_wide = "attention_prefill_f32_dany_bias_mask_contiguous_x86_64";
const char *const prefill_paged = "attention_prefill_f32_dany_features_paged_x86_64";
const char *const decode_d64 = "attention_decode_f32_d64_contiguous_x86_64";
const char *const decode_any = "attention_decode_f32_dany_bias_mask_contiguous_x86_64";
const char *const decode_whole = "attention_decode_f32_d128_contiguous_x86_64_whole";
const char *const decode_whole_16 = "attention_decode_bf16_d128_paged_x86_64_whole";
const char *const decode_paged = "attention_decode_f32_dany_features_gqa_paged_x86_64";
const char *const heap_kernel = "attention_prefill_f32_dany_bias_mask_heap_contiguous_x86_64";
const char *const foreign_kernel = "attention_prefill_f32_d64_contiguous_foreign";
const char *const f16_kernel = "attention_prefill_f16_d64_contiguous_x86_64";
const char *const bf16_kernel = "attention_prefill_bf16_dany_features_paged_x86_64";
const char *const int8_kernel = "attention_prefill_f32_kvi8_dany_features_paged_x86_64";

namespace {

using heed::Isa;
using heed::Kernel;
using heed::Phase;

Buffer describe(const halide_buffer_t &buffer) {
    Buffer result = {buffer.host, {}, {}, buffer.type.code, buffer.type.bits};
    for (int32_t i = 0; i < buffer.dimensions; i++) {
        result.extents.push_back(buffer.dim[i].extent);
        result.strides.push_back(buffer.dim[i].stride);
    }
    return result;
}

template <typename T>
void copy_first(const Buffer &buffer, T *value) {
    *value = *static_cast<const T *>(buffer.data);
}

void record_arguments(void **args, Call *call) {
#define HEED_RECORD_BUFFER(name, element, dims) call->name = describe(buffer_at(args, heed::arg_##name));
#define HEED_RECORD_VALUE(name, type) call->name = scalar_at<type>(args, heed::arg_##name);
    HEED_ATTENTION(HEED_RECORD_BUFFER, HEED_RECORD_VALUE, HEED_RECORD_BUFFER)
    copy_first(call->mask, &call->first_mask);
    copy_first(call->bias, &call->first_bias);
    copy_first(call->bias_16, &call->first_bias_16);
    copy_first(call->sink, &call->first_sink);
    copy_first(call->alibi_slopes, &call->first_slope);
    copy_first(call->page_table, &call->first_page);
    const auto *task = static_cast<const int32_t *>(call->tasks.data);
    call->task_table.resize(static_cast<size_t>(call->tasks.extents[1]));
    for (Task &line : call->task_table) {
        std::copy(task, task + heed::num_task_fields, line.begin());
        task += call->tasks.strides[1];
    }
}

void record(const char *kernel, void **args) {
    Call call = {};
    call.kernel = kernel;
    record_arguments(args, &call);
    last_call = call;
}

struct Closure {
    const Kernel *kernel;
    void **args;
};

int run_task(void *user_context, int task, uint8_t *closure) {
    const auto [kernel, args] = *reinterpret_cast<Closure *>(closure);
    if (behaviour.inside) behaviour.inside(task);
    const auto max_kv_len = static_cast<size_t>(scalar_at<int32_t>(args, heed::arg_max_kv_len));
    void *weights = halide_malloc(user_context, sizeof(float) * max_kv_len);
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
    compute_task(*kernel, args, task, static_cast<float *>(weights));
    halide_free(user_context, weights);  // out of order on purpose
    halide_free(user_context, extra);
    return 0;
}

int run(const Kernel &kernel, void **args) {
    num_calls++;
    if (behaviour.record) record(kernel.name, args);
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
    Closure closure = {&kernel, args};
    int code = halide_do_par_for(user_context, run_task, 0, buffer_at(args, heed::arg_tasks).dim[1].extent,
                                 reinterpret_cast<uint8_t *>(&closure));
    const auto *bytes = static_cast<const uint8_t *>(root);
    if (root != nullptr &&
        !std::all_of(bytes, bytes + behaviour.root_scratch_bytes, [](uint8_t x) { return x == 0x5a; })) {
        code = halide_error_code_internal_error;  // a task got the root's memory
    }
    halide_free(user_context, root);
    return code;
}

constexpr Isa foreign = static_cast<Isa>(20);  // no machine has it

// Fails as told, or keeps all elements of its block.
int fill_dropout_mask(void **args) {
    void *user_context = scalar_at<void *>(args, 0);
    if (behaviour.code != 0) {
        if (behaviour.message != nullptr) halide_error(user_context, behaviour.message);
        return behaviour.code;
    }
    const halide_buffer_t &block = buffer_at(args, 6);
    for (int32_t i = 0; i < block.dim[1].extent; i++) {
        std::fill_n(block.host + int64_t{i} * block.dim[1].stride, block.dim[0].extent, uint8_t{1});
    }
    return 0;
}

constexpr heed::OpKernel ops[] = {
    {"dropout_mask_u8_x86_64", heed::Op::dropout_mask, HEED_U8, HEED_U8, Isa::x86_64, fill_dropout_mask},
    {"rope_f32_foreign", heed::Op::rope, HEED_F32, HEED_F32, foreign, nullptr},
};

constexpr uint32_t wide = heed::feature_bias | heed::feature_mask;
constexpr uint32_t every = wide | heed::feature_softcap | heed::feature_alibi | heed::feature_dropout;
constexpr heed_dtype f32 = HEED_F32, f16 = HEED_F16, bf16 = HEED_BF16, i8 = HEED_I8;

// One function per kernel: a kernel gets nothing but its arguments.
template <int index>
int kernel(void **args);

constexpr Kernel make_kernel(const char *name, Phase phase, heed_dtype dtype, heed_dtype kv_dtype, int32_t head_dim,
                             uint32_t features, heed_kv_storage storage, int32_t row_block, int (*call)(void **)) {
    return {name,    phase,       dtype,     kv_dtype, head_dim,           head_dim, features,
            storage, Isa::x86_64, row_block, kv_block, scratch_per_thread, "stub",   call};
}

constexpr Kernel with_heap(Kernel kernel) {
    kernel.scratch_per_thread = -1;
    return kernel;
}

constexpr Kernel for_whole_keys(Kernel kernel) {
    kernel.schedule = "whole";
    return kernel;
}

constexpr Kernel of_nowhere(Kernel kernel) {
    kernel.target = foreign;
    return kernel;
}

constexpr auto prefill = Phase::prefill, decode = Phase::decode;
constexpr auto contiguous = HEED_KV_CONTIGUOUS, paged = HEED_KV_PAGED;
constexpr int32_t rows8 = prefill_row_block, rows4 = decode_paged_row_block;

const Kernel kernels[] = {
    make_kernel(prefill_any, prefill, f32, f32, 0, 0, contiguous, rows8, kernel<0>),
    make_kernel(prefill_d64, prefill, f32, f32, 64, 0, contiguous, rows8, kernel<1>),
    make_kernel(prefill_any_wide, prefill, f32, f32, 0, wide, contiguous, rows8, kernel<2>),
    make_kernel(prefill_paged, prefill, f32, f32, 0, every, paged, rows8, kernel<3>),
    make_kernel(decode_d64, decode, f32, f32, 64, 0, contiguous, 1, kernel<4>),
    make_kernel(decode_any, decode, f32, f32, 0, wide, contiguous, 1, kernel<5>),
    make_kernel(decode_paged, decode, f32, f32, 0, every | heed::feature_gqa, paged, rows4, kernel<6>),
    with_heap(make_kernel(heap_kernel, prefill, f32, f32, 0, wide, contiguous, 1, kernel<7>)),
    of_nowhere(make_kernel(foreign_kernel, prefill, f32, f32, 64, 0, contiguous, 1, kernel<8>)),
    make_kernel(f16_kernel, prefill, f16, f16, 64, 0, contiguous, rows8, kernel<9>),
    make_kernel(bf16_kernel, prefill, bf16, bf16, 0, every, paged, rows8, kernel<10>),
    make_kernel(int8_kernel, prefill, f32, i8, 0, every, paged, rows8, kernel<11>),
    for_whole_keys(make_kernel(decode_whole, decode, f32, f32, 128, 0, contiguous, 1, kernel<12>)),
    for_whole_keys(make_kernel(decode_whole_16, decode, bf16, bf16, 128, 0, paged, 1, kernel<13>)),
};

template <int index>
int kernel(void **args) {
    return run(kernels[index], args);
}

}  // namespace
}  // namespace stub

extern "C" const heed::KernelTable heed_kernel_table = {stub::kernels, std::extent_v<decltype(stub::kernels)>,
                                                        stub::ops, std::extent_v<decltype(stub::ops)>};
