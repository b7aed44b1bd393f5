// The two implementations of Backend, whose functions cpu/ and cuda/ define.
#pragma once

#include "runtime/backend.h"

namespace heed {

#define HEED_FUNCTION
#define HEED_OF_DEVICE override

// Each operation on the threads of its call.
struct CpuBackend final : Backend {
#include "runtime/backend_functions.inc"
};

// Each operation on the stream of its call, which nothing waits for.
struct CudaBackend final : Backend {
#include "runtime/backend_functions.inc"
};

#undef HEED_OF_DEVICE
#undef HEED_FUNCTION

}  // namespace heed
