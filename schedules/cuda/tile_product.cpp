#include "schedules/cuda/tile_product.h"

#include "generators/cuda/warpgroup.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int padding_bytes = 16;  // of a row of a tile of floats: rows that are read at once are in different banks
constexpr int square = 4;          // rows and columns of a thread on CUDA cores

// A tile of x or w.
Func &in_shared_memory(TileProduct &product, Func &tile, int lines) {
    const std::vector<Var> args = tile.args();
    tile.compute_at(product.sum, product.over_k.z)
        .store_in(MemoryType::GPUShared)
        .bound_extent(product.k, product.tile.width)
        .bound_extent(product.chunk, product.tile.chunks)
        .bound_extent(args[2], lines)
        .never_partition_all();
    for (size_t i = 4; i < args.size(); i++) tile.bound_extent(args[i], 1);  // a step is one where it is computed
    return tile;
}

// Threads that copy a row's chunks.
int neighbours_of(int chunks) {
    int result = 1;
    while (result < 16 && chunks % (2 * result) == 0) result *= 2;
    return result;
}

// own: neighbouring columns of a lane.
Dealt in_fragments_of(Stage stage, const VarOrRVar &column, const VarOrRVar &row, int eights, int own) {
    const auto variable = [&](const char *name) { return VarOrRVar(name, column.is_rvar); };
    const VarOrRVar block = variable("block"), in_block = variable("in_block"), quad = variable("quad"),
                    pair = variable("pair");
    stage.split(column, block, in_block, 4 * own).split(in_block, quad, pair, own);
    const Dealt rows = rows_in_fragments(stage, row, quad, eights);
    return {{pair, block, rows.own[0]}, rows.thread};
}

}  // namespace

Dealt in_fragments(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    return in_fragments_of(std::move(stage), column, row, 4, 2);
}
Dealt in_low_fragments(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    return in_fragments_of(std::move(stage), column, row, 2, 2);
}
Dealt in_fragments_of_codes(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    return in_fragments_of(std::move(stage), column, row, 4, 4);
}
Dealt in_low_fragments_of_codes(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    return in_fragments_of(std::move(stage), column, row, 2, 4);
}

Dealt rows_in_fragments(Stage stage, const VarOrRVar &row, const VarOrRVar &quad, int eights) {
    const auto variable = [&](const char *name) { return VarOrRVar(name, row.is_rvar); };
    const VarOrRVar eight = variable("eight"), group = variable("group"), warp = variable("warp"),
                    rows = variable("rows"), lane = variable("lane"), thread = variable("thread");
    stage.split(row, eight, group, 8).split(eight, warp, rows, eights).fuse(quad, group, lane).fuse(lane, warp, thread);
    return {{rows}, thread};
}

Dealt in_squares(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    const auto variable = [&](const char *name) { return VarOrRVar(name, column.is_rvar); };
    const VarOrRVar x = variable("x"), y = variable("y"), i = variable("i"), j = variable("j"),
                    thread = variable("thread");
    stage.split(column, x, j, square).split(row, y, i, square).fuse(x, y, thread);
    return {{j, i}, thread};
}

namespace {

Dealt in_blocks(Stage stage, const VarOrRVar &column, const VarOrRVar &row, int rows) {
    const auto variable = [&](const char *name) { return VarOrRVar(name, column.is_rvar); };
    const VarOrRVar block = variable("block"), in_block = variable("in_block"), x = variable("x"), y = variable("y"),
                    i = variable("i"), j = variable("j"), thread = variable("thread");
    stage.split(column, block, in_block, 16 * square)
        .split(in_block, x, j, square)
        .split(row, y, i, rows)
        .fuse(x, y, thread);
    return {{j, i, block}, thread};
}

}  // namespace

Dealt in_square_blocks(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    return in_blocks(std::move(stage), column, row, square);
}
Dealt in_tall_blocks(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    return in_blocks(std::move(stage), column, row, 2 * square);
}
Dealt in_wide_blocks(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    const auto variable = [&](const char *name) { return VarOrRVar(name, column.is_rvar); };
    const VarOrRVar block = variable("block"), in_block = variable("in_block"), half = variable("half"),
                    in_half = variable("in_half"), x = variable("x"), y = variable("y"), i = variable("i"),
                    j = variable("j"), of_half = variable("of_half"), thread = variable("thread");
    stage.split(column, block, in_block, 32 * square)
        .split(in_block, half, in_half, 16 * square)
        .split(in_half, x, j, square)
        .split(row, y, i, square)
        .fuse(x, y, of_half)
        .fuse(of_half, half, thread);
    return {{j, i, block}, thread};
}

