#include "runtime/cuda/op_session.h"

#include <algorithm>

#include "runtime/cuda/op_kernels.h"
#include "runtime/status.h"

namespace heed::cuda {

heed_status OpSession::open(const heed_execution &execution, Op op, heed_dtype dtype, heed_dtype kv_dtype, int limit,
                            const char *score_mod) {
    if (const heed_status status = best_cuda_op_kernel(op, dtype, kv_dtype, limit, &kernel_, score_mod)) return status;
    const Driver *driver = nullptr;
    if (const heed_status status = open_driver("execution.device", &driver)) return status;
    const auto stream = static_cast<Stream>(execution.stream);
    if (const heed_status status = context_.enter(*driver, stream)) return status;
    launches_.emplace(Launches{*driver, stream, context_.id()});
    return best_cuda_op_kernel(op, dtype, kv_dtype, std::min(limit, context_.capability()), &kernel_, score_mod);
}

heed_status OpSession::find(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel,
                            const char *score_mod) const {
    return best_cuda_op_kernel(op, dtype, kv_dtype, context_.capability(), kernel, score_mod);
}

}  // namespace heed::cuda
