#include "generators/lowering/cuda/fragment_product.h"

#include <algorithm>
#include <array>

#include "generators/common/bad_input.h"
#include "generators/cuda/infinities.h"
#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

constexpr int edge = 8;           // rows of a matrix
constexpr int element_bytes = 2;  // of a

// Statements in order.
class Code {
public:
    Expr let(const std::string &name, const Expr &value) {
        steps.push_back({unique_name(name), value, Stmt()});
        return Variable::make(value.type(), steps.back().name);
    }
    void run(const Stmt &s) { steps.push_back({"", Expr(), s}); }
    Stmt finish() const {
        Stmt result = Evaluate::make(0);
        for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
            result = step->value.defined() ? LetStmt::make(step->name, step->value, result)
                                           : Block::make(step->leaf, result);
        }
        return result;
    }

private:
    struct Step {
        std::string name;
        Expr value;
        Stmt leaf;
    };
    std::vector<Step> steps;
};

class FragmentProduct {
public:
    FragmentProduct(const ProductNest &nest, int threads)
        : nest(nest), threads(threads), b_bytes(nest.has_codes ? 1 : element_bytes) {
        for (const For *loop : nest.loops) add(loop);
        read_loops();
        for (int thread = 0; thread < threads; thread++) check_deal(thread);
        check_matrices();
        if (threads % 32 != 0) refuse("the block is not of whole warps");
        if (own_columns() == 4 && nest.type != ElementType::f16) refuse("factors of columns of codes are not f16");
    }

    Stmt lowered() {
        const Expr lane = thread() % 32, in_matrix = lane % edge, odd = lane / edge % 2, upper = lane / (2 * edge);
        const Expr a_of_lane = lane % (2 * edge) * a.row + upper * (edge * a.k);
        const Expr b_of_lane = is_transposed() ? upper * (chunk() * b.column) + (odd * edge + in_matrix) * b.k
                                               : (upper * edge + in_matrix) * b.column + odd * (chunk() * b.k);
        if (nest.a_in_registers == Type()) {
            a_at = code.let("a_at", address(nest.a, nest.a_index, a_of_lane, element_bytes));
        }
        b_at = code.let("b_at", address(nest.b, nest.b_index, b_of_lane, b_bytes));
        // Fragments of a in registers are made before the branches that share them.
        if (!a_at.defined() && (nest.leaves_out || nest.condition.defined())) read_own_fragments();
        for (const Range &columns : columns_alike()) {
            if (nest.leaves_out) {
                where(columns.condition, [&] {
                    for (int block = columns.begin; block < columns.end; block++) multiply_numbers(block);
                });
                continue;
            }
            for (const Range &steps : steps_alike(columns.begin)) {
                where(steps.condition, [&] {
                    for (int step = steps.begin; step < steps.end; step += k_of_load()) multiply(step, columns);
                });
            }
        }
        return code.finish();
    }

private:
    // How far an index moves; 0 where it does not.
    struct Steps {
        int row = 0, column = 0, k = 0;
    };
    struct Loop {
        int in_a, in_b, in_c, extent;
        std::string name = {};
    };
    // Neighbours of which all have the same condition, undefined for none.
    struct Range {
        int begin, end;
        Expr condition;
    };
    const ProductNest &nest;
    const int threads;
    const int b_bytes;  // of an element
    std::vector<Loop> row_loops, column_loops, k_loops;
    Steps a, b, c;
    int row_blocks = 0, column_blocks = 0, k_extent = 1;  // of a thread; rows in eights
    bool in_order_of_codes = false;                       // elements of a
    Expr a_at, b_at;                                      // of the lane
    std::vector<Expr> own_fragments;                      // of a in registers: by rows, then steps
    Code code;

    [[noreturn]] void refuse(const std::string &why) const {
        throw BadInput("the product of " + nest.a + " and " + nest.b + " is not one of tensor cores: " + why);
    }

    // ---- What it is
    bool is_transposed() const { return b.column == 1; }
    int chunk() const { return 16 / b_bytes; }  // elements of a row of a matrix of b
    // A lane gets four codes of a row where it gets two elements of 16 bits: of k, or of columns.
    bool in_fours_of_k() const { return nest.has_codes && !is_transposed(); }
    int own_columns() const { return nest.has_codes && is_transposed() ? 4 : 2; }
    int k_of_load() const { return in_fours_of_k() ? 4 * edge : 2 * edge; }

