#include "generators/lowering/cuda/fragment_product.h"

#include <algorithm>

#include "generators/common/bad_input.h"
#include "generators/cuda/infinities.h"
#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

class FragmentProduct : FragmentNest {
public:
    FragmentProduct(const ProductNest &nest, int threads) : FragmentNest(nest, threads) { check_matrices(); }

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
                code.where(columns.condition, [&] {
                    for (int block = columns.begin; block < columns.end; block++) multiply_numbers(block);
                });
                continue;
            }
            for (const Range &steps : steps_alike(columns.begin)) {
                code.where(steps.condition, [&] {
                    for (int step = steps.begin; step < steps.end; step += k_of_load()) multiply(step, columns);
                });
            }
        }
        return code.finish();
    }

private:
    // Neighbours of which all have the same condition, undefined for none.
    struct Range {
        int begin, end;
        Expr condition;
    };
    Expr a_at, b_at;                  // of the lane
    std::vector<Expr> own_fragments;  // of a in registers: by rows, then steps

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

    // ---- What becomes of it
    Expr address(const std::string &array, const Expr &index, const Expr &of_lane, int bytes) const {
        return shared_address(array, (cast<int32_t>(warps_first(index)) + of_lane) * bytes);
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
        const Expr some = code.let("some", cuda::any_lane(cast<int32_t>(others != cast<uint64_t>(0))));
        code.where(some != 0, [&] {
            std::vector<Expr> counts(tiles, cuda::zero_fragment());
            for_each([&](size_t tile, const Expr &x, const Expr &y) {
                const Expr there = cuda::ones_unless_negative(nest.type, x),
                           counted = cuda::counted_infinities(nest.type, y);
                counts[tile] = code.let("counts", cuda::mma(nest.type, there, counted, counts[tile]));
            });
            for (size_t tile = 0; tile < tiles; tile++) {
                std::array<Expr, 4> of_tile;
                for (int i = 0; i < 4; i++) of_tile[static_cast<size_t>(i)] = cuda::float_of(counts[tile], i);
                add_counts(of_tile, static_cast<int>(2 * tile), block);
            }
        });
    }

    Expr own_fragment(int row, int step) const {
        return cuda::fragment(own_pair(row, step, 0), own_pair(row, step, 1), own_pair(row, step, 2),
                              own_pair(row, step, 3));
    }
    Expr own_at(int row, int step) const {
        return own_fragments[static_cast<size_t>((row / 2 * k_extent + step) / (2 * edge))];
    }

    Expr fragment_of_a(int row, int step) const {
        if (!a_at.defined()) return own_fragment(row, step);
        return cuda::load_matrices(a_at + element_bytes * (row * edge * a.row + step * a.k));
    }

    // To the four sums of this thread, two of a row.
    void add_product(const Expr &x, const Expr &y, int row_block, int tile) {
        Expr index[4], sum[4];
        for (int i = 0; i < 4; i++) {
            index[i] = sum_index(row_block, tile, i);
            sum[i] = load_sum(index[i]);
        }
        const Expr sums = code.let("sums", cuda::mma(nest.type, x, y, cuda::fragment(sum[0], sum[1], sum[2], sum[3])));
        for (int i = 0; i < 4; i++) store_sum(index[i], cuda::float_of(sums, i));
    }
};

}  // namespace

Stmt fragment_product(const ProductNest &nest, int threads) { return FragmentProduct(nest, threads).lowered(); }

}  // namespace heed
