// What depends on the device: one interface, which cpu/ and cuda/ implement. Callers have checked all that does not.
#pragma once

#include <initializer_list>
#include <string>

#include "kernel.h"

namespace heed {

namespace cuda {
class ScopedContext;
}
template <typename T>
class HeapArray;
class MemoryRanges;
class OpMemory;
class Parts;
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
struct OwnedMemory;
struct ProblemViews;
struct ProbsCall;
struct RopeCall;
struct Rotation;
struct Size;
struct StepRun;
struct Temporary;
struct View;
struct WeightSource;
struct WorkspaceLayout;

struct Backend {
    // In sentences.
    virtual const char *name() const = 0;

    // ---- Kernels

    // The kernel of an operation that suits the machine best.
    virtual heed_status find_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel) const = 0;
    // Whether the kernel library has what steps launch on CUDA; on the CPU they are part of the runtime.
    virtual heed_status check_launches(std::initializer_list<Op> ops, heed_dtype dtype) const = 0;
    // NO_DEVICE where the API function works in host memory alone.
    virtual heed_status check_serves_host_memory(const char *function) const = 0;

    // ---- Plans

    // NO_DEVICE where the kernel library has no attention for the device.
    virtual heed_status check_library() const = 0;
    // Bit 1 << isa for each that the problem's machine has.
    virtual uint32_t isas(const heed_problem &problem) const = 0;
    // Whether the machine of a layer may run kernels of an ISA of this device.
    virtual bool may_run(Isa isa) const = 0;
    // Why this machine cannot run them, "" when it can. Lives as long as the library.
    virtual const char *why_not_run(Isa isa) const = 0;
    // Of kernels for any head dims.
    virtual int32_t largest_head_dim() const = 0;
    // The kernels that run before and after the plan's.
    virtual heed_status find_kernels_around(heed_plan *plan) const = 0;
    virtual heed_status check_limits(const heed_plan &plan) const = 0;
    virtual bool needs_no_kernel(const heed_problem &problem, const ProblemViews &views) const = 0;
    virtual Size lay_out(const heed_plan &plan, WorkspaceLayout *layout) const = 0;
    // Gives the problem what takes the most workspace.
    virtual void widen(heed_problem *problem) const = 0;
    // The end of the line about the workspace, and lines of the device's own.
    virtual std::string describe(const heed_plan &plan) const = 0;

    // ---- Attention

    // Pointers are checked.
    virtual heed_status execute(const heed_plan &plan, const heed_args &args) const = 0;
    // The workspace, where probabilities need it.
    virtual heed_status add_probs_workspace(const heed_plan &plan, const heed_args &args,
                                            MemoryRanges *ranges) const = 0;
    virtual heed_status attention_probs(const ProbsCall &call) const = 0;
    virtual heed_status backward_workspace(const heed_plan &plan, int64_t *bytes) const = 0;
    // Everything but the metadata's values is checked.
    virtual heed_status attention_backward(const heed_plan &plan, const heed_args &args,
                                           const heed_gradients &gradients) const = 0;
    // Of every dense problem that is at most as large as this one in batch and max_q_len; -1 when 64 bits do not hold
    // it, 0 where backward calls take none of a layer's workspace.
    virtual int64_t most_backward_bytes(const heed_problem &largest) const = 0;

    // ---- Operations

    // The kernel, as far as rope() and append() do not look for it.
    virtual heed_status find_rotation(heed_dtype dtype, Rotation *rotation) const = 0;
    virtual heed_status rope(const heed_rope_args &args, const RopeCall &call) const = 0;
    // What is left of the execution's workspace for lists that the host reads.
    virtual OpMemory list_memory(const heed_execution &execution) const = 0;
    // Fills tokens_per_segment and quantise.
    virtual heed_status prepare_append(const heed_kv_append_args &args, AppendCall *call) const = 0;
    virtual heed_status append(const heed_kv_append_args &args, const AppendCall &call) const = 0;
    // The workspace, where copies need it.
    virtual heed_status add_copy_workspace(const heed_execution *execution, MemoryRanges *ranges) const = 0;
    // Memory for the sources to save: `least` bytes for a token of each.
    virtual heed_status find_copy_memory(const heed_execution *execution, int64_t least, CopyCall *call) const = 0;
    virtual heed_status copy(const CopyCall &call, const heed_execution *execution) const = 0;
    virtual heed_status merge_states(const heed_merge_args &args, const MergeCall &call) const = 0;

    // ---- Dense layers

