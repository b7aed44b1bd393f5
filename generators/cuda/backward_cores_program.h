#pragma once
// Private to attention's gradients on tensor cores: what loads and stores (backward_cores.cpp) and products
// (backward_cores_step.cpp) share.

#include "generators/attention/logits.h"
#include "generators/cuda/backward_block.h"
#include "generators/cuda/backward_cores.h"
#include "generators/cuda/intrinsics.h"

namespace heed::cuda {

class BackwardCoresProgram {
public:
    // Shared memory: two stages of rows of the other side, Y1, Y2 and their stats (keys), then the own rows, X1 and X2.
    // Rows are 16 bytes longer than their elements, so that eight rows of a matrix are in different banks.
    struct Shared {
        int row;         // bytes
        int stats, own;  // where stats begin in a stage; own rows
        int stage, bytes;
        int zero;  // of a word that holds 0

        Shared(BackwardSide side, const BackwardTile &tile);
    };

    BackwardCoresProgram(const std::string &name, ElementType type, BackwardSide side, const BackwardTile &tile)
        : name(name), type(type), side(side), tile(tile), shared(side, tile), score_tiles(tile.others / 8),
          out_tiles(tile.head_dim / 8 / tile.column_groups), num_sums(side == backward_keys ? 2 : 1),
          elements(type, code), logit(type, in, code),
          at(in, code, side == backward_keys ? Halide::Internal::const_true() : Halide::Internal::const_false(), 2) {}

    Halide::Module module(const Halide::Target &target);

private:
    const std::string name;
    const ElementType type;
    const BackwardSide side;
    const BackwardTile tile;
    const Shared shared;
    const int score_tiles, out_tiles;  // of 8 columns, of this warp's scores and of each of its sums
    const int num_sums;
    const BackwardInputs in{type};
    DeviceCode code;
    RowElements elements;
    BackwardLogit logit;
    BackwardBlock at;

    // ---- Where this thread is. Rows r: even ones are row `group` of a tile, odd ones group + 8
    Expr thread, lane, group, quad;  // group = lane / 4, quad = lane % 4
    Expr warp_rows, first_column;    // of this warp in the block, of its sums
    Expr shared_at, left_at, right_at, transposed_at;
    Expr plain, unit;  // no logit is changed but by scale; scale * log2(e)
    Expr first_step, steps_of_head, num_steps;
    BackwardHead general_head(const Expr &query_head);
    Expr own_row(int r) const { return at.first_row + warp_rows + group + 8 * r; }

    Registers scores, weight_grads, sums[2];
    Registers weights, score_grads;  // packed, in pairs of columns
    Registers own_rows;              // with own_in_registers: fragments of X1, then of X2
    Registers row_stats;             // queries: lse in log2 and delta of each row
    int score_index(int m, int n) const { return m * score_tiles + n; }
    int own_index(int operand, int m, int k) const { return (operand * tile.m_tiles + m) * (tile.head_dim / 16) + k; }
    int pair_index(int r, int n) const { return r * score_tiles + n; }

    void locate_anew();
    void find_lane();
    void choose_addresses();
    void make_registers();
    void load_row_stats();

    struct Step {
        Expr head, first;  // of num_heads; row of the other side
    };
    void run_passes();
    void run_steps(const Expr &pass);
    void hold_own_rows();
    Step step_of(const Expr &number);
    void load_step(const Expr &number, const Expr &buffer);
    void load_rows(const BackwardBlock::Rows &rows, const Expr &first, const Expr &existing, int count, const Expr &to);

    // ---- One step
    enum class Form { whole, positioned, general };
    void compute(const Step &step, const Expr &stage, const Expr &pass);
    void clear_what_is_no_number(const Expr &stage);
    void show_what_is_no_number();
    Expr load_own(int operand, int m, int k) const;
    void multiply(int operand, const Expr &stage, const Registers &result);
    void accumulate(int operand, const Expr &stage, const Registers &factors, const Registers &sum);
    void add_product(const Registers &tiles, int index, const Expr &a, const Expr &b, bool first);
    void change(const Step &step, const Expr &stage, Form form);
    LogitGradients of_logit(const BackwardHead &head, const Expr &i, const Expr &j, const Expr &dot,
                            const Expr &weight_dot, const Expr &lse, const Expr &delta, Form form);

    // ---- Results
    Expr some_sum_is_no_number();
    void store(const BackwardBlock::Rows &to, const Registers &sum, const Expr &factor);
};

}  // namespace heed::cuda