Dealt in_parts(Stage stage, const Dealt &dealt, const VarOrRVar &part, int parts) {
    if (parts == 1) return dealt;
    const VarOrRVar thread("thread_of_part", part.is_rvar);
    stage.fuse(dealt.thread, part, thread);
    return {dealt.own, thread};
}

void order(Stage stage, std::vector<VarOrRVar> loops, const std::vector<VarOrRVar> &outer) {
    loops.insert(loops.end(), outer.begin(), outer.end());
    stage.reorder(loops).never_partition_all();
}
void unroll(Stage stage, const std::vector<VarOrRVar> &loops) {
    for (const VarOrRVar &loop : loops) stage.unroll(loop);
}
void deal_out(Stage stage, const Dealt &dealt, const std::vector<VarOrRVar> &inner,
              const std::vector<VarOrRVar> &outer) {
    std::vector<VarOrRVar> loops = dealt.own, around = {dealt.thread};
    loops.insert(loops.end(), inner.begin(), inner.end());
    around.insert(around.end(), outer.begin(), outer.end());
    order(stage, loops, around);
    unroll(stage.gpu_threads(dealt.thread), loops);
}

std::vector<VarOrRVar> schedule_sum(Func &sum, const LoopLevel &at, std::pair<int, int> extents, Deal deal,
                                    const std::vector<VarOrRVar> &in_step, std::vector<VarOrRVar> steps, int parts) {
    const std::vector<Var> args = sum.args();
    const auto dealt = [&](const Stage &stage) {
        return in_parts(stage, deal(stage, args[0], args[1]), args[2], parts);
    };
    sum.compute_at(at)
        .store_in(MemoryType::Register)
        .bound_extent(args[0], extents.first)
        .bound_extent(args[1], extents.second);
    for (size_t i = 2; i < args.size(); i++) sum.bound_extent(args[i], i == 2 ? parts : 1);
    deal_out(sum, dealt(sum));

    Stage products = sum.update();
    const Dealt of_products = dealt(products);
    std::vector<VarOrRVar> loops = of_products.own;
    loops.insert(loops.end(), in_step.begin(), in_step.end());
    steps.insert(steps.begin(), of_products.thread);
    order(products, loops, steps);
    products.gpu_threads(of_products.thread);
    return loops;
}

std::vector<VarOrRVar> schedule_sum(TileProduct &product, const LoopLevel &at, Deal deal) {
    return schedule_sum(product, at, {product.tile.columns, product.tile.rows}, deal);
}

std::vector<VarOrRVar> schedule_sum(TileProduct &product, const LoopLevel &at, std::pair<int, int> extents, Deal deal) {
    const RDom &over = product.over_k;
    std::vector<VarOrRVar> in_step = {over.x, over.y};
    if (product.x_ordered.defined()) {
        const RVar four("four"), in_four("in_four"), two("two"), in_two("in_two");
        product.sum.update().split(over.x, four, in_four, 4).split(in_four, two, in_two, 2);
        in_step = {in_two, two, four, over.y};
    }
    return schedule_sum(product.sum, at, extents, deal, in_step, {over.z});
}

namespace {

Func &at_once(TileProduct &product, Func &f, const LoopLevel &at, int lines, int width, int chunks) {
    const std::vector<Var> args = f.args();
    f.compute_at(at)
        .bound_extent(product.k, width)
        .bound_extent(product.chunk, chunks)
        .bound_extent(product.row, lines);
    for (size_t i = 3; i < args.size(); i++) f.bound_extent(args[i], 1);
    return f;
}

// Pairs of neighbours, which a quad of lanes shares.
void deal_pairs(TileProduct &product, Func &f, const Var &quad, const Var &pair, std::vector<VarOrRVar> own,
                int eights) {
    Stage stage(f);
    const Dealt dealt = rows_in_fragments(stage, product.row, quad, eights);
    own.insert(own.end(), {product.chunk, dealt.own[0]});
    std::vector<VarOrRVar> all = own;
    all.insert(all.begin(), pair);
    order(stage, all, {dealt.thread});
    unroll(stage.gpu_threads(dealt.thread), own);
    f.vectorize(pair);
}

}  // namespace

