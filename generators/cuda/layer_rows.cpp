#include "layer_rows.h"

#include <limits>

#include "../ceil_div.h"
#include "index_math.h"
#include "intrinsics.h"
#include "layer_program.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int32_t sign_bit = std::numeric_limits<int32_t>::min();

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

Module clip_module(const std::string &name, ElementType type, const Target &target) {
    return ClipProgram(name, type).module(target);
}

Module key_padding_module(const std::string &name, const Target &target) { return PaddingProgram(name).module(target); }

}  // namespace heed::cuda
