#include "generators/cuda/gradient_rows.h"

#include "generators/common/ceil_div.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/layer_program.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// Elements of the row's type, or f32 where a parameter says so.
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

HEED_LAUNCH_ARGUMENTS(AddInputs, HEED_CUDA_ADD)

class AddProgram : GradientProgram {
public:
    AddProgram(const std::string &name, ElementType type) : GradientProgram(name, type) {}

    Module module(const Target &target) {
        const Expr across = ceil_div(in.columns, layer_threads), block = Launch::block(name);
        const Expr row = code.let("row", quotient(block, across));
        const Expr column = code.let("column", (block - row * across) * layer_threads + Launch::thread(name));
        code.when(column < in.columns, [&] {
            const Expr placed =
                code.let("placed", offset(row, in.row_block, in.row_outer, in.row_inner) +
                                       offset(column, in.column_block, in.column_outer, in.column_inner));
            const Expr packed = cast<uint64_t>(row) * cast<uint64_t>(in.columns) + cast<uint64_t>(column);
            const Expr index = code.let("index", select(in.from_placed != 0, placed, packed));
            const Expr sum =
                load_either(in.to_first, placed, in.to_is_f32) + load_either(in.from_first, index, in.from_is_f32);
            store_either(in.to_first, placed, in.to_is_f32, sum);
        });
        return launch(in, in.rows * across, target);
    }

private:
    const AddInputs in;

    Expr offset(const Expr &i, const Expr &block, const Expr &outer, const Expr &inner) {
        const Expr whole = code.let("whole", quotient(i, block));
        return cast<uint64_t>(whole) * outer + cast<uint64_t>(i - whole * block) * inner;
    }
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

HEED_LAUNCH_ARGUMENTS(ClipGradientInputs, HEED_CUDA_CLIP_GRADIENT)

class ClipGradientProgram : LayerProgram {
public:
    ClipGradientProgram(const std::string &name, ElementType type) : LayerProgram(name, type) {}

    Module module(const Target &target) {
        const Expr item = code.let("item", Launch::block(name) * layer_threads + Launch::thread(name));
        const Expr width = select(in.wide != 0, elements.width(), 1);
        code.when(item < in.count / width, [&] {
            code.when(
                in.wide != 0, [&] { clear(item, elements.width()); }, [&] { clear(item, 1); });
        });
        return launch(in, ceil_div(in.count / width, layer_threads), target);
    }

private:
    const ClipGradientInputs in;

    // Compares bits: the default float mode may assume that no value is NaN or infinite.
    void clear(const Expr &item, int width) {
        const auto at = [&](const Expr &first) { return first + bytes_of(item, width * elements.size()); };
        const Elements values = elements.load(at(in.x_first), width);
        Elements result = elements.load(at(in.gradient_first), width);
        for (size_t i = 0; i < result.size(); i++) {
            const Expr magnitude = reinterpret<int32_t>(values[i]) & 0x7fffffff;
            const Expr clipped = magnitude >= reinterpret<int32_t>(in.limit) && magnitude <= infinity_bits;
            const Expr kept = select(clipped, 0, reinterpret<int32_t>(result[i]));
            result[i] = code.let("kept", reinterpret<float>(kept));
        }
        elements.store(at(in.gradient_first), result);
    }
};

}  // namespace

Module add_module(const std::string &name, ElementType type, const Target &target) {
    return AddProgram(name, type).module(target);
}

Module column_sums_module(const std::string &name, ElementType type, const Target &target) {
    return ColumnSumsProgram(name, type).module(target);
}

Module clip_gradient_module(const std::string &name, ElementType type, const Target &target) {
    return ClipGradientProgram(name, type).module(target);
}

}  // namespace heed::cuda
