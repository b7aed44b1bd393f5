// The driver calls of one heed_execute, once its kernels are loaded: cuCtxGetCurrent, cuStreamGetCtx (unless stream is
// NULL), cuCtxGetId; cuLaunchKernel once for the attention kernel, and before it, unless the problem is uniform, once
// for `sequences` or once per 32 sequences for `write_metadata` (and once per 256 pages of a sequence in use), and
// after it once for `merge_splits` where there are several splits; cuCtxPushCurrent and cuCtxPopCurrent where the
// stream's context is not the current one. Nothing is allocated, copied or waited for.
#include "runtime/backends.h"
#include "runtime/cuda/call.h"
#include "runtime/cuda/contexts.h"
#include "runtime/cuda/launches.h"
#include "runtime/cuda/op_kernels.h"
#include "runtime/cuda/sequence_table.h"
#include "runtime/status.h"
#include "runtime/workspace.h"

namespace heed {
namespace {

using cuda::Launches;

// Ragged tensors have one batch index.
heed_status launch_merge(const heed_plan &plan, const KernelCall &call, Launches *launches) {
    const bool ragged = plan.problem.q_storage == HEED_Q_VARLEN;
    cuda::MergeSplitsArguments arguments;
    arguments.num_splits = call.num_splits;
    arguments.state_floats = call.states.extent[0];
    arguments.tokens = call.out.extent[2];
    arguments.num_heads = call.out.extent[1];
    arguments.rows = arguments.num_heads * arguments.tokens * (ragged ? 1 : call.out.extent[3]);
    arguments.head_dim = call.out.extent[0];
    arguments.states = cuda::address_of(call.states.data);
    arguments.sink = cuda::address_of(call.sink.data);
    set_rows(call, &arguments);
    arguments.named = cuda::named(call.out.data);
    return cuda::launch_op(*plan.merge_kernel, arguments, *launches);
}

heed_status launch_attention(const heed_plan &plan, const heed_args &args, Launches *launches) {
    const KernelCall call = make_cuda_call(plan, args);
    const heed_status status = cuda::launch_kernel(*plan.kernel, call, *launches);
    return status || plan.merge_kernel == nullptr ? status : launch_merge(plan, call, launches);
}

heed_status check_chip(const heed_plan &plan, int capability) {
    const Capability own = plan.kernel->target.capability();
    const int32_t required = required_capability(own);
    if (serves_chip(own, capability)) return HEED_OK;
    return fail(HEED_UNSUPPORTED,
                "kernel %s needs compute capability %d.%d; the chip has %d.%d (heed_problem.cuda_capability tells the "
                "plan)",
                plan.kernel->name, required / 10, required % 10, capability / 10, capability % 10);
}

}  // namespace

heed_status CudaBackend::execute(const heed_plan &plan, const heed_args &args) const {
    const heed_problem &p = plan.problem;
    if (needs_no_kernel(p, plan.views)) {
        return check_sequences(plan, args);
    }
    const cuda::Driver *driver = nullptr;
    if (const heed_status status = cuda::open_driver("device", &driver)) return status;
    const auto stream = static_cast<cuda::Stream>(args.stream);
    cuda::ScopedContext context;
    heed_status status = context.enter(*driver, stream);
    if (!status) status = check_chip(plan, context.capability());
    Launches launches = {*driver, stream, context.id()};
    if (!status) status = put_sequences(plan, args, &launches);
    return status ? status : launch_attention(plan, args, &launches);
}

}  // namespace heed
