// Dense layers on CUDA: a block of threads has a tile of results.
//
//   for each step of k
//     x_tile, w_tile: from tensors to shared memory
//     sum += x_tile x w_tile, in registers
//
// Tensor cores (f16 and bf16 whose rows are whole chunks of 16 bytes): 128 x 64 results of four warps, each of which
// has 32 rows; steps of 32, copied one ahead into a second buffer. With both buffers (32 KiB in all) three blocks fit
// an SM that has 100 KiB, as many as fit its registers; steps of 64 would leave one. 86 instructions for the 32
// products of a step (sm_80). CUDA cores (any type and alignment): 64 x 64 results, 4 x 4 a thread; steps of 16. 8
// floats that a thread loads from shared memory make 16 products: 344 instructions for the 256 of a step.
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/tile_products.h"
#include "generators/ops/linear_device.h"
#include "schedules/cuda/operation.h"
#include "schedules/cuda/tile_product.h"

namespace heed {

using namespace Halide;

namespace {

constexpr ProductTile tile_of_tensor_cores = {128, 64, 8, 4, false};
constexpr ProductTile tile_of_cuda_cores = {64, 64, 1, 16, true};

// All but the tiles of x and W. What a thread has of a step is left as loops, which the result names.
std::vector<VarOrRVar> schedule_results(LinearDevice &kernel, Deal deal) {
    Stage results = kernel.named.update();
    deal_out(results, deal(results, kernel.all.x, kernel.all.y), {}, {kernel.all.z, kernel.all.w});
    results.gpu_blocks(kernel.all.z, kernel.all.w);
    for (Func &f : std::vector<Func>{kernel.out_rows, kernel.of_columns}) {
        const Var line = f.args()[0];
        f.compute_at(kernel.named, kernel.all.z)
            .store_in(MemoryType::Stack)
            .bound_extent(line, line.name() == kernel.row.name() ? kernel.tile.rows : kernel.tile.columns)
            .bound_extent(f.args()[1], 1)
            .gpu_threads(line);
    }
    return schedule_sum(kernel, {kernel.named, kernel.all.z}, deal);
}

}  // namespace

Module linear_cores_cuda(const OpSpec &spec) {
    LinearDevice kernel(spec.type(), tile_of_tensor_cores, true);
    schedule_results(kernel, in_fragments);
    schedule_copies(kernel, kernel.x_tile, kernel.tile.rows, linear_core_threads);
    schedule_copies(kernel, kernel.w_tile, kernel.tile.columns, linear_core_threads);
    return compile_cuda(spec, kernel, linear_core_threads, [&](Passes &passes) {
        passes.add_exactly<PipelineCopies>(1, "loops of linear that copy ahead");
        passes.add_exactly<LowerTileProducts>(1, "products of linear", linear_core_threads);
        passes.add_exactly<PrivateRegisters>(1, "arrays of linear in registers");
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(linear_cores_shared_bytes());
    });
}

Module linear_cuda(const OpSpec &spec) {
    LinearDevice kernel(spec.type(), tile_of_cuda_cores, false);
    unroll(kernel.sum.update(), schedule_results(kernel, in_squares));
    schedule_floats(kernel, kernel.x_tile, kernel.tile.rows, linear_threads);
    schedule_floats(kernel, kernel.w_tile, kernel.tile.columns, linear_threads);
    return compile_cuda(spec, kernel, linear_threads, [&](Passes &passes) {
        passes.add_exactly<PrivateRegisters>(1 + 2 * kernel.tile.chunks, "arrays of linear in registers");
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(linear_shared_bytes());
    });
}

namespace {

int bytes_of_linear(const ProductTile &tile, int buffers) {
    const int of_places = 8 * tile.rows + (8 + 4) * tile.columns;
    return of_places + buffers * (shared_bytes_of(tile, tile.rows) + shared_bytes_of(tile, tile.columns));
}

}  // namespace

int linear_cores_shared_bytes() { return bytes_of_linear(tile_of_tensor_cores, 2); }
int linear_shared_bytes() { return bytes_of_linear(tile_of_cuda_cores, 1); }

}  // namespace heed
