// Which op kernel serves a call: the best ISA of the machine.
#pragma once

#include "runtime/kernel.h"

struct heed_linear_weights;

namespace heed {

// *kernel is the kernel, or NULL with UNSUPPORTED and a sentence that names the kernels that were looked at.
heed_status find_op_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel);
// One with the score function; "" for none.
heed_status find_scored_kernel(Op op, heed_dtype dtype, const char *score_mod, const OpKernel **kernel);

// The same for CUDA, where kernels for several chips exist the newest; NO_DEVICE.
heed_status find_cuda_op_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel);

// Whether the kernel takes dot products of bf16 where these are slow and kernels are not limited to them: floats then
// take 0.6 of the time.
bool floats_are_faster(const OpKernel &kernel);

// The register tiles of linear for the best ISA: fills tiles, row_tiles, sums, in_place, num_tiles, columns
// and k_step.
heed_status find_linear_kernels(heed_dtype dtype, heed_linear_weights *weights);

// Panels that a kernel of linear or attention_scores takes at once.
inline int32_t panels_at_once(const OpKernel &tile) { return linear_panels(tile.rows, tile.columns); }

// linear_rows that packs rows of dtype for a tile of linear or attention_scores; NULL without.
const OpKernel *find_linear_rows(const OpKernel &tile, heed_dtype dtype);

// attention_products with the tile of an attention_scores; NULL without.
const OpKernel *find_whole_tiles(const OpKernel &tile);

// Kernels of linear_in_place, of whole panels and, where there is one, of half panels.
struct InPlaceKernels {
    const OpKernel *wide = nullptr, *narrow = nullptr;
    bool are_there() const { return wide != nullptr; }
};

// Those that read the panels of a tile of linear or attention_scores.
InPlaceKernels find_in_place(const OpKernel &tile, heed_dtype dtype);

// Kernels of its device above the target are passed over from now on, in the whole process: so that tests run
// every kernel. highest_cpu_target, highest_cuda_target: none.
constexpr KernelTarget highest_cpu_target = Isa::amx, highest_cuda_target = Capability::sm90;
void limit_op_target(KernelTarget target);
KernelTarget highest_op_target(heed_device device);

}  // namespace heed
