// Attention on tensor cores. A block has 128 rows of queries of a head, a warp 32 of them and all columns of their
// logits and of their output, a thread what mma.m16n8k16 gives it: of each eight columns two, of each eight rows one.
// Where something changes logits half as many rows, and at most 32 keys. In decode 16 rows (32 in the kernels `wide`),
// for each of which a warp has a quarter of a step's keys (half of them): parts, whose states are one at the end.
//
//   q_rows, row_range: where the rows are, what they see; x_tile: the rows, from which a thread takes its elements
//   for each 64 keys that some row sees
//     w_tile, values: the next step's, from tensors to shared memory (PipelineCopies)
//     sum = x_tile x w_tile; stages: what changes logits, each where the call has it (BranchBlocks)
//     logits: what hides keys, where some row does not see all of them (BranchBlocks)
//     row_max, base, factor, weights, row_sum, in registers: maxima are exchanged in the four lanes of a row
//     state = state * factor + weights x values (SumInRegisters)
//   the same once more where the result is in doubt (RepeatLoops): values of hidden keys may be no numbers
//   part_numbers, part_state: what parts hand over in shared memory, where the keys were (PlaceOver)
//
// A step of f16, d64 (sm_80): 595 instructions for 128 products, without what is seldom done; 250 registers, no spills.
#include "schedules/cuda/attention_tensor.h"

#include <set>

#include "generators/lowering/carried.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/block_branches.h"
#include "generators/lowering/cuda/host_addresses.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/place_over.h"
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
// Floats after a row of a part's state: rows that are stored at once are in different banks.
constexpr int state_padding = 8;

// Whether a warp has 16 rows, not 32.
bool is_low(const AttentionDevice::Tile &tile) { return tile.products.rows == threads / 2; }

class TensorSchedule : DeviceStages {
public:
    explicit TensorSchedule(AttentionDevice &kernel)
        : DeviceStages(kernel, is_low(kernel.tile) ? in_low_fragments : in_fragments) {}

    // The elements of queries that are held in registers.
    std::set<std::string> held;

    void apply() {
        results();
        places();
        if (kernel.config.paged) in_step(kernel.key_rows).gpu_threads(kernel.key);
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
        if (tile.parts > 1) {
            in_block(kernel.part_numbers);
            in_rows(kernel.part_numbers);
            in_block(kernel.part_state).align_storage(kernel.d, tile.columns + state_padding);
            in_tiles(kernel.part_state, kernel.d, kernel.row);
            in_block(kernel.results).gpu_threads(kernel.row);
        } else {
            in_block(kernel.results, MemoryType::Register);
            in_rows(kernel.results);
        }
        for (Func *f : {&kernel.pair_sum, &kernel.last_sum}) {
            in_block(*f, MemoryType::Register);
            in_rows(*f);
        }
        in_block(kernel.doubts, MemoryType::Register);
        in_rows(kernel.doubts);
        in_rows(kernel.doubts.update(), {kernel.over_pairs.x, kernel.over_pairs.y});
    }