    Expr first(Expr index) const {
        for (const For *loop : nest.loops) index = substitute(loop->name, loop->min, index);
        return index;
    }
    static Expr at_thread(const Expr &index, const Expr &thread) { return substitute(thread_variable, thread, index); }
    // What is added to an index from one place to another. It must be alike in all threads.
    int difference(const Expr &to, const Expr &from) const {
        const Expr moved = simplify(to - from);
        const auto result = as_const_int(simplify(at_thread(moved, 0)));
        for (int thread = 0; thread < threads && result && !is_const(moved); thread++) {
            if (as_const_int(simplify(at_thread(moved, thread))) != result) refuse("an index is no sum of steps");
        }
        if (!result) refuse("an index is no sum of steps");
        return static_cast<int>(*result);
    }

    void add(const For *loop) {
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

    // Steps of a and b of the loops over four codes of each lane: neighbours, pairs, lanes.
    static constexpr std::array<std::array<int, 3>, 3> order_of_codes = {{{1, 1, 2}, {8, 2, 2}, {2, 4, 4}}};
    // Where a has the order of codes, the loops over 16 k become one: ldmatrix finds what belongs together.
    void read_order_of_codes() {
        std::vector<Loop> others;
        for (const Loop &loop : k_loops) {
            const std::array<int, 3> steps = {loop.in_a, loop.in_b, loop.extent};
            const bool is_of_order =
                std::find(order_of_codes.begin(), order_of_codes.end(), steps) != order_of_codes.end();
            if (!is_of_order) others.push_back(loop);
        }
        in_order_of_codes = nest.has_codes && k_loops.size() == others.size() + order_of_codes.size();
        if (!in_order_of_codes) return;
        k_loops = others;
        k_loops.push_back({1, 1, 0, 2 * edge});
    }

    void read_loops() {
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

    void check_deal(int thread) const {
        const int lane = thread % 32, row = lane / 4, column = lane % 4 * own_columns();
        const auto moved = [&](const Expr &index) {
            return difference(at_thread(first(index), thread), at_thread(first(index), thread - lane));
        };
        if (moved(nest.a_index) != row * a.row || moved(nest.b_index) != column * b.column ||
            moved(nest.c_index) != row * c.row + column * c.column) {
            refuse("its elements are not dealt out as mma.m16n8k16 has them");
        }
    }

    // The index of what lane 0 of the thread's warp has.
    Expr warps_first(const Expr &index) const { return simplify(at_thread(first(index), thread() / 32 * 32)); }

    void check_matrices() const {
        const auto is_aligned = [&](const Expr &index, int elements) {
            const ModulusRemainder place = modulus_remainder(warps_first(index));
            return place.modulus % elements == 0 && place.remainder % elements == 0;
        };
        const bool rows_of_a =
            a.k == 1 && a.row % edge == 0 && is_aligned(nest.a_index, edge) && in_order_of_codes == in_fours_of_k();
        const bool rows_of_b = b.k == 1 ? b.column % chunk() == 0 : b.column == 1 && b.k % chunk() == 0;
        const bool fits_a = nest.a_in_registers != Type() || rows_of_a;
        if (!fits_a || !rows_of_b || !is_aligned(nest.b_index, chunk())) {
            refuse("rows of its matrices are not 16 aligned bytes");
        }
    }

    // ---- Which terms are summed
    // The condition of the terms of a step of k and a block of columns.
    Expr condition_of(int step, int block) const {
        Expr result = substitute(column_loops[1].name, block, nest.condition);
        int inner = 1;
        for (const Loop &loop : k_loops) {
            result = substitute(loop.name, step / inner % loop.extent, result);
            inner *= loop.extent;
        }
        result = simplify(first(result));
        if (expr_uses_var(result, thread_variable)) refuse("threads sum other terms");
        return result;
    }
    // Neighbours in 0 .. end - 1, so many of which are alike at least.
    std::vector<Range> alike(int end, int least, const std::function<Expr(int)> &condition_at) const {
        if (!nest.condition.defined()) return {{0, end, Expr()}};
        std::vector<Range> result;
        for (int i = 0; i < end; i++) {
            const Expr condition = condition_at(i);
            if (!result.empty() && equal(condition, result.back().condition)) {
                result.back().end = i + 1;
            } else if (i % least != 0) {
                refuse("terms of a matrix have two conditions");
            } else {
                result.push_back({i, i + 1, condition});
            }
        }
        return result;
    }
    std::vector<Range> columns_alike() const {
        return alike(column_blocks, 2, [&](int block) { return condition_of(0, block); });
    }
    std::vector<Range> steps_alike(int block) const {
        return alike(k_extent, k_of_load(), [&](int step) { return condition_of(step, block); });
    }

    void where(const Expr &condition, const std::function<void()> &body) {
        if (!condition.defined() || is_const_one(condition)) return body();
        Code outer;
        std::swap(code, outer);
        body();
        std::swap(code, outer);
        code.run(IfThenElse::make(condition, outer.finish()));
    }

    // ---- What becomes of it
    static Expr thread() { return Variable::make(Int(32), thread_variable); }

    Expr address(const std::string &array, const Expr &index, const Expr &of_lane, int bytes) const {
        return shared_address(array, (cast<int32_t>(warps_first(index)) + of_lane) * bytes);
    }

    Expr load_sum(const Expr &index) const {
        return Load::make(Float(32), nest.store->name, index, Buffer<>(), Parameter(), const_true(), {});
    }

    // Four matrices of b, of two blocks of columns.
    Expr load_b(int block, int step) {
        const Expr at = b_at + b_bytes * (block * 4 * own_columns() * b.column + step * b.k);
        return code.let("b_matrices", is_transposed() ? cuda::load_matrices_transposed(at) : cuda::load_matrices(at));
    }

    // A fragment of b that is read: of a tile of 8 columns, of a step of 16 k after the first one.
    struct Columns {
        int tile, step;
        Expr value;
    };
    std::vector<Columns> fragments_of_b(int block, int step) {
        const Expr words = load_b(block, step);
        std::vector<Columns> result;
        for (int i = 0; i < 2; i++) {
            const Expr half = i == 0 ? cuda::low_half(words) : cuda::high_half(words);
            if (!nest.has_codes) {
                result.push_back({block + i, 0, half});
                continue;
            }
            const Expr both = code.let("b_fragments", is_transposed() ? cuda::alternate_codes(half)
                                                                      : cuda::neighbouring_codes(nest.type, half));
            for (int j = 0; j < 2; j++) {
                const Expr one = j == 0 ? cuda::low_half(both) : cuda::high_half(both);
                result.push_back(is_transposed() ? Columns{2 * (block + i) + j, 0, one} : Columns{block + i, j, one});
            }
        }
        std::stable_sort(result.begin(), result.end(),
                         [](const Columns &x, const Columns &y) { return x.step < y.step; });
        return result;
    }

    void read_own_fragments() {
        for (int row = 0; row < row_blocks; row += 2) {
            for (int step = 0; step < k_extent; step += 2 * edge) {
                own_fragments.push_back(code.let("a_fragment", own_fragment(row, step)));
            }
        }
    }

    void multiply(int step, const Range &columns) {
        std::vector<std::vector<Expr>> x;  // by steps, then rows
        for (int k = step; k < step + k_of_load(); k += 2 * edge) {
            x.emplace_back();
            for (int row = 0; row < row_blocks; row += 2)
                x.back().push_back(own_fragments.empty() ? code.let("a_fragment", fragment_of_a(row, k))
                                                         : own_at(row, k));
        }
        for (int block = columns.begin; block < columns.end; block += 2) {
            for (const Columns &y : fragments_of_b(block, step)) {
                const std::vector<Expr> &of_step = x[static_cast<size_t>(y.step)];
                for (int tile = 0; tile < row_blocks / 2; tile++)
                    add_product(of_step[static_cast<size_t>(tile)], y.value, 2 * tile, y.tile);
            }
        }
    }

    // A block of columns: the product with the numbers among b, in the order of multiply(), so that sums of numbers
    // have the same bits; where there are others, a second one of 1 where a is not left out and infinities, which are
    // counted.
    void multiply_numbers(int block) {
        const size_t tiles = static_cast<size_t>(row_blocks / 2), steps = static_cast<size_t>(k_extent / (2 * edge));
        const auto for_each = [&](const std::function<void(size_t tile, const Expr &x, const Expr &y)> &multiply) {
            for (size_t step = 0; step < steps; step++) {
                const Expr both = load_b(block / 2 * 2, static_cast<int>(step) * 2 * edge);
                const Expr y = code.let("b_of_columns", block % 2 == 0 ? cuda::low_half(both) : cuda::high_half(both));
                for (size_t tile = 0; tile < tiles; tile++) multiply(tile, own_fragments[tile * steps + step], y);
            }
        };
        Expr others = cast<uint64_t>(0);
        for_each([&](size_t tile, const Expr &x, const Expr &y) {
            const Expr numbers = code.let("numbers", cuda::numbers_of(nest.type, y));
            if (tile == 0) others = code.let("others", others | (numbers ^ y));
            add_product(x, numbers, static_cast<int>(2 * tile), block);
        });
        Code outer;
        std::swap(code, outer);
        std::vector<Expr> counts(tiles, cuda::zero_fragment());
        for_each([&](size_t tile, const Expr &x, const Expr &y) {
            const Expr there = cuda::ones_unless_negative(nest.type, x),
                       counted = cuda::counted_infinities(nest.type, y);
            counts[tile] = code.let("counts", cuda::mma(nest.type, there, counted, counts[tile]));
        });
        for (size_t tile = 0; tile < tiles; tile++) {
            for (int i = 0; i < 4; i++) {
                const Expr index = sum_index(static_cast<int>(2 * tile), block, i);
                const Expr counted = cuda::float_of(counts[tile], i);
                const Expr with = code.let("with_infinities", cuda::add_infinities(load_sum(index), counted));
                code.run(Store::make(nest.store->name, with, index, Parameter(), const_true(), {}));
            }
        }
        std::swap(code, outer);
        const Expr some = code.let("some", cuda::any_lane(cast<int32_t>(others != cast<uint64_t>(0))));
        code.run(IfThenElse::make(some != 0, outer.finish()));
    }

    Expr own_at(int row, int step) const {
        return own_fragments[static_cast<size_t>((row / 2 * k_extent + step) / (2 * edge))];
    }

    Expr fragment_of_a(int row, int step) const {
        if (!a_at.defined()) return own_fragment(row, step);
        return cuda::load_matrices(a_at + element_bytes * (row * edge * a.row + step * a.k));
    }

    // Made of elements in registers, which are dealt out as columns of an accumulator are, or in fours.
    Expr own_fragment(int row, int step) const {
        const int own = in_fours_of_k() ? 4 : 2, apart = in_fours_of_k() ? 2 : edge;
        const auto element = [&](int r, int k) {
            const Expr index =
                first(nest.a_index) + ((row + r) * edge * a.row + (step + k) * a.k) + thread() % 4 * (own * a.k);
            return Load::make(nest.a_in_registers, nest.a, index, Buffer<>(), Parameter(), const_true(), {});
        };
        const auto pair = [&](int r, int k) {
            const Expr low = element(r, k), high = element(r, k + 1);
            if (nest.a_in_registers == Float(32)) return cuda::pack(nest.type, low, high);
            return cast<uint32_t>(low) | cast<uint32_t>(high) << 16;
        };
        return cuda::fragment(pair(0, 0), pair(1, 0), pair(0, apart), pair(1, apart));
    }

    // Of four columns the first and the third are of one tile, the others of the next.
    Expr sum_index(int row_block, int tile, int i) const {
        const int column = own_columns() == 4 ? tile / 2 * (2 * edge) + tile % 2 + i % 2 * 2 : tile * edge + i % 2;
        return first(nest.c_index) + (row_block + i / 2) * edge * c.row + column * c.column;
    }

    // To the four sums of this thread, two of a row.
    void add_product(const Expr &x, const Expr &y, int row_block, int tile) {
        Expr index[4], sum[4];
        for (int i = 0; i < 4; i++) {
            index[i] = sum_index(row_block, tile, i);
            sum[i] = load_sum(index[i]);
        }
        const Expr sums = code.let("sums", cuda::mma(nest.type, x, y, cuda::fragment(sum[0], sum[1], sum[2], sum[3])));
        for (int i = 0; i < 4; i++) {
            code.run(Store::make(nest.store->name, cuda::float_of(sums, i), index[i], Parameter(), const_true(), {}));
        }
    }
};

}  // namespace

Stmt fragment_product(const ProductNest &nest, int threads) { return FragmentProduct(nest, threads).lowered(); }

}  // namespace heed
