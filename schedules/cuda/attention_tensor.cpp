// Attention on tensor cores. A block has 128 rows of queries of a head, a warp 32 of them and all columns of their
// logits and of their output, a thread what mma.m16n8k16 gives it: of each eight columns two, of each eight rows one.
// Where something changes logits half as many rows, and at most 32 keys.
//
//   q_rows, row_range: where the rows are, what they see; x_tile: the rows, from which a thread takes its elements
//   for each 64 keys that some row sees
//     w_tile, values: the next step's, from tensors to shared memory (PipelineCopies)
//     sum = x_tile x w_tile; stages: what changes logits, each where the call has it (BranchBlocks)
//     logits: what hides keys, where some row does not see all of them (BranchBlocks)
//     row_max, base, factor, weights, row_sum, in registers: maxima are exchanged in the four lanes of a row
//     state = state * factor + weights x values (SumInRegisters)
//   the same once more where the result is in doubt (RepeatLoops): values of hidden keys may be no numbers
//
// A step of f16, d64 (sm_80): 595 instructions for 128 products, without what is seldom done; 250 registers, no spills.
#include "schedules/cuda/attention_tensor.h"

#include "generators/lowering/carried.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/block_branches.h"
#include "generators/lowering/cuda/host_addresses.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/repeat_loops.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/sum_in_registers.h"
#include "generators/lowering/cuda/tile_products.h"
#include "generators/lowering/trim_loops.h"
#include "schedules/cuda/attention_stages.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int chunk = 8;  // elements of 16 bytes
constexpr int threads = 128;

// Whether a warp has 16 rows, not 32.
bool is_low(const AttentionDevice::Tile &tile) { return tile.products.rows == threads / 2; }

class TensorSchedule : DeviceStages {
public:
    explicit TensorSchedule(AttentionDevice &kernel)
        : DeviceStages(kernel, is_low(kernel.tile) ? in_low_fragments : in_fragments) {}

    // The elements of queries that are held in registers.
    std::string held;

    void apply() {
        results();
        places();
        if (kernel.config.paged) in_step(kernel.key_rows).gpu_threads(kernel.column);
        products();
        softmax();
        values();
    }

private:
    int eights() const { return is_low(tile) ? 2 : 4; }

    // Numbers of rows, each in the four lanes that have columns of it.
    void in_rows(Stage stage, const std::vector<VarOrRVar> &inner = {}) {
        const Dealt dealt = rows_in_fragments(stage, kernel.row, kernel.u, eights());
        std::vector<VarOrRVar> own = dealt.own;
        own.insert(own.end(), inner.begin(), inner.end());
        order(stage, own, {dealt.thread});
        unroll(stage.gpu_threads(dealt.thread), own);
    }
    void numbers(Func &f) {
        in_step(f, MemoryType::Register);
        in_rows(f);
    }

    void results() {
        outputs(threads);
        for (Func *f : {&kernel.results, &kernel.pair_sum, &kernel.last_sum}) {
            in_block(*f, MemoryType::Register);
            in_rows(*f);
        }
        in_block(kernel.doubts, MemoryType::Register);
        in_rows(kernel.doubts);
        in_rows(kernel.doubts.update(), {kernel.over_pairs.x, kernel.over_pairs.y});
    }

    void products() {
        TileProduct &product = kernel.product;
        schedule_sum(product, step, deal);
        if (holds_queries()) own_elements();
        schedule_copies(product, product.x_tile, tile.products.rows, threads);
        schedule_copies(product, product.w_tile, tile.products.columns, threads);
        product.x_tile.compute_at(block).store_in(MemoryType::Stack);
        product.w_tile.compute_at(step).store_in(MemoryType::Stack);
        std::vector<Func> of_logits = kernel.stages;
        of_logits.push_back(kernel.logits);
        for (Func &f : of_logits) {
            in_step(f, MemoryType::Register);
            in_tiles(f, kernel.column, kernel.row);
        }
    }

    // Whether a thread keeps the elements of queries that it has of fragments. It reads them from shared memory at each
    // step where they would leave too few registers.
    bool holds_queries() const { return tile.products.columns == 64; }
    void own_elements() {
        TileProduct &product = kernel.product;
        Func own = product.x_tile.in(product.sum);
        held = own.name();
        own.compute_at(block)
            .store_in(MemoryType::Register)
            .bound_extent(product.row, tile.products.rows)
            .bound_extent(product.k, chunk)
            .bound_extent(product.chunk, tile.products.chunks)
            .bound_extent(product.step, 1)
            .bound_extent(kernel.down, 1);
        const Var quad("quad"), pair("pair");
        Stage deal_own(own);
        deal_own.split(product.k, quad, pair, 2);
        const Dealt dealt = rows_in_fragments(deal_own, product.row, quad, eights());
        order(deal_own, {pair, product.chunk, dealt.own[0]}, {dealt.thread});
        unroll(deal_own.gpu_threads(dealt.thread).vectorize(pair), {product.chunk, dealt.own[0]});
    }

