// The arguments of an attention kernel on CUDA.
#pragma once

#include "runtime/cuda/launches.h"
#include "runtime/halide_bridge.h"
#include "runtime/kernel_call.h"
#include "runtime/plan.h"

namespace heed {

// Where the rows of out and lse are.
template <typename Arguments>
void set_rows(const KernelCall &call, Arguments *arguments) {
    arguments->out = cuda::address_of(call.out.data);
    arguments->out_batch = cuda::stride_of(call.out, 3);
    arguments->out_token = cuda::stride_of(call.out, 2);
    arguments->out_head = cuda::stride_of(call.out, 1);
    arguments->lse = cuda::address_of(call.lse.data);
    arguments->lse_batch = cuda::stride_of(call.lse, 3);
    arguments->lse_token = cuda::stride_of(call.lse, 2);
    arguments->lse_head = cuda::stride_of(call.lse, 1);
}

// What scores are made of: queries, keys, and what changes and hides logits.
template <typename Arguments>
void set_scores(const heed_problem &p, const KernelCall &call, Arguments *arguments) {
    arguments->num_heads = p.num_heads;
    arguments->num_kv_heads = p.num_kv_heads;
    arguments->head_dim = p.head_dim;
    arguments->max_q_len = p.max_q_len;
    arguments->max_kv_len = p.max_kv_len;
    arguments->visible_begin = call.visible_begin;
    arguments->visible_end = call.visible_end;
    arguments->position_offset = call.position_offset;
    set_values(LogitValues(p), arguments);
    arguments->q = cuda::address_of(call.q.data);
    arguments->q_batch = cuda::stride_of(call.q, 3);
    arguments->q_token = cuda::stride_of(call.q, 2);
    arguments->q_head = cuda::stride_of(call.q, 1);
    arguments->k = cuda::address_of(call.k.data);
    arguments->k_batch = cuda::stride_of(call.k, 3);
    arguments->k_token = cuda::stride_of(call.k, 2);
    arguments->k_head = cuda::stride_of(call.k, 1);
    arguments->mask = cuda::address_of(call.mask.data);
    arguments->mask_batch = cuda::stride_of(call.mask, 3);
    arguments->mask_head = cuda::stride_of(call.mask, 2);
    arguments->mask_row = cuda::stride_of(call.mask, 1);
    arguments->mask_key = cuda::stride_of(call.mask, 0);
    const KernelBuffer &bias = arguments->bias_form == bias_of_dtype ? call.bias_16 : call.bias;
    arguments->bias = cuda::address_of(bias.data);
    arguments->bias_batch = cuda::stride_of(bias, 3);
    arguments->bias_head = cuda::stride_of(bias, 2);
    arguments->bias_row = cuda::stride_of(bias, 1);
    arguments->bias_key = cuda::stride_of(bias, 0);
    arguments->alibi_slopes = cuda::address_of(call.alibi_slopes.data);
    arguments->slope_head = cuda::stride_of(call.alibi_slopes, 0);
}

// With the table of sequences, which put_sequences() writes. Addresses are the device's.
KernelCall make_cuda_call(const heed_plan &plan, const heed_args &args);

}  // namespace heed
