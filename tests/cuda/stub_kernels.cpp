#include "tests/cuda/stub_kernels.h"

#include <HalideRuntime.h>
#include <HalideRuntimeCuda.h>

#include <type_traits>
#include <utility>

namespace stub {

Behaviour behaviour;
thread_local Call last_call;
SequencesCall last_sequences;
MergeCall last_merge;
std::vector<heed::Op> operations;

const char *const cpu_kernel = "attention_prefill_f32_dany_contiguous_x86_64";
const char *const f16_kernel = "attention_prefill_f16_d64_contiguous_sm80";
const char *const f16_wide = "attention_prefill_f16_dany_alibi_bias_mask_softcap_contiguous_sm80";
const char *const f32_kernel = "attention_prefill_f32_dany_alibi_bias_mask_softcap_contiguous_sm75";
const char *const decode_kernel = "attention_decode_f16_d128_gqa_paged_sm80";

namespace {

using heed::Capability;
using heed::Isa;
using heed::Kernel;
using heed::OpKernel;
using heed::Phase;

template <typename T>
const T &scalar_at(void **args, int index) {
    return *static_cast<const T *>(args[index]);
}

Buffer buffer_at(void **args, int index) {
    const auto &buffer = *static_cast<const halide_buffer_t *>(args[index]);
    Buffer result = {buffer.device, buffer.host, {}, {}};
    for (int32_t i = 0; i < buffer.dimensions; i++) {
        result.extents.push_back(buffer.dim[i].extent);
        result.strides.push_back(buffer.dim[i].stride);
    }
    return result;
}

void record(const char *kernel, void **args) {
    Call call = {};
    call.kernel = kernel;
#define HEED_RECORD_BUFFER(name, element, dims) call.name = buffer_at(args, heed::arg_##name);
#define HEED_RECORD_VALUE(name, type) call.name = scalar_at<type>(args, heed::arg_##name);
    HEED_ATTENTION(HEED_RECORD_BUFFER, HEED_RECORD_VALUE, HEED_RECORD_BUFFER)
    last_call = call;
}

// As a generated function: every buffer is asked to the device, one launch; parameters are a scalar and a buffer.
int launch(void *user_context, void **state, const char *image, halide_buffer_t *out, int shared_bytes, int times) {
    int code = halide_cuda_initialize_kernels(user_context, state, image, 1);
    if (code == 0) code = halide_copy_to_device(user_context, out, halide_cuda_device_interface());
    int64_t number = 42;
    size_t sizes[] = {8, 8, 0};
    void *arguments[] = {&number, out, nullptr};
    int8_t is_buffer[] = {0, 1, 0};
    for (int i = 0; code == 0 && i < times; i++) {
        code = halide_cuda_run(user_context, *state, "attention", 3, 2, 1, 128, 1, 1, shared_bytes, sizes, arguments,
                               is_buffer);
    }
    halide_cuda_finalize_kernels(user_context, *state);
    return code;
}

template <int index>
int attention(void **args);

int compute_nothing(void **) { return 0; }

// The scalars of the contract, and the buffer.
int write_metadata(void **args) {
    static void *state = nullptr;
    constexpr int num_scalars = heed::num_metadata_words / 2 + 2;
    size_t sizes[num_scalars + 2] = {};
    void *arguments[num_scalars + 2] = {};
    int8_t is_buffer[num_scalars + 2] = {};
    for (int i = 0; i <= num_scalars; i++) {
        sizes[i] = i == heed::num_metadata_words / 2 ? 4 : 8;
        arguments[i] = args[1 + i];
    }
    is_buffer[num_scalars] = 1;
    void *user_context = scalar_at<void *>(args, 0);
    halide_cuda_initialize_kernels(user_context, &state, "write_metadata", 1);
    return halide_cuda_run(user_context, state, "put", 1, 1, 1, 1, 1, 1, 0, sizes, arguments, is_buffer);
}

#define HEED_RECORD_NEXT_BUFFER(name, element, dims) call.name = buffer_at(args, next++);
#define HEED_RECORD_NEXT_VALUE(name, type) call.name = scalar_at<type>(args, next++);

int sequences(void **args) {
    static void *state = nullptr;
    SequencesCall &call = last_sequences;
    int next = 1;
    HEED_CUDA_SEQUENCES(HEED_RECORD_NEXT_BUFFER, HEED_RECORD_NEXT_VALUE, HEED_RECORD_NEXT_BUFFER)
    auto *named = static_cast<halide_buffer_t *>(args[next - 1]);
    return launch(scalar_at<void *>(args, 0), &state, "sequences", named, 0, 1);
}

int merge_splits(void **args) {
    static void *state = nullptr;
    MergeCall &call = last_merge;
    int next = 1;
    HEED_CUDA_MERGE_SPLITS(HEED_RECORD_NEXT_BUFFER, HEED_RECORD_NEXT_VALUE, HEED_RECORD_NEXT_BUFFER)
    auto *named = static_cast<halide_buffer_t *>(args[next - 1]);
    return launch(scalar_at<void *>(args, 0), &state, "merge_splits", named, 0, 1);
}

// An operation that launches once.
template <heed::Op op>
int operation(void **args) {
    static void *state = nullptr;
    operations.push_back(op);
    halide_buffer_t none = {};
    none.device_interface = halide_cuda_device_interface();
    return launch(scalar_at<void *>(args, 0), &state, "operation", &none, 0, 1);
}

constexpr uint32_t wide = heed::feature_bias | heed::feature_mask | heed::feature_softcap | heed::feature_alibi;
constexpr auto prefill = Phase::prefill;
constexpr auto contiguous = HEED_KV_CONTIGUOUS, paged = HEED_KV_PAGED;

const Kernel kernels[] = {
    {cpu_kernel, prefill, HEED_F32, HEED_F32, 0, 0, wide, contiguous, Isa::x86_64, 8, 32, 1024, "stub",
     compute_nothing},
    {f16_kernel, prefill, HEED_F16, HEED_F16, 64, 64, 0, contiguous, Capability::sm80, row_block, 64, 0, "stub",
     attention<1>},
    {f16_wide, prefill, HEED_F16, HEED_F16, 0, 0, wide, contiguous, Capability::sm80, row_block, 64, 0, "stub",
     attention<2>},
    {decode_kernel, Phase::decode, HEED_F16, HEED_F16, 128, 128, heed::feature_gqa, paged, Capability::sm80, 16, 64, 0,
     "stub", attention<3>},
    {f32_kernel, prefill, HEED_F32, HEED_F32, 0, 0, wide, contiguous, Capability::sm75, row_block, 64, 0, "stub",
     attention<4>},
};

const OpKernel ops[] = {
    {"write_metadata_sm75", heed::Op::write_metadata, HEED_I32, HEED_I32, Capability::sm75, write_metadata},
    {"sequences_sm75", heed::Op::sequences, HEED_I32, HEED_I32, Capability::sm75, sequences},
    {"merge_splits_f16_sm75", heed::Op::merge_splits, HEED_F16, HEED_F16, Capability::sm75, merge_splits},
    {"rope_f16_sm75", heed::Op::rope, HEED_F16, HEED_F16, Capability::sm75, operation<heed::Op::rope>},
    {"kv_append_f16_kvi8_sm75", heed::Op::kv_append, HEED_F16, HEED_I8, Capability::sm75,
     operation<heed::Op::kv_append>},
    {"kv_copy_u8_sm75", heed::Op::kv_copy, HEED_U8, HEED_U8, Capability::sm75, operation<heed::Op::kv_copy>},
    {"attention_probs_f16_sm75", heed::Op::attention_probs, HEED_F16, HEED_F16, Capability::sm75,
     operation<heed::Op::attention_probs>},
    {"attention_backward_f16_sm75", heed::Op::attention_backward, HEED_F16, HEED_F16, Capability::sm75,
     operation<heed::Op::attention_backward>},
    {"attention_backward_bias_f16_sm75", heed::Op::attention_backward_bias, HEED_F16, HEED_F16, Capability::sm75,
     operation<heed::Op::attention_backward_bias>},
    {"attention_backward_sinks_f16_sm75", heed::Op::attention_backward_sinks, HEED_F16, HEED_F16, Capability::sm75,
     operation<heed::Op::attention_backward_sinks>},
    {"attention_backward_stats_f16_sm75", heed::Op::attention_backward_stats, HEED_F16, HEED_F16, Capability::sm75,
     operation<heed::Op::attention_backward_stats>},
    {"attention_backward_queries_f16_d64_sm80", heed::Op::attention_backward_queries, HEED_F16, HEED_F16,
     Capability::sm80, operation<heed::Op::attention_backward_queries>, 0, 64},
    {"attention_backward_keys_f16_d128_sm80", heed::Op::attention_backward_keys, HEED_F16, HEED_F16, Capability::sm80,
     operation<heed::Op::attention_backward_queries>, 0, 128},
    {"attention_backward_keys_f16_d64_sm80", heed::Op::attention_backward_keys, HEED_F16, HEED_F16, Capability::sm80,
     operation<heed::Op::attention_backward_keys>, 0, 64},
    {"attention_backward_keys_plain_f16_d64_sm80", heed::Op::attention_backward_keys_plain, HEED_F16, HEED_F16,
     Capability::sm80, operation<heed::Op::attention_backward_keys_plain>, 0, 64},
};

template <int index>
int attention(void **args) {
    static void *state = nullptr;
    record(kernels[index].name, args);
    const int code =
        launch(scalar_at<void *>(args, heed::arg_user_context), &state, kernels[index].name,
               static_cast<halide_buffer_t *>(args[heed::arg_out]), behaviour.shared_bytes, behaviour.launches);
    return behaviour.code != 0 ? behaviour.code : code;
}

}  // namespace
}  // namespace stub

extern "C" const heed::KernelTable heed_kernel_table = {stub::kernels, std::extent_v<decltype(stub::kernels)>,
                                                        stub::ops, std::extent_v<decltype(stub::ops)>};
