// What depends on the device: one interface, which cpu/ and cuda/ implement. Callers have checked all that does not.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "runtime/kernel.h"

namespace heed {

namespace cuda {
struct CUctx_st;
struct Driver;
}  // namespace cuda
template <typename T>
class HeapArray;
class MemoryRanges;
class OpMemory;
class Parts;
enum class CopiesOfHeads : uint8_t;
struct AppendCall;
struct ColumnRange;
struct CopyCall;
struct HiddenRows;
struct KeyPadding;
struct LayerDevice;
struct LayerMemory;
struct LayerSizes;
struct LinearCall;
struct LinearRows;
struct LinearSource;
struct MatrixMove;
struct MergeCall;
struct NormGradient;
struct NormRows;
struct ProblemViews;
struct ProbsCall;
struct RopeCall;
struct Rotation;
struct Size;
struct StepRun;
struct TaskShape;
struct Temporary;
struct View;
struct WeightSource;
struct WorkspaceLayout;

// Memory that a backend allocated, or what keeps a device current; the end is the backend's.
using OwnedMemory = std::shared_ptr<void>;
using DeviceScope = std::shared_ptr<void>;

struct Backend {
#define HEED_FUNCTION virtual
#define HEED_OF_DEVICE = 0
#include "runtime/backend_functions.inc"
#undef HEED_OF_DEVICE
#undef HEED_FUNCTION

protected:
    ~Backend() = default;
};

const Backend &backend_of(heed_device device);
inline const Backend &backend_of(const heed_execution *execution) {
    return backend_of(execution == nullptr ? HEED_CPU : execution->device);
}

// Where a layer, its caches and its calls compute.
struct LayerDevice {
    heed_device kind = HEED_CPU;
    const cuda::Driver *driver = nullptr;  // CUDA, as what follows
    cuda::CUctx_st *context = nullptr;
    uint64_t context_id = 0;
    int capability = 0;  // of its chip, 10 * major + minor

    const Backend &backend() const { return backend_of(kind); }
};

}  // namespace heed