    void softmax() {
        for (Func *f : {&kernel.old_max, &kernel.pair_max, &kernel.row_max, &kernel.base, &kernel.factor,
                        &kernel.row_sum, &kernel.lane_max, &kernel.lane_sum}) {
            numbers(*f);
        }
        for (Func *f : {&kernel.lane_max, &kernel.lane_sum}) {
            in_rows(f->update(), {kernel.over_columns.x, kernel.over_columns.y});
        }
        for (Func *f : {&kernel.row_max, &kernel.row_sum}) f->hoist_storage(block);
        in_step(kernel.weights, MemoryType::Register);
        in_tiles(kernel.weights, kernel.column, kernel.row);
    }

    void values() {
        schedule_sum(kernel.block_out, step, {tile.columns, tile.products.rows}, deal, {kernel.over_keys.x},
                     {kernel.over_keys.y});
        const Var of_chunk("of_chunk"), chunk_of_row("chunk_of_row");
        in_step(kernel.values)
            .align_storage(kernel.d, tile.columns + chunk)
            .split(kernel.d, chunk_of_row, of_chunk, chunk);
        deal_copies(kernel.values, of_chunk, chunk_of_row, kernel.in_chunk, tile.columns / chunk, threads);
    }
};

}  // namespace

bool is_tensor_form(const AttentionConfig &config) {
    const int k = config.head_dim, v = config.head_dim_v;
    const bool has_dims = !config.any_head_dim() && k % 32 == 0 && v % 32 == 0 && k <= 192 && v <= 128;
    return has_dims && config.phase == Phase::prefill && !config.has_kv_scales() && !config.has_dropout &&
           !config.has_score_mod();
}

AttentionDevice::Tile attention_tensor_tile(const AttentionConfig &config) {
    const int widest = std::max(config.head_dim, config.head_dim_v);
    const bool changes_logits = config.modifies_logits() || config.has_mask;
    // Half as many rows and keys where logits change: each takes up to 60 instructions for each of a thread's logits,
    // all in a row. Each thread copies some of 16 keys where their rows are 8, 16 or 24 chunks.
    const bool in_eights = config.head_dim % (8 * chunk) == 0 && config.head_dim_v % (8 * chunk) == 0;
    const int rows = changes_logits ? threads / 2 : threads, most = changes_logits && in_eights ? 16 : 32;
    const int keys = widest <= 64 && (in_eights || !changes_logits) ? 2 * most : most;
    return {{rows, keys, chunk, (config.head_dim + chunk - 1) / chunk, false}, keys, config.head_dim_v, 4, true};
}

Module attention_tensor_cuda(const std::string &name, const AttentionConfig &config, const Target &target) {
    AttentionDevice kernel(config, attention_tensor_tile(config));
    TensorSchedule schedule(kernel);
    schedule.apply();
    OpSpec spec;
    spec.name = name;
    // Tensors that pass 2^31 elements are read by addresses: what Halide would refuse of a buffer does not matter.
    spec.target = target.with_feature(Target::NoAsserts);
    return compile_cuda(spec, kernel, threads, [&](Passes &passes) {
        passes.add<HostAddresses>(kernel.named.name());
        passes.add_exactly<TrimLoops>(1, "loops over keys", "steps$x");
        passes.add<LoadCarried>(kernel.row_max.name());
        passes.add<LoadCarried>(kernel.row_sum.name());
        passes.add_exactly<RepeatLoops>(1, "repetitions", kernel.state.name(), kernel.doubts.name(), schedule.held);
        passes.add_exactly<BranchBlocks>(2 * (1 + static_cast<int>(kernel.stages.size())), "stages of two forms");
        passes.add_exactly<SumInRegisters>(1, "sums in the state", kernel.block_out.name(), kernel.state.name());
        passes.add_exactly<PipelineCopies>(2, "loops over keys that copy ahead");
        passes.add_exactly<LowerTileProducts>(4, "products", config.kv_dtype, threads);
        passes.add<PrivateRegisters>();
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(attention_tensor_shared_bytes(config));
        passes.add<ReadThreadsAnew>(kernel.doubts.name());
    });
}

int attention_tensor_threads() { return threads; }

int attention_tensor_blocks(const AttentionConfig &config) { return is_low(attention_tensor_tile(config)) ? 3 : 1; }

int attention_tensor_shared_bytes(const AttentionConfig &config) {
    const AttentionDevice::Tile tile = attention_tensor_tile(config);
    const int numbers = 16 * (sequence_padding + 4), of_rows = 16 * tile.products.rows;
    const int of_keys = config.paged ? 2 * 16 * tile.products.columns : 0;
    return numbers + of_rows + of_keys + shared_bytes_of(tile.products, tile.products.rows) +
           2 * (shared_bytes_of(tile.products, tile.products.columns) + tile.chunk * (2 * tile.columns + 16));
}

}  // namespace heed
