#include "generators/lowering/cuda/warpgroup_product.h"

#include "generators/common/bad_input.h"
#include "generators/common/serial_loop.h"
#include "generators/cuda/infinities.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/warpgroup.h"
#include "generators/lowering/cuda/fragment_nest.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

constexpr int group_threads = 128, group_rows = 64;

class OfWarpgroups : FragmentNest {
public:
    OfWarpgroups(const ProductNest &nest, int rows_of_b, int threads)
        : FragmentNest(nest, threads), rows_of_b(rows_of_b) {
        if (nest.has_codes || nest.condition.defined()) refuse("warpgroups multiply no codes, and sum all terms");
        if (row_blocks != 2 || threads % group_threads != 0) refuse("a warp of a warpgroup has 16 rows");
    }

    // scores = a b: a is in shared memory, the sums begin with 0.
    WarpgroupProduct scores(int rows_of_a) {
        if (a.k != 1 || b.k != 1 || a.row % panel_elements() != 0 || b.column % panel_elements() != 0) {
            refuse("rows of its matrices are no panels over its terms");
        }
        const Expr first_row = simplify(of_group(nest.a_index) / a.row);
        const Expr at_a = shared_address(nest.a, first_row * cuda::panel_row_bytes);
        const Expr of_a = code.let("a_matrix", cuda::matrix_descriptor(at_a, 0));
        const Expr of_b = code.let("b_matrix", cuda::matrix_descriptor(buffer_of_b(), 0));
        for (int term = 0; term < k_extent; term += 2 * edge) {
            code.run(cuda::multiply_scores(nest.type, columns(), at_term(of_a, term, rows_of_a),
                                           at_term(of_b, term, rows_of_b), term == 0));
        }
        const Stmt begin = code.finish();
        code = {};
        for (int tile = 0; tile < column_blocks; tile++) {
            for (int i = 0; i < 4; i++) store_sum(sum_index(0, tile, i), cuda::score(4 * tile + i));
        }
        return {Evaluate::make(0), begin, code.finish(), buffer_of_b()};
    }

    // sums += a b: a is in registers, and so are the sums, which NamedSums finds.
    WarpgroupProduct sums(const Expr &spare) {
        if (nest.a_in_registers != Float(32) || b.column != 1 || b.k % panel_elements() != 0) {
            refuse("rows of its second matrix are no panels over its columns");
        }
        if (c.column != 1 || c.row < columns()) refuse("its sums are not in rows");
        std::vector<Expr> weights;
        for (int term = 0; term < k_extent; term += 2 * edge) {
            for (int i = 0; i < 4; i++) weights.push_back(code.let("weights", own_pair(0, term, i)));
        }
        if (nest.leaves_out) leave_numbers(weights, spare);
        for (size_t i = 0; i < weights.size(); i++) code.run(cuda::set_weights(static_cast<int>(i), weights[i]));
        const Stmt before = code.finish();
        code = {};
        const Expr of_b = code.let("b_matrix", cuda::matrix_descriptor(buffer_of_b(), panel_bytes()));
        for (int term = 0; term < k_extent; term += 2 * edge) {
            code.run(cuda::multiply_sums(nest.type, columns(), term, at_row(of_b, term)));
        }
        return {before, code.finish(), Evaluate::make(0), buffer_of_b()};
    }

private:
    const int rows_of_b;

    static constexpr int panel_elements() { return cuda::panel_columns; }
    int columns() const { return column_blocks * edge; }
    int panel_bytes() const { return rows_of_b * cuda::panel_row_bytes; }

    // The index of what the first lane of a thread's warpgroup has.
    Expr of_group(const Expr &index) const {
        const Expr group = thread() / group_threads * group_threads;
        if (difference(at_thread(first(index), 32), at_thread(first(index), 0)) != 2 * edge * a.row) {
            refuse("warps have not 16 rows, one after the other");
        }
        return simplify(at_thread(first(index), group));
    }
    // Where b begins: a buffer of its array.
    Expr index_of_b() const { return simplify(at_thread(first(nest.b_index), 0)); }
    int buffer_elements() const { return rows_of_b * std::max(b.column, b.k); }
    Expr buffer_of_b() const {
        const ModulusRemainder place = modulus_remainder(index_of_b());
        if (place.modulus % buffer_elements() != 0 || place.remainder % buffer_elements() != 0) {
            refuse("its second matrix is part of an array");
        }
        return shared_address(nest.b, index_of_b() * element_bytes);
    }
    // A matrix whose rows are over terms, from this one on.
    static Expr at_term(const Expr &matrix, int term, int rows) {
        const int panel = term / panel_elements() * rows * cuda::panel_row_bytes;
        return matrix + cast<uint64_t>((panel + term % panel_elements() * element_bytes) / 16);
    }
    // One whose rows are terms.
    static Expr at_row(const Expr &matrix, int term) {
        return matrix + cast<uint64_t>(term * cuda::panel_row_bytes / 16);
    }

