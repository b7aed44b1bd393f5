#include "runtime/backends.h"

namespace heed {
namespace {

constexpr CpuBackend cpu_backend{};
constexpr CudaBackend cuda_backend{};

}  // namespace

const Backend &backend_of(heed_device device) {
    if (device == HEED_CUDA) return cuda_backend;
    return cpu_backend;
}

}  // namespace heed