    void products() {
        TileProduct &product = kernel.product;
        const RDom &over = product.over_k;
        schedule_sum(product.sum, step, {tile.keys_of_row(), tile.products.rows}, deal, {over.x, over.y}, {over.z});
        if (tile.parts > 1) {
            const Dealt dealt = own_elements(product.x_tile);
            Stage(product.x_tile).unroll(Var("pair"));
            for (Func *f : {&kernel.met, &kernel.q_rows}) {
                Func own = f->in(product.x_tile);
                own.compute_at(product.x_tile, dealt.own[0].var).store_in(MemoryType::Register);
                for (const Var &v : own.args()) own.bound_extent(v, 1);
            }
        } else {
            schedule_copies(product, product.x_tile, tile.products.rows, threads);
            product.x_tile.compute_at(block).store_in(MemoryType::Stack);
            if (holds_queries()) {
                Func own = product.x_tile.in(product.sum);
                held = {own.name()};
                own_elements(own);
                own.vectorize(Var("pair"));
            }
        }
        schedule_copies(product, product.w_tile, tile.products.columns, threads);
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
    Dealt own_elements(Func &own) {
        TileProduct &product = kernel.product;
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
        unroll(deal_own.gpu_threads(dealt.thread), {product.chunk, dealt.own[0]});
        return dealt;
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
    const bool is_decode = config.phase == Phase::decode;
    return has_dims && !config.has_kv_scales() && !config.has_dropout && !config.has_score_mod() &&
           !(is_decode && (config.changes_logits() || k > 128 || v > 128));
}

AttentionDevice::Tile attention_tensor_tile(const AttentionConfig &config) {
    const int widest = std::max(config.head_dim, config.head_dim_v), chunks = config.head_dim / chunk;
    // A warp has 16 rows and a quarter of a step's keys, or half of them.
    if (config.has_gqa) {
        const int parts = config.wide_group ? 2 : 4;
        return {{threads / 2, 64, chunk, chunks, false}, 64, config.head_dim_v, 4, true, parts};
    }
    int rows = threads, keys = widest <= 64 ? 64 : 32;
    if (config.changes_logits()) {
        // Half as many: a change takes up to 60 instructions for each of a thread's logits, all in a row. Each thread
        // copies some of 16 keys where their rows are 8, 16 or 24 chunks.
        const bool in_eights = config.head_dim % (8 * chunk) == 0 && config.head_dim_v % (8 * chunk) == 0;
        rows /= 2;
        keys = in_eights ? keys / 2 : 32;
    }
    return {{rows, keys, chunk, chunks, false}, keys, config.head_dim_v, 4, true};
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
        const int twice = 1 + static_cast<int>(kernel.stages.size()), once = kernel.tile.parts > 1 ? 1 : 0;
        passes.add_exactly<BranchBlocks>(2 * twice + once, "stages of two forms");
        passes.add_exactly<SumInRegisters>(1, "sums in the state", kernel.block_out.name(), kernel.state.name());
        passes.add_exactly<PipelineCopies>(2, "loops over keys that copy ahead", kernel.tile.parts > 1);
        passes.add_exactly<LowerTileProducts>(4, "products", config.kv_dtype, threads);
        passes.add<PrivateRegisters>();
        if (kernel.tile.parts > 1) {
            passes.add_exactly<PlaceOver>(1, "states of parts", kernel.part_state.name(), kernel.product.w_tile.name());
        }
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(attention_tensor_shared_bytes(config));
        std::set<std::string> read_after = {kernel.doubts.name()};
        if (kernel.tile.parts > 1) read_after.insert({kernel.part_numbers.name(), kernel.results.name()});
        passes.add<ReadThreadsAnew>(read_after);
    });
}

int attention_tensor_threads() { return threads; }

int attention_tensor_blocks(const AttentionConfig &config) {
    if (config.has_gqa) {
        // Kernels of 64 columns in pages spill on sm_120 with 4 blocks, `wide` ones of 128 columns on sm_80 with 3.
        if (std::max(config.head_dim, config.head_dim_v) > 64) return config.wide_group ? 2 : 3;
        return config.paged ? 3 : 4;
    }
    return is_low(attention_tensor_tile(config)) ? 3 : 1;
}

int attention_tensor_shared_bytes(const AttentionConfig &config) {
    const AttentionDevice::Tile tile = attention_tensor_tile(config);
    const int numbers = 16 * (sequence_padding + 4), of_rows = 16 * tile.products.rows;
    const int of_keys = config.paged ? 2 * 16 * tile.products.columns + (tile.parts > 1 ? 2 * 16 : 0) : 0;
    const int of_parts = (4 * 8 + 12) * tile.products.rows;
    return numbers + of_rows + of_keys +
           (tile.parts > 1 ? of_parts : shared_bytes_of(tile.products, tile.products.rows)) +
           2 * (shared_bytes_of(tile.products, tile.products.columns) + tile.chunk * (2 * tile.columns + 16));
}

}  // namespace heed
