#include "cuda/op_session.h"

#include "kernel_registry.h"
#include "ops/op_rows.h"
#include "status.h"

namespace heed::cuda {

heed_status OpSession::open(const heed_execution &execution, Op op, heed_dtype dtype, heed_dtype kv_dtype) {
    if (const heed_status status = find_cuda_op_row(op, dtype, kv_dtype, &row_)) return status;
    const char *reason = nullptr;
    const Driver *const driver = find_driver(&reason);
    if (driver == nullptr) return fail(HEED_NO_DEVICE, "execution.device is HEED_CUDA; %s", reason);
    const auto stream = static_cast<Stream>(execution.stream);
    if (const heed_status status = context_.enter(*driver, stream)) return status;
    const int required = required_capability(row_->isa), capability = context_.capability();
    if (capability < required) {
        return fail(HEED_UNSUPPORTED, "%s needs compute capability %d.%d; the chip has %d.%d", row_->name,
                    required / 10, required % 10, capability / 10, capability % 10);
    }
    launches_.emplace(Launches{*driver, stream, context_.id()});
    return HEED_OK;
}

}  // namespace heed::cuda
