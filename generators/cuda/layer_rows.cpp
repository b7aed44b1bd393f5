#include "layer_rows.h"

#include <limits>

#include "../ceil_div.h"
#include "index_math.h"
#include "intrinsics.h"
#include "launch.h"
#include "row_elements.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int32_t infinity_bits = 0x7f800000, sign_bit = std::numeric_limits<int32_t>::min();

Expr bits(const Expr &x) { return reinterpret<int32_t>(x); }

// One launch of threads that write where an address says, from parameters in this order.
class LayerProgram {
protected:
    LayerProgram(const std::string &name, ElementType type) : name(name), elements(type, code) {}

    template <typename T>
    Param<T> parameter(const std::string &parameter_name) {
        const Param<T> result(parameter_name);
        arguments.emplace_back(result);
        return result;
    }

    Module launch(const Expr &blocks, const Target &target) {
        const Launch launch = {name, blocks, layer_threads, 0, {}, {}, code.finish()};
        return launch_module(name, Func("written"), {UInt(8)}, 1, arguments, launch, target);
    }

    const std::string name;
    DeviceCode code;
    RowElements elements;

private:
    std::vector<Argument> arguments;
};

class NormProgram : LayerProgram {
public:
    NormProgram(const std::string &name, ElementType type) : LayerProgram(name, type) {}

    Module module(const Target &target) {
        constexpr int warps = layer_threads / 32;
        const Expr thread = Launch::thread(name);
        const Expr row = code.let("row", Launch::block(name) * warps + thread / 32);
        code.when(row < rows, [&] {
            lane = code.let("lane", thread % 32);
            first = code.let("first", x + cast<uint64_t>(row) * bytes_of(length, elements.size()));
            code.when(
                wide != 0, [&] { normalise(elements.width()); }, [&] { normalise(1); });
        });
        return launch(ceil_div(rows, warps), target);
    }

private:
    const Param<int32_t> rows = parameter<int32_t>("rows"), length = parameter<int32_t>("length");
    const Param<int32_t> wide = parameter<int32_t>("wide");  // 1: rows are whole chunks of 16 bytes
    const Param<float> epsilon = parameter<float>("epsilon");
    const Param<uint64_t> x = parameter<uint64_t>("x_first"), weight = parameter<uint64_t>("weight_first"),
                          bias = parameter<uint64_t>("bias_first");  // addresses
    Expr lane, first;

    void normalise(int width) {
        const Expr mean =
            code.let("mean", strict_float(sum(width, [](const Expr &value) { return value; }) / cast<float>(length)));
        const Expr squares = sum(width, [&](const Expr &value) { return (value - mean) * (value - mean); });
        const Expr factor = code.let("factor", strict_float(1.f / sqrt(squares / cast<float>(length) + epsilon)));
        each_group(width, [&](const Expr &e, Elements values) {
            const Elements w = load_floats(code, weight + bytes_of(e, 4), width),
                           b = load_floats(code, bias + bytes_of(e, 4), width);
            for (size_t i = 0; i < values.size(); i++) {
                values[i] = code.let("y", (values[i] - mean) * factor * w[i] + b[i]);
            }
            elements.store(first + bytes_of(e, elements.size()), values);
        });
    }

    // body(first element, values) for this lane's groups of `width` elements of the row.
    void each_group(int width, const std::function<void(const Expr &, const Elements &)> &body) {
        code.loop("round", ceil_div(length, 32 * width), [&](const Expr &round) {
            const Expr e = code.let("e", (round * 32 + lane) * width);
            code.when(e < length, [&] { body(e, elements.load(first + bytes_of(e, elements.size()), width)); });
        });
    }

    // Of all elements of the row, the same in all lanes.
    Expr sum(int width, const std::function<Expr(const Expr &)> &term) {
        const Registers total = code.registers("total", Float(32), 1);
        code.set(total, 0, 0.f);
        each_group(width, [&](const Expr &, const Elements &values) {
            for (const Expr &value : values) code.set(total, 0, total[0] + term(value));
        });
        for (const int mask : {1, 2, 4, 8, 16}) {
            const Expr other = code.let("other", from_lane(total[0], mask));
            code.set(total, 0, total[0] + other);
        }
        return code.let("sum", total[0]);
    }
};

class ClipProgram : LayerProgram {
public:
    ClipProgram(const std::string &name, ElementType type) : LayerProgram(name, type) {}

