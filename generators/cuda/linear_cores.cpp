#include "generators/cuda/linear_cores.h"

#include "generators/common/ceil_div.h"
#include "generators/cuda/linear_inputs.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int k_step = 64, chunks = k_step / 8;         // of 16 bytes
constexpr int staged_row = 2 * k_step + 16;             // bytes; eight rows of a matrix are in different banks
constexpr int shared_weights = core_rows * staged_row;  // after x
constexpr int rows_at_once = core_threads / chunks;     // that the block loads
constexpr int m_tiles = 2, n_tiles = core_columns / 8;  // of a warp

class CoreProgram {
public:
    CoreProgram(const std::string &name, ElementType type)
        : name(name), type(type), elements(type, code), rows(in, code, elements) {}

    Module module(const Target &target) {
        locate();
        sums = code.registers("sums", UInt(128), m_tiles * n_tiles);
        for (int i = 0; i < m_tiles * n_tiles; i++) code.set(sums, i, zero_fragment());
        code.loop("step", ceil_div(in.dim_in, k_step), [&](const Expr &step) {
            code.run(barrier());
            load_tiles(step);
            code.run(barrier());
            for (int k = 0; k < k_step / 16; k++) multiply(k);
        });
        for (int i = 0; i < 2 * m_tiles; i++) store_row(i / 2, i % 2);
        const Expr blocks = rows.num_blocks(core_rows, core_columns);
        const Launch launch = {name, blocks, core_threads, linear_cores_shared_bytes(), {}, {}, code.finish()};
        return launch_module(name, Func("multiplied"), in.output_types(), in.arguments(), launch, target);
    }

private:
    const std::string name;
    const ElementType type;
    const LinearInputs in;
    DeviceCode code;
    RowElements elements;
    LinearRows rows;
    Expr thread, lane, warp, shared, x_at, w_at;
    LinearBlock block;
    Expr x_rows[core_rows / rows_at_once], w_rows[core_columns / rows_at_once];  // that this thread loads
    Registers sums;

    // Rows and columns after the last repeat it: their results are not stored.
    void locate() {
        thread = Launch::thread(name);
        lane = code.let("lane", thread % 32);
        warp = code.let("warp", thread / 32);
        shared = code.let("shared", shared_begin());
        block = rows.block(name, core_rows, core_columns);
        for (int i = 0; i < core_rows / rows_at_once; i++) {
            x_rows[i] =
                rows.x(code.let("row", min(block.first_row + thread / chunks + i * rows_at_once, in.num_rows - 1)));
        }
        for (int i = 0; i < core_columns / rows_at_once; i++) {
            const Expr column = block.first_column + thread / chunks + i * rows_at_once;
            w_rows[i] = rows.weight(code.let("column", min(column, in.columns - 1)));
        }
        x_at = code.let("x_at", shared + (warp * 32 + lane % 16) * staged_row + lane / 16 * 16);
        w_at = code.let("w_at", shared + shared_weights + (lane % 8 + lane / 16 * 8) * staged_row + lane / 8 % 2 * 16);
    }

    // Zeros follow the last k.
    void load_tiles(const Expr &step) {
        const Expr k = code.let("k", step * k_step + thread % chunks * 8);
        const Expr on = code.let("on", cast<int32_t>(k < in.dim_in));
        const Expr at = code.let("at", cast<uint64_t>(k) * cast<uint64_t>(2));
        const Expr to = code.let("to", shared + thread / chunks * staged_row + thread % chunks * 16);
        std::vector<Expr> loaded;
        for (const Expr &row : x_rows) loaded.push_back(code.let("x_chunk", load_fragment_if(row + at, on)));
        for (const Expr &row : w_rows) loaded.push_back(code.let("w_chunk", load_fragment_if(row + at, on)));
        for (size_t i = 0; i < loaded.size(); i++) {
            const int behind = static_cast<int>(i) * rows_at_once * staged_row;
            code.run(store_shared_fragment(to + behind, loaded[i]));
        }
    }

    void multiply(int k) {
        Expr x[m_tiles];
        for (int m = 0; m < m_tiles; m++) {
            x[m] = code.let("x_fragment", load_matrices(x_at + (m * 16 * staged_row + k * 32)));
        }
        for (int n = 0; n < n_tiles; n += 2) {
            const Expr pair = code.let("w_fragments", load_matrices(w_at + (n * 8 * staged_row + k * 32)));
            for (int i = 0; i < 2 * m_tiles; i++) {
                const int at = i % m_tiles * n_tiles + n + i / m_tiles;
                code.set(sums, at,
                         mma(type, x[i % m_tiles], i / m_tiles == 0 ? low_half(pair) : high_half(pair), sums[at]));
            }
        }
    }

    // Row 8 * half + lane / 4 of tile m.
    void store_row(int m, int half) {
        const Expr row = code.let("row", block.first_row + warp * 32 + lane / 4 + (16 * m + 8 * half));
        code.when(row < in.num_rows, [&] {
            const Expr to = rows.out(row);
            for (int i = 0; i < 2 * n_tiles; i++) {
                const Expr column = code.let("column", block.first_column + lane % 4 * 2 + (i / 2 * 8 + i % 2));
                code.when(column < in.columns,
                          [&] { rows.store(to, column, float_of(sums[m * n_tiles + i / 2], 2 * half + i % 2)); });
            }
        });
    }
};

}  // namespace

Module linear_cores_module(const std::string &name, ElementType type, const Target &target) {
    return CoreProgram(name, type).module(target);
}

int linear_cores_shared_bytes() { return (core_rows + core_columns) * staged_row; }

}  // namespace heed::cuda
