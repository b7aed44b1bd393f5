#include "generators/cuda/linear_tiles.h"

#include "generators/common/ceil_div.h"
#include "generators/cuda/linear_inputs.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int tile_k = 16, side = linear_edge / 16;  // a thread has side x side results
constexpr int tile_row = 4 * (linear_edge + 4);      // bytes of one k: a multiple of 16 that spreads over the banks
constexpr int shared_tile = tile_k * tile_row;       // of x; after it that of W

class LinearProgram {
public:
    LinearProgram(const std::string &name, ElementType type)
        : name(name), type(type), elements(type, code), rows(in, code, elements) {}

    Module module(const Target &target) {
        locate();
        sums = code.registers("sums", Float(32), side * side);
        for (int i = 0; i < side * side; i++) code.set(sums, i, 0.f);
        code.loop("step", ceil_div(in.dim_in, tile_k), [&](const Expr &step) {
            code.run(barrier());
            load_tiles(code.let("k", step * tile_k + thread % tile_k));
            code.run(barrier());
            for (int k = 0; k < tile_k; k++) multiply(k);
        });
        for (int i = 0; i < side; i++) store_row(i);
        const Expr blocks = rows.num_blocks(linear_edge, linear_edge);
        const Launch launch = {name, blocks, linear_threads, linear_shared_bytes(), {}, {}, code.finish()};
        return launch_module(name, Func("multiplied"), in.output_types(), in.arguments(), launch, target);
    }

private:
    const std::string name;
    const ElementType type;
    const LinearInputs in;
    DeviceCode code;
    RowElements elements;
    LinearRows rows;
    Expr thread, shared;
    LinearBlock block;
    Expr x_rows[side], w_rows[side];  // of the elements that this thread loads
    Registers sums;

    void locate() {
        thread = Launch::thread(name);
        shared = code.let("shared", shared_begin());
        block = rows.block(name, linear_edge, linear_edge);
        for (int i = 0; i < side; i++) {
            const Expr of_tile = thread / tile_k + i * (linear_edge / side);
            const Expr row = code.let("row", min(block.first_row + of_tile, in.num_rows - 1));
            const Expr column = code.let("column", min(block.first_column + of_tile, in.columns - 1));
            x_rows[i] = rows.x(row);
            w_rows[i] = rows.weight(column);
        }
    }

    // Rows and columns after the last repeat it: their results are not stored. Zeros follow the last k.
    void load_tiles(const Expr &k) {
        const Expr on = code.let("on", cast<int32_t>(k < in.dim_in)),
                   at = code.let("at", cast<uint64_t>(k) * cast<uint64_t>(elements.size()));
        const auto load = [&](const Expr &address) {
            if (type == ElementType::f32) return load_u32_if(address, on);
            return reinterpret<uint32_t>(to_float(type, cast<uint16_t>(load_u16_if(address, on))));
        };
        Expr x[side], w[side];
        for (int i = 0; i < side; i++) {
            x[i] = code.let("x_bits", load(x_rows[i] + at));
            w[i] = code.let("w_bits", load(w_rows[i] + at));
        }
        const Expr to = code.let("to", shared + thread % tile_k * tile_row + thread / tile_k * 4);
        for (int i = 0; i < side; i++) {
            const int behind = i * (linear_edge / side) * 4;
            code.run(store_shared_u32(to + behind, x[i]));
            code.run(store_shared_u32(to + shared_tile + behind, w[i]));
        }
    }

    void multiply(int k) {
        const Expr at = shared + k * tile_row;
        const Expr x = code.let("x_four", load_shared_fragment(at + thread / 16 * 16));
        const Expr w = code.let("w_four", load_shared_fragment(at + shared_tile + thread % 16 * 16));
        for (int i = 0; i < side; i++) {
            for (int j = 0; j < side; j++) {
                code.set(sums, i * side + j, fma(float_of(x, i), float_of(w, j), sums[i * side + j]));
            }
        }
    }

    void store_row(int i) {
        const Expr row = code.let("row", block.first_row + thread / 16 * side + i);
        code.when(row < in.num_rows, [&] {
            const Expr to = rows.out(row);
            for (int j = 0; j < side; j++) {
                const Expr column = code.let("column", block.first_column + thread % 16 * side + j);
                code.when(column < in.columns, [&] { rows.store(to, column, sums[i * side + j]); });
            }
        });
    }
};

}  // namespace

Module linear_module(const std::string &name, ElementType type, const Target &target) {
    return LinearProgram(name, type).module(target);
}

int linear_shared_bytes() { return 2 * shared_tile; }

}  // namespace heed::cuda
