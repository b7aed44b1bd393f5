#pragma once
// Attention scores or probabilities of tensors at addresses: tiles of rows of queries and of keys, whose products are
// made anew for the maxima of rows, their sums and the result.

#include "generators/contract/cuda_arguments.h"
#include "generators/ops/device_scores.h"
#include "generators/ops/product.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(AttentionProbsDeviceArguments, HEED_CUDA_ATTENTION_PROBS)

struct AttentionProbsDevice : DeviceScores<AttentionProbsDeviceArguments>, ProbsRows, Results {
    // The products of a tile of rows and one of keys.
    struct Tile : TileProduct {
        Halide::Func key_row{"key_row"};    // (column, across, down): its address; 0: there is no such key
        Halide::Func products{"products"};  // (column, row, across, down)

        using TileProduct::TileProduct;
    };
    const ProductTile tile;

    Halide::Var row{"row"}, across{"across"}, down{"down"};  // tiles of keys; blocks of rows of all heads
    Halide::Func query_row{"query_row"};                     // (row, down): its address; 0: there is no such row
    std::vector<Tile> tiles;                                 // for row_max, row_sum, the result
    Halide::RDom all;                                        // column, row, across, down
    Halide::RDom faults;                                     // key, sequence

    // `lanes`: of a row.
    AttentionProbsDevice(ElementType type, ElementType kv_type, const ProductTile &tile, int lanes);

private:
    using Expr = Halide::Expr;
    const ElementType type, kv_type;

    // A row of a block of rows, a key of a tile. Those after the last repeat it: they store the same result, so that
    // threads of a warp stay together.
    Row place(const Expr &in_block, const Expr &block) const;
    Expr key_of(const Expr &column, const Expr &key_tile) const;

    Expr key_row(const Expr &first, const Expr &of_batch, const Expr &of_head, const Expr &of_token, const Row &at,
                 const Expr &j) const;

    void define_tile(Tile &of) const;
    Expr score(const Tile &of, const Expr &column, const Expr &in_block, const Expr &key_tile, const Expr &block) const;
    Expr stored(const Expr &value, const Row &at, const Expr &j) const;
};

}  // namespace heed