    // Weights as linear() reads them, in memory of their own; `bias` [dim_out] or NULL.
    virtual heed_status pack(const char *name, const LayerDevice &device, const LinearSource &source,
                             heed_linear_weights *packed) const = 0;
    // What packed weights hold, in their own memory.
    virtual WeightSource unpacked(const heed_linear_weights &weights) const = 0;
    // Floats of scratch for num_rows rows of dim_in.
    virtual int64_t linear_scratch(const heed_linear_weights &weights, int64_t num_rows) const = 0;
    // Pieces that clip are packed.
    virtual heed_status linear(const LinearCall &call, float *scratch) const = 0;
    // Elements of StepRun::scratch that the next two need.
    virtual int64_t linear_gradient_scratch(const LinearRows &rows) const = 0;
    // dx [rows, dim_in] = dy W.
    virtual heed_status input_gradient(const StepRun &run, const LinearRows &rows, const void *dy,
                                       const WeightSource &weight, void *dx) const = 0;
    // dweight [dim_out, dim_in] = dy^T x, packed.
    virtual heed_status weight_gradient(const StepRun &run, const LinearRows &rows, const void *dy, const void *x,
                                        void *dweight) const = 0;
    // Floats of StepRun::scratch that the next needs.
    virtual int64_t column_sums_scratch(int64_t rows, int64_t columns) const = 0;
    // to[n] += sum of column n of the range of dy over the rows, in double, on CUDA in f32; `to` is of to_dtype.
    virtual heed_status add_column_sums(const StepRun &run, const void *dy, const ColumnRange &range, void *to,
                                        heed_dtype to_dtype) const = 0;
    // to[i] += from[i]; sums round to to_dtype.
    virtual heed_status add_elements(const StepRun &run, const void *from, int64_t count, void *to,
                                     heed_dtype to_dtype) const = 0;
    // to += from [dim_out, dim_in], packed; an element of `to` lies where `place`, of memory of to_dtype, says.
    virtual heed_status add_matrix(const StepRun &run, const void *from, int32_t dim_out, int32_t dim_in,
                                   const WeightSource &place, heed_dtype to_dtype) const = 0;

    // ---- Memory

    // The device of the calling thread becomes a layer's, and is current while `context` lives.
    virtual heed_status open(heed_dtype dtype, cuda::ScopedContext *context, LayerDevice *device) const = 0;
    // Makes it current again.
    virtual heed_status enter(const LayerDevice &device, cuda::ScopedContext *context) const = 0;
    // That of a call, which must be the layer's.
    virtual heed_status enter_call(const LayerDevice &device, const heed_execution &execution,
                                   cuda::ScopedContext *context) const = 0;
    // Once; not initialised. The device is current.
    virtual heed_status allocate(const char *name, const LayerDevice &device, int64_t bytes,
                                 OwnedMemory *memory) const = 0;
    // From host memory to its start.
    virtual heed_status fill(const void *from, int64_t bytes, OwnedMemory *memory) const = 0;
    virtual heed_status clear(const heed_execution &execution, void *data, int64_t bytes) const = 0;
    // How much of a temporary is of a call's workspace: all, or nothing where it is of the heap.
    virtual int64_t workspace_share(int64_t bytes) const = 0;
    // Memory of `bytes`: of `heap`, or of the temporary's part of the workspace.
    virtual heed_status take_temporary(const Temporary &temporary, int64_t bytes, HeapArray<char> *heap,
                                       char **memory) const = 0;
    // Memory for lists that the host reads: of the workspace, where the host reads it, or of `lists`.
    virtual heed_status take_lists(const char *name, int64_t bytes, HeapArray<char> *lists) const = 0;
    virtual Parts &list_parts(Parts &workspace, Parts &lists) const = 0;
    // What the steps of a layer need beside their tensors.
    virtual void take_scratch(const heed_layer &layer, const LayerSizes &sizes, Parts *parts,
                              LayerMemory *memory) const = 0;

    // ---- Steps of layers

    // What these take stands in ops/steps.h.
    virtual heed_status norm(const StepRun &run, const NormRows &norm) const = 0;
    virtual heed_status norm_gradients(const StepRun &run, const NormGradient &norm) const = 0;
    // Clears the gradient where x has reached the limit.
    virtual heed_status clip_gradient(const StepRun &run, const void *x, int64_t count, float limit,
                                      void *gradient) const = 0;
    virtual heed_status key_padding(const heed_execution &execution, const KeyPadding &padding) const = 0;
    virtual heed_status copy_rows(const StepRun &run, const MatrixMove &move) const = 0;
    // Zeros in the place of hidden rows.
    virtual heed_status copy_visible(const StepRun &run, const HiddenRows &rows, char *to) const = 0;
    // Packed weights, row-major.
    virtual heed_status copy_weight(const StepRun &run, const heed_linear_weights &weights, char *to) const = 0;
    // to += from, both of run.dtype and placed as `view` says.
    virtual heed_status add_view(const StepRun &run, const void *from, const View &view, void *to) const = 0;

protected:
    ~Backend() = default;
};

const Backend &backend_of(heed_device device);
inline const Backend &backend_of(const heed_execution *execution) {
    return backend_of(execution == nullptr ? HEED_CPU : execution->device);
}

}  // namespace heed
