#pragma once
// Blocks of attention's gradients of tensors at addresses: a block has rows X of a side of the score matrix and meets
// rows Y of the other. Scores S = X0 . Y0 and gradients of weights dP = X1 . Y1 give the weights P and the gradients dS
// of scores, and these the sums dS Y0 and, of keys, P Y1:
//   keys     X = k, v;     Y = q, dout of all heads of the group; dk and dv
//   queries  X = q, dout;  Y = k, v;                              dq
// No atomics: bits depend on nothing but the problem.

#include "generators/contract/cuda_arguments.h"
#include "generators/ops/backward_scores.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(BackwardSumsDeviceArguments, HEED_CUDA_BACKWARD_SUMS)

struct BackwardBlocks : BackwardScores<BackwardSumsDeviceArguments>, Results {
protected:
    // Rows of X and columns of the sums that a block has.
    struct Shape {
        int rows, columns;
    };
    const ElementType type;
    const Shape shape;
    const Halide::Func *fields = nullptr;  // (sequence): what the table says of it, where a stage holds that

    BackwardBlocks(ElementType type, const Shape &shape, const ScoreMod &score_mod)
        : BackwardScores(type, score_mod), type(type), shape(shape) {}

    Expr field(SequenceField which, const Expr &of) const override {
        return fields == nullptr ? BackwardScores::field(which, of) : (*fields)(of)[which];
    }
    void define_fields(Halide::Func &of, const Halide::Var &sequence) const;

    // Where a block is. Neighbouring blocks belong to the same head.
    struct Block {
        Expr sequence, head, first_row, first_column;
        Expr num_rows, stored_rows;  // of the sequence: those that exist, those that have gradients
        Expr num_other;
    };
    Expr num_blocks(BackwardSide side) const;
    Block block_of(BackwardSide side, const Expr &number) const;
    Rows rows(bool of_keys, int n, const Expr &sequence) const {
        return of_keys ? key_rows(n, sequence) : query_rows(n, sequence);
    }
    // Rows of Y that row x meets by lengths and places alone: from begin on and before end.
    struct Range {
        Expr begin, end;
    };
    Range range_of(BackwardSide side, const Block &at, const Expr &x) const;

    Expr group() const { return num_heads / num_kv_heads; }
    // The head of Y; number: of those of a group.
    Expr other_head(BackwardSide side, const Block &at, const Expr &number) const {
        return side == backward_keys ? at.head * group() + number : kv_head_of(at.head);
    }
    // Where gradient n of X goes.
    Rows gradient_rows(BackwardSide side, int n, const Expr &sequence) const {
        Rows to = rows(side == backward_keys, n, sequence);
        to.first = side != backward_keys ? dq : n == 0 ? dk : dv;
        return to;
    }
    // Stores element (row, column) of the sums of a block, in the order of the gradients.
    Expr stored(BackwardSide side, const std::vector<Expr> &sums, const Expr &column, const Expr &row,
                const Expr &number) const;
};

}  // namespace heed
