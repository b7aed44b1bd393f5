#include "halide_arguments.h"

#include <HalideRuntimeCuda.h>

#include <iterator>

namespace heed {
namespace {

halide_type_t halide_type(heed_dtype dtype) {
    switch (dtype) {
    case HEED_F32:
        return {halide_type_float, 32};
    case HEED_I32:
        return {halide_type_int, 32};
    case HEED_I8:
        return {halide_type_int, 8};
    case HEED_U8:
        return {halide_type_uint, 8};
    case HEED_F16:
    case HEED_BF16:
        return {halide_type_uint, 16};
    }
    return {};
}

}  // namespace

void HalideBuffer::set(const KernelBuffer &buffer, heed_device device) {
    for (int32_t i = 0; i < buffer.num_dims; i++) {
        dimensions[i] = halide_dimension_t(0, buffer.extent[i], buffer.stride[i]);
    }
    if (device == HEED_CUDA) {
        raw.device = reinterpret_cast<uintptr_t>(buffer.data);
        raw.device_interface = halide_cuda_device_interface();
    } else {
        raw.host = static_cast<uint8_t *>(buffer.data);
    }
    raw.type = halide_type(buffer.dtype);
    raw.dimensions = buffer.num_dims;
    raw.dim = dimensions;
}

AttentionArguments::AttentionArguments(KernelCall &call, void **user_context, heed_device device) {
    const struct {
        Argument argument;
        const KernelBuffer *buffer;
    } buffers[] = {
        {arg_q, &call.q},
        {arg_k, &call.k},
        {arg_v, &call.v},
        {arg_k_scale, &call.k_scale},
        {arg_v_scale, &call.v_scale},
        {arg_mask, &call.mask},
        {arg_bias, &call.bias},
        {arg_bias_16, &call.bias_16},
        {arg_sink, &call.sink},
        {arg_alibi_slopes, &call.alibi_slopes},
        {arg_page_table, &call.page_table},
        {arg_tasks, &call.tasks},
        {arg_states, &call.states},
    };
    static_assert(std::size(buffers) == num_buffers, "a place for each buffer");
    for (int i = 0; i < num_buffers; i++) {
        buffers_[i].set(*buffers[i].buffer, device);
        argv_[buffers[i].argument] = &buffers_[i].raw;
    }
    int next = 0;
    const auto add = [&](const KernelBuffer &buffer) {
        HalideBuffer &place = buffers_[num_buffers + next];
        place.set(buffer, device);
        argv_[arg_out + next++] = &place.raw;
    };
    for (int i = 0; i < call.num_score_buffers; i++) add(call.score_buffers[i]);
    add(call.out);
    add(call.lse);
    argv_[arg_user_context] = user_context;
    set_scalars(call);
}

void AttentionArguments::set_scalars(KernelCall &call) {
    argv_[arg_batch] = &call.batch;
    argv_[arg_max_q_len] = &call.max_q_len;
    argv_[arg_max_kv_len] = &call.max_kv_len;
    argv_[arg_scale] = &call.scale;
    argv_[arg_softcap] = &call.softcap;
    argv_[arg_split_len] = &call.split_len;
    argv_[arg_num_splits] = &call.num_splits;
    argv_[arg_page_size] = &call.page_size;
    argv_[arg_mask_form] = &call.mask_form;
    argv_[arg_bias_form] = &call.bias_form;
    argv_[arg_alibi_symmetric] = &call.alibi_symmetric;
    argv_[arg_dropout_seed] = &call.dropout_seed;
    argv_[arg_dropout_offset] = &call.dropout_offset;
    argv_[arg_dropout_threshold] = &call.dropout_threshold;
    argv_[arg_dropout_scale] = &call.dropout_scale;
    argv_[arg_uniform] = &call.uniform;
    argv_[arg_visible_begin] = &call.visible_begin;
    argv_[arg_visible_end] = &call.visible_end;
    argv_[arg_position_offset] = &call.position_offset;
    argv_[arg_device_status] = &call.device_status;
}

OpArguments::OpArguments(const OpArgument *arguments, int num_arguments, void **user_context, heed_device device) {
    argv_[0] = user_context;
    int num_buffers = 0;
    for (int i = 0; i < num_arguments; i++) {
        if (arguments[i].buffer == nullptr) {
            argv_[1 + i] = const_cast<void *>(arguments[i].scalar);
            continue;
        }
        HalideBuffer &buffer = buffers_[num_buffers++];
        buffer.set(*arguments[i].buffer, device);
        argv_[1 + i] = &buffer.raw;
    }
}

}  // namespace heed
