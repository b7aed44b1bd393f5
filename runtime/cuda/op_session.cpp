#include "cuda/op_session.h"

#include <algorithm>

#include "cuda/op_rows.h"
#include "status.h"

namespace heed::cuda {

heed_status OpSession::open(const heed_execution &execution, Op op, heed_dtype dtype, heed_dtype kv_dtype, int limit) {
    if (const heed_status status = best_cuda_op_row(op, dtype, kv_dtype, limit, &row_)) return status;
    const char *reason = nullptr;
    const Driver *const driver = find_driver(&reason);
    if (driver == nullptr) return fail(HEED_NO_DEVICE, "execution.device is HEED_CUDA; %s", reason);
    const auto stream = static_cast<Stream>(execution.stream);
    if (const heed_status status = context_.enter(*driver, stream)) return status;
    launches_.emplace(Launches{*driver, stream, context_.id()});
    return best_cuda_op_row(op, dtype, kv_dtype, std::min(limit, context_.capability()), &row_);
}

heed_status OpSession::find(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **row) const {
    return best_cuda_op_row(op, dtype, kv_dtype, context_.capability(), row);
}

}  // namespace heed::cuda
