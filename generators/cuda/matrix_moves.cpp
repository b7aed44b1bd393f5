#include "generators/cuda/matrix_moves.h"

#include "generators/common/ceil_div.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/layer_program.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// A tile goes through shared memory, whose lines are a word longer than the tile: no two lanes meet in a bank.
HEED_LAUNCH_ARGUMENTS(TransposeInputs, HEED_CUDA_TRANSPOSE)

class TransposeProgram : LayerProgram {
public:
    TransposeProgram(const std::string &name, ElementType type) : LayerProgram(name, type) {}

    Module module(const Target &target) {
        constexpr int step = layer_threads / transpose_tile;
        const Expr across = ceil_div(in.columns, transpose_tile), thread = Launch::thread(name);
        const Expr band = code.let("band", quotient(Launch::block(name), across));
        const Expr first_row = code.let("first_row", band * transpose_tile),
                   first_column = code.let("first_column", (Launch::block(name) - band * across) * transpose_tile);
        const Expr x = code.let("x", thread % transpose_tile), y = code.let("y", thread / transpose_tile),
                   shared = code.let("shared", shared_begin());
        const auto word = [&](const Expr &row, const Expr &column) {
            return shared + (row * (transpose_tile + 1) + column) * 4;
        };
        for (int skip = 0; skip < transpose_tile; skip += step) {
            const Expr row = first_row + y + skip, column = first_column + x;
            code.when(row < in.rows && column < in.columns, [&] {
                const Expr at = place(in.from_first, row, in.from_stride, column);
                code.run(store_shared_u32(word(y + skip, x), code.let("bits", load(at))));
            });
            code.when(row >= in.rows, [&] { code.run(store_shared_u32(word(y + skip, x), cast<uint32_t>(0))); });
        }
        code.run(barrier());
        for (int skip = 0; skip < transpose_tile; skip += step) {
            const Expr row = first_column + y + skip, column = first_row + x;
            code.when(row < in.columns && column < in.to_columns, [&] {
                store(place(in.to_first, row, in.to_stride, column),
                      code.let("bits", load_shared_u32(word(x, y + skip))));
            });
        }
        return launch(in, ceil_div(in.to_columns, transpose_tile) * across, target, transpose_shared_bytes());
    }

private:
    const TransposeInputs in;

    Expr place(const Expr &first, const Expr &row, const Expr &stride, const Expr &column) {
        return first + cast<uint64_t>(row) * stride + bytes_of(column, elements.size());
    }
    Expr load(const Expr &at) { return elements.size() == 4 ? cast<uint32_t>(load_i32(at)) : load_u16(at); }
    void store(const Expr &at, const Expr &bits) {
        code.run(elements.size() == 4 ? store_u32(at, bits) : store_u16(at, bits));
    }
};

}  // namespace

Module transpose_module(const std::string &name, ElementType type, const Target &target) {
    return TransposeProgram(name, type).module(target);
}

}  // namespace heed::cuda
