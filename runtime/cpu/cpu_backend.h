// The CPU: each operation on the threads of its call.
#pragma once

#include "backend.h"

namespace heed {

struct CpuBackend final : Backend {
    const char *name() const override;
    heed_status find_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel) const override;
    heed_status check_launches(std::initializer_list<Op> ops, heed_dtype dtype) const override;
    heed_status check_serves_host_memory(const char *function) const override;
    heed_status check_library() const override;
    uint32_t isas(const heed_problem &problem) const override;
    bool may_run(Isa isa) const override;
    const char *why_not_run(Isa isa) const override;
    int32_t largest_head_dim() const override;
    heed_status find_kernels_around(heed_plan *plan) const override;
    heed_status check_limits(const heed_plan &plan) const override;
    bool needs_no_kernel(const heed_problem &problem, const ProblemViews &views) const override;
    Size lay_out(const heed_plan &plan, WorkspaceLayout *layout) const override;
    void widen(heed_problem *problem) const override;
    std::string describe(const heed_plan &plan) const override;
    heed_status execute(const heed_plan &plan, const heed_args &args) const override;
    heed_status add_probs_workspace(const heed_plan &plan, const heed_args &args, MemoryRanges *ranges) const override;
    heed_status attention_probs(const ProbsCall &call) const override;
    heed_status backward_workspace(const heed_plan &plan, int64_t *bytes) const override;
    heed_status attention_backward(const heed_plan &plan, const heed_args &args,
                                   const heed_gradients &gradients) const override;
    int64_t most_backward_bytes(const heed_problem &largest) const override;
    heed_status find_rotation(heed_dtype dtype, Rotation *rotation) const override;
    heed_status rope(const heed_rope_args &args, const RopeCall &call) const override;
    OpMemory list_memory(const heed_execution &execution) const override;
    heed_status prepare_append(const heed_kv_append_args &args, AppendCall *call) const override;
    heed_status append(const heed_kv_append_args &args, const AppendCall &call) const override;
    heed_status add_copy_workspace(const heed_execution *execution, MemoryRanges *ranges) const override;
    heed_status find_copy_memory(const heed_execution *execution, int64_t least, CopyCall *call) const override;
    heed_status copy(const CopyCall &call, const heed_execution *execution) const override;
    heed_status merge_states(const heed_merge_args &args, const MergeCall &call) const override;
    heed_status pack(const char *name, const LayerDevice &device, const LinearSource &source,
                     heed_linear_weights *packed) const override;
    WeightSource unpacked(const heed_linear_weights &weights) const override;
    int64_t linear_scratch(const heed_linear_weights &weights, int64_t num_rows) const override;
    heed_status linear(const LinearCall &call, float *scratch) const override;
    int64_t linear_gradient_scratch(const LinearRows &rows) const override;
    heed_status input_gradient(const StepRun &run, const LinearRows &rows, const void *dy, const WeightSource &weight,
                               void *dx) const override;
    heed_status weight_gradient(const StepRun &run, const LinearRows &rows, const void *dy, const void *x,
                                void *dweight) const override;
    int64_t column_sums_scratch(int64_t rows, int64_t columns) const override;
    heed_status add_column_sums(const StepRun &run, const void *dy, const ColumnRange &range, void *to,
                                heed_dtype to_dtype) const override;
    heed_status add_elements(const StepRun &run, const void *from, int64_t count, void *to,
                             heed_dtype to_dtype) const override;
    heed_status add_matrix(const StepRun &run, const void *from, int32_t dim_out, int32_t dim_in,
                           const WeightSource &place, heed_dtype to_dtype) const override;
    heed_status open(heed_dtype dtype, cuda::ScopedContext *context, LayerDevice *device) const override;
    heed_status enter(const LayerDevice &device, cuda::ScopedContext *context) const override;
    heed_status enter_call(const LayerDevice &device, const heed_execution &execution,
                           cuda::ScopedContext *context) const override;
    heed_status allocate(const char *name, const LayerDevice &device, int64_t bytes,
                         OwnedMemory *memory) const override;
    heed_status fill(const void *from, int64_t bytes, OwnedMemory *memory) const override;
    heed_status clear(const heed_execution &execution, void *data, int64_t bytes) const override;
    int64_t workspace_share(int64_t bytes) const override;
    heed_status take_temporary(const Temporary &temporary, int64_t bytes, HeapArray<char> *heap,
                               char **memory) const override;
    heed_status take_lists(const char *name, int64_t bytes, HeapArray<char> *lists) const override;
    Parts &list_parts(Parts &workspace, Parts &lists) const override;
    void take_scratch(const heed_layer &layer, const LayerSizes &sizes, Parts *parts,
                      LayerMemory *memory) const override;
    heed_status norm(const StepRun &run, const NormRows &norm) const override;
    heed_status norm_gradients(const StepRun &run, const NormGradient &norm) const override;
    heed_status clip_gradient(const StepRun &run, const void *x, int64_t count, float limit,
                              void *gradient) const override;
    heed_status key_padding(const heed_execution &execution, const KeyPadding &padding) const override;
    heed_status copy_rows(const StepRun &run, const MatrixMove &move) const override;
    heed_status copy_visible(const StepRun &run, const HiddenRows &rows, char *to) const override;
    heed_status copy_weight(const StepRun &run, const heed_linear_weights &weights, char *to) const override;
    heed_status add_view(const StepRun &run, const void *from, const View &view, void *to) const override;
};

}  // namespace heed