    Module module(const Target &target) {
        const Expr item = code.let("item", Launch::block(name) * layer_threads + Launch::thread(name));
        const Expr width = select(wide != 0, elements.width(), 1);
        code.when(item < count / width, [&] {
            code.when(
                wide != 0, [&] { clip(item, elements.width()); }, [&] { clip(item, 1); });
        });
        return launch(ceil_div(count / width, layer_threads), target);
    }

private:
    const Param<int32_t> count = parameter<int32_t>("count");  // elements, below 2^30
    const Param<int32_t> wide = parameter<int32_t>("wide");    // 1: they are whole chunks of 16 bytes
    const Param<float> limit = parameter<float>("limit");
    const Param<uint64_t> x = parameter<uint64_t>("x_first");

    // Compares bits: the default float mode may assume that no value is NaN or infinite.
    void clip(const Expr &item, int width) {
        const Expr at = code.let("at", x + bytes_of(item, width * elements.size()));
        Elements values = elements.load(at, width);
        for (Expr &value : values) {
            const Expr magnitude = bits(value) & 0x7fffffff;
            const Expr beyond = magnitude > bits(limit) && magnitude <= infinity_bits;
            const Expr clipped = select(beyond, bits(limit) | (bits(value) & sign_bit), bits(value));
            value = code.let("clipped", reinterpret<float>(clipped));
        }
        elements.store(at, values);
    }
};

class PaddingProgram : LayerProgram {
public:
    explicit PaddingProgram(const std::string &name) : LayerProgram(name, ElementType::i8) {}

    Module module(const Target &target) {
        const Expr blocks = ceil_div(keys, layer_threads);
        const Expr block = Launch::block(name), line = code.let("line", quotient(block, blocks));
        const Expr j = code.let("j", (block - line * blocks) * layer_threads + Launch::thread(name));
        code.when(j < keys, [&] { join(line, j); });
        return launch(lines * blocks, target);
    }

private:
    const Param<int32_t> lines = parameter<int32_t>("lines"), heads = parameter<int32_t>("heads"),
                         rows = parameter<int32_t>("rows"), keys = parameter<int32_t>("keys");
    const Param<int32_t> true_hides = parameter<int32_t>("true_hides");
    const Param<int32_t> as_bias = parameter<int32_t>("as_bias");  // 1: f32, 0 and minus infinity; else uint8
    const Param<uint64_t> padding = parameter<uint64_t>("padding_first"), mask = parameter<uint64_t>("mask_first"),
                          mask_batch = parameter<uint64_t>("mask_batch"), mask_head = parameter<uint64_t>("mask_head"),
                          mask_row = parameter<uint64_t>("mask_row"), mask_key = parameter<uint64_t>("mask_key");
    const Param<uint64_t> out = parameter<uint64_t>("out_first");

    Expr hides(const Expr &byte) { return (byte != cast<uint32_t>(0)) == (true_hides != 0); }

    void join(const Expr &line, const Expr &j) {
        const Expr above = code.let("above", quotient(line, rows)), b = code.let("b", quotient(above, heads));
        const Expr h = above - b * heads, i = line - above * rows;
        const auto times = [](const Expr &index, const Expr &stride) { return cast<uint64_t>(index) * stride; };
        const Expr at_padding = padding + times(b, cast<uint64_t>(keys)) + cast<uint64_t>(j);
        const Registers hidden = code.registers("hidden", Int(32), 1);
        code.set(hidden, 0, cast<int32_t>(hides(code.let("byte", load_u8(at_padding)))));
        code.when(mask != cast<uint64_t>(0), [&] {
            const Expr at = mask + times(b, mask_batch) + times(h, mask_head) + times(i, mask_row) + times(j, mask_key);
            code.set(hidden, 0, hidden[0] | cast<int32_t>(hides(code.let("byte", load_u8(at)))));
        });
        const Expr element = code.let("element", times(line, cast<uint64_t>(keys)) + cast<uint64_t>(j));
        code.when(
            as_bias != 0,
            [&] {
                const Expr value = select(hidden[0] != 0, sign_bit + infinity_bits, 0);
                code.run(store_u32(out + element * cast<uint64_t>(4), cast<uint32_t>(value)));
            },
            [&] {
                const Expr is_true = (hidden[0] != 0) == (true_hides != 0);
                code.run(store_u8(out + element, cast<uint32_t>(is_true)));
            });
    }
};

}  // namespace

Module layer_norm_module(const std::string &name, ElementType type, const Target &target) {
    return NormProgram(name, type).module(target);
}

Module clip_module(const std::string &name, ElementType type, const Target &target) {
    return ClipProgram(name, type).module(target);
}

Module key_padding_module(const std::string &name, const Target &target) { return PaddingProgram(name).module(target); }

}  // namespace heed::cuda
