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

HEED_LAUNCH_ARGUMENTS(CopyInputs, HEED_CUDA_COPY_ROWS)

class CopyRowsProgram : LayerProgram {
public:
    CopyRowsProgram(const std::string &name, ElementType type) : LayerProgram(name, type) {}

    Module module(const Target &target) {
        constexpr int warps = layer_threads / 32;
        const Expr thread = Launch::thread(name);
        const Expr row = code.let("row", Launch::block(name) * warps + thread / 32);
        code.when(row < in.rows, [&] {
            const Registers hidden = code.registers("hidden", Int(32), 1);
            code.set(hidden, 0, 0);
            code.when(in.padding_first != cast<uint64_t>(0), [&] {
                const Expr byte = code.let("byte", load_u8(in.padding_first + cast<uint64_t>(row)));
                code.set(hidden, 0, cast<int32_t>((byte != cast<uint32_t>(0)) == (in.true_hides != 0)));
            });
            const Expr lane = code.let("lane", thread % 32);
            code.when(
                in.wide != 0, [&] { copy(row, lane, elements.width(), hidden); }, [&] { copy(row, lane, 1, hidden); });
        });
        return launch(in, ceil_div(in.rows, warps), target);
    }

private:
    const CopyInputs in;

    void copy(const Expr &row, const Expr &lane, int width, const Registers &hidden) {
        const Expr from_row = code.let("from_row", in.from_first + cast<uint64_t>(row) * in.from_stride),
                   to_row = code.let("to_row", in.to_first + cast<uint64_t>(row) * in.to_stride);
        code.loop("round", ceil_div(in.columns, 32 * width), [&](const Expr &round) {
            const Expr e = code.let("e", (round * 32 + lane) * width), offset = bytes_of(e, elements.size());
            code.when(e < in.columns, [&] {
                code.when(
                    hidden[0] != 0,
                    [&] { elements.store(to_row + offset, Elements(static_cast<size_t>(width), Expr(0.f))); },
                    [&] { elements.copy(from_row + offset, to_row + offset, width); });
            });
        });
    }
};

}  // namespace

Module transpose_module(const std::string &name, ElementType type, const Target &target) {
    return TransposeProgram(name, type).module(target);
}

Module copy_rows_module(const std::string &name, ElementType type, const Target &target) {
    return CopyRowsProgram(name, type).module(target);
}

}  // namespace heed::cuda
