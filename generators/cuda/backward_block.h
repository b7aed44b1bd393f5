#pragma once
// A block of rows of one side of the score matrix, keys or queries, and the rows of the other side that it meets.
//
// With X the rows of the side and Y those of the other: scores S = X1 . Y1 and gradients of weights dP = X2 . Y2, from
// which the weights P and the gradients dS of scores; then sums dS Y1 and, of keys, P Y2.
//   keys     X1 = k, X2 = v;     Y1 = q, Y2 = dout; sums dk and dv, over all heads of the group
//   queries  X1 = q, X2 = dout;  Y1 = k, Y2 = v;    sum dq

#include <utility>

#include "generators/cuda/backward_logit.h"

namespace heed::cuda {

class BackwardBlock {
public:
    // `is_keys` may be a constant.
    BackwardBlock(const BackwardInputs &in, DeviceCode &code, const Halide::Expr &is_keys, int size)
        : in(in), code(code), is_keys(is_keys), size(size) {}

    // For launches of blocks of `rows` rows: what the host computes, and the number of blocks in all.
    std::vector<std::pair<std::string, Halide::Expr>> host_values(int rows) const;
    Halide::Expr num_blocks() const;
    // Sets what is below. Neighbouring blocks belong to the same head.
    void locate(const Halide::Expr &block, int rows);

    Halide::Expr sequence, head;          // head of the side
    Halide::Expr first_row, num_rows;     // of the block; rows of the sequence that exist
    Halide::Expr stored_rows;             // rows of the sequence that have gradients
    Halide::Expr num_heads;               // heads of the other side
    Halide::Expr begin_other, end_other;  // rows of the other side that some row of the block may see
    Halide::Expr full_begin, full_end;    // rows of the other side that all rows of the block see, masks apart
    SequenceFields fields;

    // Head h of num_heads of the other side.
    Halide::Expr other_head(const Halide::Expr &h) const;
    Halide::Expr query_head(const Halide::Expr &h) const { return select(is_keys, other_head(h), head); }

    // X1, X2 and Y1, Y2: address of row 0 of the sequence, bytes from row to row, elements of a row,
    // whether there is such a tensor.
    struct Rows {
        Halide::Expr address, row_bytes, length, exists;
        Halide::Expr whole, pairs;  // of 16 bytes, or of pairs of elements, whatever head and token

        Halide::Expr row(const Halide::Expr &number) const {
            return address + Halide::cast<uint64_t>(Halide::cast<int64_t>(number) * row_bytes);
        }
    };
    Rows own(int n) const { return rows(n == 0 ? in.k : in.v, n == 0 ? in.q : in.dout, is_keys, head); }
    Rows other(int n, const Halide::Expr &of_head) const {
        return rows(n == 0 ? in.k : in.v, n == 0 ? in.q : in.dout, !is_keys, of_head);
    }
    Rows sums(int n) const { return rows(n == 0 ? in.dk : in.dv, in.dq, is_keys, head); }

private:
    const BackwardInputs &in;
    DeviceCode &code;
    const Halide::Expr is_keys;
    const int size;
    const Halide::Expr blocks_of_head = Halide::Internal::Variable::make(Halide::Int(32), "blocks_of_head"),
                       group_size = Halide::Internal::Variable::make(Halide::Int(32), "group_size");

    Halide::Expr heads() const { return select(is_keys, in.k.extent(1), in.q.extent(1)); }
    Rows rows(const DeviceTensor &of_keys, const DeviceTensor &of_queries, const Halide::Expr &keys,
              const Halide::Expr &of_head) const;
};

}  // namespace heed::cuda
