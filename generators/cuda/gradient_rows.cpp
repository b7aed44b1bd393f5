#include "gradient_rows.h"

#include "../ceil_div.h"
#include "index_math.h"
#include "intrinsics.h"
#include "layer_program.h"

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

class AddProgram : GradientProgram {
public:
    AddProgram(const std::string &name, ElementType type) : GradientProgram(name, type) {}

    Module module(const Target &target) {
        const Expr across = ceil_div(columns, layer_threads), block = Launch::block(name);
        const Expr row = code.let("row", quotient(block, across));
        const Expr column = code.let("column", (block - row * across) * layer_threads + Launch::thread(name));
        code.when(column < columns, [&] {
            const Expr placed = code.let("placed", offset(row, row_block, row_outer, row_inner) +
                                                       offset(column, column_block, column_outer, column_inner));
            const Expr packed = cast<uint64_t>(row) * cast<uint64_t>(columns) + cast<uint64_t>(column);
            const Expr index = code.let("index", select(from_placed != 0, placed, packed));
            const Expr sum = load_either(to, placed, to_is_f32) + load_either(from, index, from_is_f32);
            store_either(to, placed, to_is_f32, sum);
        });
        return launch(rows * across, target);
    }

private:
    const Param<int32_t> rows = parameter<int32_t>("rows"), columns = parameter<int32_t>("columns");
    // Element (row, column) of `to` is number row / row_block * row_outer + row % row_block * row_inner and so on.
    const Param<int32_t> row_block = parameter<int32_t>("row_block"), column_block = parameter<int32_t>("column_block");
    const Param<int32_t> from_placed = parameter<int32_t>("from_placed");  // 1: as `to`; 0: [rows, columns]
    const Param<int32_t> from_is_f32 = parameter<int32_t>("from_is_f32"), to_is_f32 = parameter<int32_t>("to_is_f32");
    const Param<uint64_t> row_outer = parameter<uint64_t>("row_outer"), row_inner = parameter<uint64_t>("row_inner"),
                          column_outer = parameter<uint64_t>("column_outer"),
                          column_inner = parameter<uint64_t>("column_inner");
    const Param<uint64_t> from = parameter<uint64_t>("from_first"), to = parameter<uint64_t>("to_first");

    Expr offset(const Expr &i, const Expr &block, const Expr &outer, const Expr &inner) {
        const Expr whole = code.let("whole", quotient(i, block));
        return cast<uint64_t>(whole) * outer + cast<uint64_t>(i - whole * block) * inner;
    }
};

class ColumnSumsProgram : GradientProgram {
public:
    ColumnSumsProgram(const std::string &name, ElementType type) : GradientProgram(name, type) {}

    Module module(const Target &target) {
        constexpr int warps = layer_threads / 32;
        const Expr across = ceil_div(columns, sum_columns), block = Launch::block(name), thread = Launch::thread(name);
        const Expr slice = code.let("slice", quotient(block, across)), lane = code.let("lane", thread % 32),
                   warp = code.let("warp", thread / 32), shared = code.let("shared", shared_begin());
        const Expr column = code.let("column", (block - slice * across) * sum_columns + lane);
        const Expr first = code.let("first", slice * slice_rows);
        const Expr end = code.let("end", first + min(slice_rows, rows - first));
        const Registers sum = code.registers("sum", Float(32), 1);
        code.set(sum, 0, 0.f);
        code.when(column < columns, [&] {
            code.loop("round", ceil_div(end - first, warps), [&](const Expr &round) {
                const Expr row = code.let("row", first + round * warps + warp);
                code.when(row < end, [&] {
                    const Expr index = cast<uint64_t>(row) * from_stride + cast<uint64_t>(column);
                    code.set(sum, 0, sum[0] + load_either(from, index, from_is_f32));
                });
            });
        });
        const auto word = [&](const Expr &number) { return shared + (number * sum_columns + lane) * 4; };
        code.run(store_shared_u32(word(warp), reinterpret<uint32_t>(sum[0])));
        code.run(barrier());
        code.when(warp == 0 && column < columns, [&] {
            for (int w = 1; w < warps; w++) {
                const Expr part = code.let("part", load_shared_u32(word(w)));
                code.set(sum, 0, sum[0] + reinterpret<float>(part));
            }
            const Expr index =
                code.let("index", cast<uint64_t>(slice) * cast<uint64_t>(columns) + cast<uint64_t>(column));
            code.when(adds != 0, [&] { code.set(sum, 0, sum[0] + load_either(to, index, to_is_f32)); });
            store_either(to, index, to_is_f32, sum[0]);
        });
        return launch((rows + slice_rows - 1) / slice_rows * across, target, column_sums_shared_bytes);
    }

private:
    const Param<int32_t> rows = parameter<int32_t>("rows"), columns = parameter<int32_t>("columns");
    const Param<int32_t> slice_rows = parameter<int32_t>("slice_rows");  // of a slice; `to` is [slices, columns]
    const Param<int32_t> adds = parameter<int32_t>("adds");              // 1: to += sums; 0: to = sums
    const Param<int32_t> from_is_f32 = parameter<int32_t>("from_is_f32"), to_is_f32 = parameter<int32_t>("to_is_f32");
    const Param<uint64_t> from_stride = parameter<uint64_t>("from_stride");  // in elements
    const Param<uint64_t> from = parameter<uint64_t>("from_first"), to = parameter<uint64_t>("to_first");
};

class ClipGradientProgram : LayerProgram {
public:
    ClipGradientProgram(const std::string &name, ElementType type) : LayerProgram(name, type) {}

    Module module(const Target &target) {
        const Expr item = code.let("item", Launch::block(name) * layer_threads + Launch::thread(name));
        const Expr width = select(wide != 0, elements.width(), 1);
        code.when(item < count / width, [&] {
            code.when(
                wide != 0, [&] { clear(item, elements.width()); }, [&] { clear(item, 1); });
        });
        return launch(ceil_div(count / width, layer_threads), target);
    }

private:
    const Param<int32_t> count = parameter<int32_t>("count");  // elements, below 2^30
    const Param<int32_t> wide = parameter<int32_t>("wide");    // 1: they are whole chunks of 16 bytes
    const Param<float> limit = parameter<float>("limit");
    const Param<uint64_t> x = parameter<uint64_t>("x_first"), gradient = parameter<uint64_t>("gradient_first");

    // Compares bits: the default float mode may assume that no value is NaN or infinite.
    void clear(const Expr &item, int width) {
        const auto at = [&](const Expr &first) { return first + bytes_of(item, width * elements.size()); };
        const Elements values = elements.load(at(x), width);
        Elements result = elements.load(at(gradient), width);
        for (size_t i = 0; i < result.size(); i++) {
            const Expr magnitude = reinterpret<int32_t>(values[i]) & 0x7fffffff;
            const Expr clipped = magnitude >= reinterpret<int32_t>(limit) && magnitude <= infinity_bits;
            const Expr kept = select(clipped, 0, reinterpret<int32_t>(result[i]));
            result[i] = code.let("kept", reinterpret<float>(kept));
        }
        elements.store(at(gradient), result);
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
