#pragma once
// Kernels of operations on CUDA: as schedules/operation.h, for algorithms whose tensors are at addresses (Results). One
// launch each; most of them are bound by memory: a thread has 16 bytes of a row at a time where the addresses allow.

#include "generators/contract/cuda_arguments.h"
#include "generators/lowering/cuda/device_memory.h"
#include "generators/lowering/cuda/entry_words.h"
#include "generators/lowering/cuda/join_launches.h"
#include "generators/lowering/cuda/lanes.h"
#include "generators/lowering/cuda/unsigned_indices.h"
#include "schedules/operation.h"

namespace heed {

constexpr int cuda_op_threads = 256;  // of a block
constexpr int linear_blocks = 3;      // 80 registers and, on tensor cores, 168
constexpr int linear_threads = 256, linear_core_threads = 128;
constexpr int merge_splits_threads = 64, metadata_threads = MetadataWords::entries, sequences_threads = 128;
constexpr int backward_sums_threads = 128, backward_tensor_threads = 128;
constexpr int probs_threads = 128, probs_blocks = 4;          // of an SM: 128 registers
constexpr int column_sums_columns = 32, transpose_side = 32;  // of a block
constexpr int backward_bias_shared_bytes = 4 * cuda_op_threads, backward_sinks_shared_bytes = 4 * cuda_op_threads;
constexpr int column_sums_shared_bytes = 4 * column_sums_columns * cuda_op_threads / 32;
constexpr int transpose_shared_bytes = 4 * transpose_side * (transpose_side + 1);
constexpr int kv_append_blocks = 4, merge_splits_blocks = 24;  // of an SM: 64 registers, 40

// Each of the kernel's parts makes one launch before they are joined. of_tiles: passes that the schedule needs for
// tiles in shared memory and registers.
template <typename Kernel>
Halide::Module compile_cuda(const OpSpec &spec, Kernel &kernel, int threads = cuda_op_threads,
                            const std::function<void(Passes &)> &of_tiles = nullptr) {
    kernel.named.gpu_single_thread();  // what it starts from is nothing, but Halide's checks see a loop
    Passes passes;
    passes.add<DistributeLanes>();
    passes.add_exactly<JoinLaunches>(kernel.parts, "parts of a kernel", kernel.named.name(), threads);
    if (of_tiles) of_tiles(passes);
    passes.add<LowerEntryWords>();
    passes.add<UnsignedIndices>();
    passes.add<LowerDeviceMemory>();
    OpSpec narrow = spec;  // places in shared memory and registers have 32 bits
    if (of_tiles) narrow.target = spec.target.without_feature(Halide::Target::LargeBuffers);
    return compile(narrow, kernel, passes).module;
}

// The part that looks for faults, (key, sequence): each thread has one key.
inline void schedule_faults(Halide::Stage part, const Halide::RDom &faults, int threads) {
    Halide::RVar block{"block"}, thread{"thread"};
    part.split(faults.x, block, thread, threads, Halide::TailStrategy::GuardWithIf)
        .fuse(block, faults.y, block)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .never_partition_all();
}

// The makers, of sm75 and later chips.
Halide::Module add_cuda(const OpSpec &spec);
Halide::Module attention_probs_cuda(const OpSpec &spec);
int probs_shared_bytes();
Halide::Module backward_bias_cuda(const OpSpec &spec);
Halide::Module backward_tensor_cuda(const OpSpec &spec, BackwardSide side, bool is_plain);
int backward_tensor_shared_bytes(BackwardSide side, int head_dim, bool is_plain);
Halide::Module backward_sinks_cuda(const OpSpec &spec);
Halide::Module backward_stats_cuda(const OpSpec &spec);
Halide::Module backward_sums_cuda(const OpSpec &spec);
int backward_sums_shared_bytes();
Halide::Module clip_cuda(const OpSpec &spec);
Halide::Module clip_gradient_cuda(const OpSpec &spec);
Halide::Module column_sums_cuda(const OpSpec &spec);
Halide::Module copy_rows_cuda(const OpSpec &spec);
Halide::Module key_padding_cuda(const OpSpec &spec);
Halide::Module kv_append_cuda(const OpSpec &spec);
Halide::Module kv_copy_cuda(const OpSpec &spec);
Halide::Module layer_norm_cuda(const OpSpec &spec);
Halide::Module layer_norm_gradient_cuda(const OpSpec &spec);
Halide::Module linear_cuda(const OpSpec &spec);
int linear_shared_bytes();
Halide::Module linear_cores_cuda(const OpSpec &spec);
int linear_cores_shared_bytes();
Halide::Module merge_splits_cuda(const OpSpec &spec);
Halide::Module merge_states_cuda(const OpSpec &spec);
Halide::Module rope_cuda(const OpSpec &spec);
Halide::Module sequences_cuda(const OpSpec &spec);
Halide::Module transpose_cuda(const OpSpec &spec);
Halide::Module write_metadata_cuda(const OpSpec &spec);

}  // namespace heed
