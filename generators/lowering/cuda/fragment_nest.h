#pragma once
// What a nest of a product of tensor cores is made of: its loops, how far its indices move with them, and which
// elements a lane has. Refused: elements that are not dealt out as mma.m16n8k16 has them (cuda/intrinsics.h).

#include <array>

#include "generators/lowering/cuda/product_nest.h"
#include "generators/lowering/cuda/straight_code.h"

namespace heed {

class FragmentNest {
protected:
    using Expr = Halide::Expr;
    static constexpr int edge = 8;           // rows of a matrix
    static constexpr int element_bytes = 2;  // of a

    // How far an index moves; 0 where it does not.
    struct Steps {
        int row = 0, column = 0, k = 0;
    };
    struct Loop {
        int in_a, in_b, in_c, extent;
        std::string name = {};
    };
    const ProductNest &nest;
    const int threads;  // of a block
    const int b_bytes;  // of an element
    std::vector<Loop> row_loops, column_loops, k_loops;
    Steps a, b, c;
    int row_blocks = 0, column_blocks = 0, k_extent = 1;  // of a thread; rows in eights
    bool in_order_of_codes = false;                       // elements of a
    StraightCode code;

    FragmentNest(const ProductNest &nest, int threads);

    [[noreturn]] void refuse(const std::string &why) const;

    bool is_transposed() const { return b.column == 1; }
    int chunk() const { return 16 / b_bytes; }  // elements of a row of a matrix of b
    // A lane gets four codes of a row where it gets two elements of 16 bits: of k, or of columns.
    bool in_fours_of_k() const { return nest.has_codes && !is_transposed(); }
    int own_columns() const { return nest.has_codes && is_transposed() ? 4 : 2; }
    int k_of_load() const { return in_fours_of_k() ? 4 * edge : 2 * edge; }

    static Expr thread() { return Halide::Internal::Variable::make(Halide::Int(32), thread_variable); }
    static Expr at_thread(const Expr &index, const Expr &thread) {
        return Halide::Internal::substitute(thread_variable, thread, index);
    }
    Expr first(Expr index) const;
    // What is added to an index from one place to another. It must be alike in all threads.
    int difference(const Expr &to, const Expr &from) const;

    // The index of sum i, of the four of a thread, two of a row, in a block of rows and a tile of columns.
    Expr sum_index(int row_block, int tile, int i) const;
    Expr load_sum(const Expr &index) const;
    void store_sum(const Expr &index, const Expr &value);
    // Register i of an A fragment that is made of elements in registers, which are dealt out as columns of an
    // accumulator are, or in fours.
    Expr own_pair(int row, int step, int i) const;
    // To the four sums of a thread what infinities make of them, of each of which a count is given.
    void add_counts(const std::array<Expr, 4> &counts, int row_block, int tile);

private:
    void add(const Halide::Internal::For *loop);
    void read_order_of_codes();
    void read_loops();
    void check_deal(int thread) const;
};

}  // namespace heed
