#include "cuda/probs.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "cuda/op_session.h"
#include "cuda/sequence_table.h"
#include "make_call.h"
#include "status.h"
#include "validate.h"

namespace heed {
namespace {

// A launch numbers its rows with 32 bits.
constexpr int64_t max_rows = int64_t{1} << 30;

heed_status check_size(const heed_problem &p) {
    int64_t rows = 0;
    if (checked_mul(p.num_heads, p.max_q_len, &rows) && rows <= max_rows) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "num_heads * max_q_len is %d * %d; heed_attention_probs on CUDA serves up to 2^30",
                p.num_heads, p.max_q_len);
}

// Sequences [first, first + count).
heed_status launch(const heed_plan &plan, const KernelCall &call, int32_t first, int32_t count, heed_probs_mode mode,
                   const heed_tensor &out, const View &probs, cuda::OpSession *session) {
    const heed_problem &p = plan.problem;
    const bool no_queries = needs_no_kernel(p, plan.views);
    const int32_t uniform = no_queries || call.uniform, uniform_q_len = no_queries ? 0 : p.max_q_len,
                  symmetric = p.alibi_symmetric, as_f32 = out.dtype == HEED_F32, form = mode;
    uint64_t words[5] = {call.device_status, cuda::address_of(out.data)};
    for (int i = 0; i < 3; i++) words[2 + i] = static_cast<uint64_t>(probs.stride[i] * dtype_bytes(out.dtype));

    const KernelBuffer written = cuda::named(out.data);
    OpArgument arguments[max_op_arguments];
    OpArgument *next = arguments;
    for (const KernelBuffer *x : {&call.q, &call.k, &call.k_scale, &call.mask, &call.bias, &call.bias_16, &call.sink,
                                  &call.alibi_slopes, &call.page_table, &call.tasks}) {
        *next++ = *x;
    }
    for (const int32_t *x : std::initializer_list<const int32_t *>{
             &count, &first, &p.max_q_len, &p.max_kv_len, &call.page_size, &uniform, &uniform_q_len,
             &call.visible_begin, &call.visible_end, &call.position_offset, &form, &call.mask_form, &call.bias_form,
             &symmetric, &as_f32}) {
        *next++ = *x;
    }
    *next++ = call.scale;
    *next++ = call.softcap;
    next = std::copy(std::begin(words), std::end(words), next);
    *next++ = written;
    return cuda::launch_op(session->row(), arguments, static_cast<int>(next - arguments), session->launches());
}

}  // namespace

heed_status probs_on_cuda(const heed_plan &plan, const heed_args &args, heed_probs_mode mode, const heed_tensor &out,
                          const View &probs) {
    const heed_problem &p = plan.problem;
    heed_status status = check_size(p);
    if (!status) status = check_sequences(plan, args);
    cuda::OpSession session;
    heed_execution execution = {};
    execution.stream = args.stream;
    if (!status) status = session.open(execution, Op::attention_probs, p.dtype, p.kv_dtype);
    if (status) return status;
    if (!needs_no_kernel(p, plan.views)) status = put_sequences(plan, args, &session.launches());
    const KernelCall call = make_call(plan, args);
    const auto most = static_cast<int32_t>(std::min<int64_t>(max_rows / (int64_t{p.num_heads} * p.max_q_len), p.batch));
    for (int64_t first = 0; first < p.batch && !status; first += most) {
        const auto count = static_cast<int32_t>(std::min<int64_t>(p.batch - first, most));
        status = launch(plan, call, static_cast<int32_t>(first), count, mode, out, probs, &session);
    }
    return status;
}

}  // namespace heed