void schedule_own(TileProduct &product, Func &own, const LoopLevel &at, int lines, int eights) {
    const Var quad("quad"), neighbours("neighbours"), pairs("pairs"), pair("pair");
    const int width = product.tile.width;
    at_once(product, own, at, lines, width, product.tile.chunks)
        .store_in(MemoryType::Register)
        .split(product.k, quad, neighbours, width / 4)
        .split(neighbours, pairs, pair, 2);
    deal_pairs(product, own, quad, pair, {pairs}, eights);
}

void schedule_ordered(TileProduct &product, const LoopLevel &at, int lines, int eights) {
    const Var quad("quad"), pair("pair");
    const int chunks = 2 * product.tile.chunks;
    at_once(product, product.x_ordered, at, lines, product.tile.width / 2, chunks)
        .store_in(MemoryType::Stack)
        .align_storage(product.chunk, chunks + 1)
        .split(product.k, quad, pair, 2);
    deal_pairs(product, product.x_ordered, quad, pair, {}, eights);
}

int row_in_panels(int elements) {
    return (elements + cuda::panel_columns - 1) / cuda::panel_columns * cuda::panel_columns;
}

void schedule_copies(TileProduct &product, Func &tile, int lines, int threads, Rows rows) {
    const int width = product.tile.width, chunks = product.tile.chunks;
    const int in_panels = row_in_panels(width * chunks) / width;
    in_shared_memory(product, tile, lines)
        .align_storage(product.chunk, rows == Rows::in_panels ? in_panels : chunks + 1);
    const int of_chunk = product.tile.width * tile.type().bytes() / 16;
    deal_copies(tile, product.k, product.chunk, tile.args()[2], product.tile.chunks, lines * of_chunk, threads);
}

void deal_copies(Func &tile, const Var &in_chunk, const Var &chunk, const Var &line, int chunks, int lines,
                 int threads) {
    const Var more("more"), own("own"), number("number"), round("round"), thread("thread");
    const Var part("part"), in_part("in_part"), in_row("in_row");  // part: 16 bytes
    const int all = lines * neighbours_of(chunks), at_once = std::min(threads, all);
    tile.split(chunk, more, own, neighbours_of(chunks))
        .split(in_chunk, part, in_part, 16 / tile.type().bytes())
        .fuse(part, own, in_row)
        .fuse(in_row, line, number)
        .split(number, round, thread, at_once, all % at_once == 0 ? TailStrategy::Auto : TailStrategy::GuardWithIf)
        .reorder(in_part, more, round, thread)
        .vectorize(in_part)
        .unroll(more)
        .unroll(round)
        .gpu_threads(thread)
        .never_partition_all();
}

void schedule_floats(TileProduct &product, Func &tile, int lines, int threads, int own) {
    const Var line = tile.args()[2], round("round"), group("group"), thread("thread");
    std::vector<Var> by_line = tile.args();
    std::rotate(by_line.begin(), by_line.begin() + 2, by_line.begin() + 3);  // line, k, chunk, ..
    tile.in(product.sum)
        .compute_at(product.sum, product.over_k.y)
        .store_in(MemoryType::Register)
        .bound_extent(line, own)
        .vectorize(line, square)
        .unroll(line);
    in_shared_memory(product, tile, lines)
        .reorder_storage(by_line)
        .align_storage(line, lines + padding_bytes / 4)
        .split(line, round, group, threads / product.tile.chunks)
        .fuse(product.chunk, group, thread)
        .reorder(product.k, round, thread)
        .unroll(round)
        .gpu_threads(thread);
}

int shared_bytes_of(const ProductTile &tile, int lines, int bytes) {
    const int elements = tile.width * tile.chunks;
    return tile.of_floats ? elements * (4 * lines + padding_bytes) : lines * bytes * tile.width * (tile.chunks + 1);
}

}  // namespace heed