    // Adds the infinities and NaN of b to the sums, where a is not left out, and leaves numbers of it in shared memory.
    // It does one panel after the other, and puts counted infinities in `spare`. All threads of the block take part.
    void leave_numbers(const std::vector<Expr> &weights, const Expr &spare) {
        if (k_extent > 127) refuse("more than 127 infinities are not counted");
        if (!spare.defined()) refuse("no panel is spare for infinities");
        const Expr counted = code.let("counted", spare);
        for (size_t of = 0; of < weights.size(); of += 4) {
            const Expr four = cuda::fragment(weights[of], weights[of + 1], weights[of + 2], weights[of + 3]);
            const Expr there = code.let("there", cuda::ones_unless_negative(nest.type, four));
            for (int i = 0; i < 4; i++) {
                const Expr ones = reinterpret<uint32_t>(cuda::float_of(there, i));
                code.run(cuda::set_weights(static_cast<int>(of) + i, ones));
            }
        }
        for (int first = 0; first < columns(); first += panel_elements()) {
            const Expr panel = code.let("panel", buffer_of_b() + first / panel_elements() * panel_bytes());
            const int width = std::min(columns() - first, panel_elements());
            code.run(cuda::barrier());
            take_numbers(panel, counted, width / edge);
            code.run(cuda::copies_for_products());
            code.run(cuda::barrier());
            const Expr matrix = code.let("b_matrix", cuda::matrix_descriptor(counted, panel_bytes()));
            code.run(cuda::begin_products());
            for (int term = 0; term < k_extent; term += 2 * edge) {
                code.run(cuda::multiply_counts(nest.type, width, term, at_row(matrix, term)));
            }
            code.run(cuda::commit_products());
            code.run(cuda::wait_products(0));
            for (int tile = 0; tile < width / edge; tile++) add_counted(tile, first / edge + tile);
        }
    }

    // In a branch, so that counts are not made numbers all at once: that takes registers. All lanes take it, since the
    // next products need whole warps.
    void add_counted(int of_panel, int tile) {
        std::array<Expr, 4> counts;
        Expr some = const_false();
        for (int i = 0; i < 4; i++) {
            Expr &count = counts[static_cast<size_t>(i)];
            count = code.let("count", cuda::score(4 * of_panel + i));
            some = some || count != 0.f;
        }
        const Expr in_warp = code.let("some", cuda::any_lane(cast<int32_t>(some)));
        code.where(in_warp != 0, [&] { add_counts(counts, 0, tile); });
    }

    // Each thread has some chunks of the rows of a panel.
    void take_numbers(const Expr &panel, const Expr &counted, int of_row) {
        const int chunks = rows_of_b * of_row;
        const Expr turn = Variable::make(Int(32), unique_name("turn")), number = turn * threads + thread();
        StraightCode each;
        const Expr place = each.let("place", cuda::chunk_in_panels(number / of_row, number % of_row, rows_of_b));
        for (int half = 0; half < 2; half++) {
            const Expr offset = 16 * place + 8 * half, word = each.let("word", cuda::load_shared_u64(panel + offset));
            each.run(cuda::store_shared_u64(counted + offset, cuda::counted_infinities(nest.type, word)));
            each.run(cuda::store_shared_u64(panel + offset, cuda::numbers_of(nest.type, word)));
        }
        const Stmt body = each.finish();
        code.run(serial_loop(turn.as<Variable>()->name, 0, (chunks + threads - 1) / threads,
                             chunks % threads == 0 ? body : IfThenElse::make(number < chunks, body)));
    }
};

}  // namespace

WarpgroupProduct scores_of_warpgroups(const ProductNest &nest, int rows_of_a, int rows_of_b, int threads) {
    return OfWarpgroups(nest, rows_of_b, threads).scores(rows_of_a);
}

WarpgroupProduct sums_of_warpgroups(const ProductNest &nest, int rows_of_b, const Expr &spare, int threads) {
    return OfWarpgroups(nest, rows_of_b, threads).sums(spare);
}

}  // namespace heed
