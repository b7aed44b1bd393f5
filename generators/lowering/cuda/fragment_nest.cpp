#include "generators/lowering/cuda/fragment_nest.h"

#include <algorithm>
#include <array>

#include "generators/common/bad_input.h"
#include "generators/cuda/infinities.h"
#include "generators/cuda/intrinsics.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Steps of a and b of the loops over four codes of each lane: neighbours, pairs, lanes.
constexpr std::array<std::array<int, 3>, 3> order_of_codes = {{{1, 1, 2}, {8, 2, 2}, {2, 4, 4}}};

}  // namespace

FragmentNest::FragmentNest(const ProductNest &nest, int threads)
    : nest(nest), threads(threads), b_bytes(nest.has_codes ? 1 : element_bytes) {
    for (const For *loop : nest.loops) add(loop);
    read_loops();
    for (int thread = 0; thread < threads; thread++) check_deal(thread);
    if (threads % 32 != 0) refuse("the block is not of whole warps");
    if (own_columns() == 4 && nest.type != ElementType::f16) refuse("factors of columns of codes are not f16");
}

void FragmentNest::refuse(const std::string &why) const {
    throw BadInput("the product of " + nest.a + " and " + nest.b + " is not one of tensor cores: " + why);
}

Expr FragmentNest::first(Expr index) const {
    for (const For *loop : nest.loops) index = substitute(loop->name, loop->min, index);
    return index;
}

int FragmentNest::difference(const Expr &to, const Expr &from) const {
    const Expr moved = simplify(to - from);
    const auto result = as_const_int(simplify(at_thread(moved, 0)));
    for (int thread = 0; thread < threads && result && !is_const(moved); thread++) {
        if (as_const_int(simplify(at_thread(moved, thread))) != result) refuse("an index is no sum of steps");
    }
    if (!result) refuse("an index is no sum of steps");
    return static_cast<int>(*result);
}

void FragmentNest::add(const For *loop) {
    const auto extent = as_const_int(loop->extent);
    if (!extent) refuse("loop " + loop->name + " is not of constant length");
    const auto step = [&](const Expr &index) {
        return difference(first(substitute(loop->name, loop->min + 1, index)), first(index));
    };
    const Loop steps = {step(nest.a_index), step(nest.b_index), step(nest.c_index), static_cast<int>(*extent),
                        loop->name};
    const bool in_a = steps.in_a != 0, in_b = steps.in_b != 0, in_c = steps.in_c != 0;
    if (int{in_a} + int{in_b} + int{in_c} != 2) refuse("loop " + loop->name + " is one of no matrix product");
    (in_a && in_b ? k_loops : in_a ? row_loops : column_loops).push_back(steps);
}

// Where a has the order of codes, the loops over 16 k become one: ldmatrix finds what belongs together.
void FragmentNest::read_order_of_codes() {
    std::vector<Loop> others;
    for (const Loop &loop : k_loops) {
        const std::array<int, 3> steps = {loop.in_a, loop.in_b, loop.extent};
        const bool is_of_order = std::find(order_of_codes.begin(), order_of_codes.end(), steps) != order_of_codes.end();
        if (!is_of_order) others.push_back(loop);
    }
    in_order_of_codes = nest.has_codes && k_loops.size() == others.size() + order_of_codes.size();
    if (!in_order_of_codes) return;
    k_loops = others;
    k_loops.push_back({1, 1, 0, 2 * edge});
}

void FragmentNest::read_loops() {
    read_order_of_codes();
    const auto by_step = [](const Loop &x, const Loop &y) { return x.in_a + x.in_c < y.in_a + y.in_c; };
    std::sort(k_loops.begin(), k_loops.end(), by_step);
    std::sort(column_loops.begin(), column_loops.end(), by_step);
    if (row_loops.size() != 1 || column_loops.size() != 2 || k_loops.empty()) {
        refuse("its loops are not rows 8 apart, blocks of columns, neighbours of columns and k");
    }
    const Loop &rows = row_loops[0], &own = column_loops[0], &blocks = column_loops[1];
    a = {rows.in_a / edge, 0, k_loops[0].in_a};
    b = {0, own.in_b, k_loops[0].in_b};
    c = {rows.in_c / edge, own.in_c, 0};
    row_blocks = rows.extent;
    column_blocks = blocks.extent;
    const int of_block = 4 * own_columns();
    const bool in_blocks = rows.in_a == edge * a.row && rows.in_c == edge * c.row &&
                           blocks.in_b == of_block * b.column && blocks.in_c == of_block * c.column;
    if (!in_blocks || own.extent != own_columns()) refuse("a thread's rows and columns are not 8 apart");
    for (const Loop &loop : k_loops) {
        if (loop.in_a != k_extent * a.k || loop.in_b != k_extent * b.k) refuse("its steps of k are no neighbours");
        k_extent *= loop.extent;
    }
    if (row_blocks % 2 != 0 || column_blocks % 2 != 0 || k_extent % k_of_load() != 0) {
        refuse("it is not of whole tiles of 16 rows, 16 columns and 16 steps of k, of codes twice as many");
    }
}

void FragmentNest::check_deal(int thread) const {
    const int lane = thread % 32, row = lane / 4, column = lane % 4 * own_columns();
    const auto moved = [&](const Expr &index) {
        return difference(at_thread(first(index), thread), at_thread(first(index), thread - lane));
    };
    if (moved(nest.a_index) != row * a.row || moved(nest.b_index) != column * b.column ||
        moved(nest.c_index) != row * c.row + column * c.column) {
        refuse("its elements are not dealt out as mma.m16n8k16 has them");
    }
}

// In fours of columns, the first and the third one belong to a tile, the others to the next tile.
Expr FragmentNest::sum_index(int row_block, int tile, int i) const {
    const int column = own_columns() == 4 ? tile / 2 * (2 * edge) + tile % 2 + i % 2 * 2 : tile * edge + i % 2;
    return first(nest.c_index) + (row_block + i / 2) * edge * c.row + column * c.column;
}

Expr FragmentNest::load_sum(const Expr &index) const {
    return Load::make(Float(32), nest.store->name, index, Buffer<>(), Parameter(), const_true(), {});
}

void FragmentNest::store_sum(const Expr &index, const Expr &value) {
    code.run(Store::make(nest.store->name, value, index, Parameter(), const_true(), {}));
}

Expr FragmentNest::own_pair(int row, int step, int i) const {
    const int own = in_fours_of_k() ? 4 : 2, apart = in_fours_of_k() ? 2 : edge;
    const auto element = [&](int k) {
        const Expr index =
            first(nest.a_index) + ((row + i % 2) * edge * a.row + (step + k) * a.k) + thread() % 4 * (own * a.k);
        return Load::make(nest.a_in_registers, nest.a, index, Buffer<>(), Parameter(), const_true(), {});
    };
    const Expr low = element(i / 2 * apart), high = element(i / 2 * apart + 1);
    if (nest.a_in_registers == Float(32)) return cuda::pack(nest.type, low, high);
    return cast<uint32_t>(low) | cast<uint32_t>(high) << 16;
}

void FragmentNest::add_counts(const std::array<Expr, 4> &counts, int row_block, int tile) {
    for (int i = 0; i < 4; i++) {
        const Expr index = sum_index(row_block, tile, i);
        store_sum(index, cuda::add_infinities(load_sum(index), counts[static_cast<size_t>(i)]));
    }
}

}  // namespace heed
