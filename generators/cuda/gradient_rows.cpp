#include "generators/cuda/gradient_rows.h"

#include "generators/common/ceil_div.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/layer_program.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// Elements of the kernel's type, or f32 where a parameter says so.
class GradientProgram : protected LayerProgram {
protected:
    GradientProgram(const std::string &name, ElementType type) : LayerProgram(name, type), type(type) {}

    // Number `index`, UInt(64), from `first` on.
    Expr load_either(const Expr &first, const Expr &index, const Expr &is_f32) {
        const auto at = [&](int size) { return first + index * cast<uint64_t>(size); };
        if (type == ElementType::f32) return elements.load(at(4), 1)[0];
        const Registers value = code.registers("value", Float(32), 1);
        code.when(
            is_f32 != 0, [&] { code.set(value, 0, code.let("f32", load_f32(at(4)))); },
            [&] { code.set(value, 0, elements.load(at(elements.size()), 1)[0]); });
        return code.let("either", value[0]);
    }

    void store_either(const Expr &first, const Expr &index, const Expr &is_f32, const Expr &value) {
        const auto at = [&](int size) { return first + index * cast<uint64_t>(size); };
        const Expr x = code.let("stored", value);
        if (type == ElementType::f32) {
            code.run(store_f32(at(4), x));
            return;
        }
        code.when(
            is_f32 != 0, [&] { code.run(store_f32(at(4), x)); }, [&] { elements.store(at(elements.size()), {x}); });
    }

private:
    const ElementType type;
};

HEED_LAUNCH_ARGUMENTS(SumInputs, HEED_CUDA_COLUMN_SUMS)

class ColumnSumsProgram : GradientProgram {
public:
    ColumnSumsProgram(const std::string &name, ElementType type) : GradientProgram(name, type) {}

    Module module(const Target &target) {
        constexpr int warps = layer_threads / 32;
        const Expr across = ceil_div(in.columns, sum_columns), block = Launch::block(name),
                   thread = Launch::thread(name);
        const Expr slice = code.let("slice", quotient(block, across)), lane = code.let("lane", thread % 32),
                   warp = code.let("warp", thread / 32), shared = code.let("shared", shared_begin());
        const Expr column = code.let("column", (block - slice * across) * sum_columns + lane);
        const Expr first = code.let("first", slice * in.slice_rows);
        const Expr end = code.let("end", first + min(in.slice_rows, in.rows - first));
        const Registers sum = code.registers("sum", Float(32), 1);
        code.set(sum, 0, 0.f);
        code.when(column < in.columns, [&] {
            code.loop("round", ceil_div(end - first, warps), [&](const Expr &round) {
                const Expr row = code.let("row", first + round * warps + warp);
                code.when(row < end, [&] {
                    const Expr index = cast<uint64_t>(row) * in.from_stride + cast<uint64_t>(column);
                    code.set(sum, 0, sum[0] + load_either(in.from_first, index, in.from_is_f32));
                });
            });
        });
        const auto word = [&](const Expr &number) { return shared + (number * sum_columns + lane) * 4; };
        code.run(store_shared_u32(word(warp), reinterpret<uint32_t>(sum[0])));
        code.run(barrier());
        code.when(warp == 0 && column < in.columns, [&] {
            for (int w = 1; w < warps; w++) {
                const Expr part = code.let("part", load_shared_u32(word(w)));
                code.set(sum, 0, sum[0] + reinterpret<float>(part));
            }
            const Expr index =
                code.let("index", cast<uint64_t>(slice) * cast<uint64_t>(in.columns) + cast<uint64_t>(column));
            code.when(in.adds != 0, [&] { code.set(sum, 0, sum[0] + load_either(in.to_first, index, in.to_is_f32)); });
            store_either(in.to_first, index, in.to_is_f32, sum[0]);
        });
        return launch(in, (in.rows + in.slice_rows - 1) / in.slice_rows * across, target, column_sums_shared_bytes);
    }

private:
    const SumInputs in;
};

}  // namespace

Module column_sums_module(const std::string &name, ElementType type, const Target &target) {
    return ColumnSumsProgram(name, type).module(target);
}

}  // namespace heed::cuda
