#include <algorithm>

#include "runtime/backends.h"
#include "runtime/cuda/call.h"
#include "runtime/cuda/op_session.h"
#include "runtime/cuda/sequence_table.h"
#include "runtime/inputs.h"
#include "runtime/kernel_call.h"
#include "runtime/ops/probs_call.h"
#include "runtime/status.h"
#include "runtime/validate.h"

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

void set_storage(const KernelCall &call, cuda::AttentionProbsArguments *arguments) {
    arguments->k_scale = cuda::address_of(call.k_scale.data);
    arguments->k_scale_batch = cuda::stride_of(call.k_scale, 2);
    arguments->k_scale_token = cuda::stride_of(call.k_scale, 1);
    arguments->k_scale_head = cuda::stride_of(call.k_scale, 0);
    arguments->page_size = call.page_size;
    arguments->page_table = cuda::address_of(call.page_table.data);
    arguments->page_table_row = cuda::stride_of(call.page_table, 1);
    arguments->table_pages = call.page_table.extent[0];
    arguments->num_pages = call.k.extent[3];
}

// Sequences [first, first + count).
heed_status launch(const ProbsCall &probs, const KernelCall &call, int32_t first, int32_t count,
                   cuda::OpSession *session) {
    const heed_problem &p = probs.plan.problem;
    const heed_tensor &out = probs.out;
    const bool no_queries = needs_no_kernel(p, probs.plan.views);
    const auto stride = [&](int axis) {
        return static_cast<uint64_t>(probs.probs.stride[axis] * dtype_bytes(out.dtype));
    };
    cuda::AttentionProbsArguments arguments;
    arguments.sequences = count;
    arguments.first_sequence = first;
    set_storage(call, &arguments);
    arguments.tasks = no_queries || call.uniform != 0 ? 0 : cuda::address_of(call.tasks.data);
    arguments.uniform_q_len = no_queries ? 0 : p.max_q_len;
    arguments.mode = probs.mode;
    arguments.as_f32 = out.dtype == HEED_F32;
    set_scores(p, call, &arguments);
    arguments.sink = cuda::address_of(call.sink.data);
    arguments.sink_head = cuda::stride_of(call.sink, 0);
    arguments.device_status = call.device_status;
    arguments.out = cuda::address_of(out.data);
    arguments.out_batch = stride(0);
    arguments.out_head = stride(1);
    arguments.out_row = stride(2);
    arguments.named = cuda::named(out.data);
    return session->launch(arguments);
}

}  // namespace

bool CudaBackend::multiplies_probs(const ProbsCall &) const { return false; }

heed_status CudaBackend::add_probs_workspace(const heed_plan &plan, const heed_args &args, MemoryRanges *ranges) const {
    return add_workspace(plan, args, ranges);
}

heed_status CudaBackend::attention_probs(const ProbsCall &probs) const {
    const heed_plan &plan = probs.plan;
    const heed_args &args = probs.args;
    const heed_problem &p = plan.problem;
    heed_status status = check_size(p);
    if (!status) status = check_sequences(plan, args);
    cuda::OpSession session;
    heed_execution execution = {};
    execution.stream = args.stream;
    if (!status) status = session.open(execution, Op::attention_probs, p.dtype, p.kv_dtype);
    if (status) return status;
    if (!needs_no_kernel(p, plan.views)) status = put_sequences(plan, args, &session.launches());
    const KernelCall call = make_cuda_call(plan, args);
    const auto most = static_cast<int32_t>(std::min<int64_t>(max_rows / (int64_t{p.num_heads} * p.max_q_len), p.batch));
    for (int64_t first = 0; first < p.batch && !status; first += most) {
        const auto count = static_cast<int32_t>(std::min<int64_t>(p.batch - first, most));
        status = launch(probs, call, static_cast<int32_t>(first), count, &session);
    }
    return status;
}

}  // namespace heed
