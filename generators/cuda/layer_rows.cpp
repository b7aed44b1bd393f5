#include "generators/cuda/layer_rows.h"

#include <limits>

#include "generators/common/ceil_div.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/layer_program.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int32_t sign_bit = std::numeric_limits<int32_t>::min();

HEED_LAUNCH_ARGUMENTS(ClipInputs, HEED_CUDA_CLIP)

class ClipProgram : LayerProgram {
public:
    ClipProgram(const std::string &name, ElementType type) : LayerProgram(name, type) {}

    Module module(const Target &target) {
        const Expr item = code.let("item", Launch::block(name) * layer_threads + Launch::thread(name));
        const Expr width = select(in.wide != 0, elements.width(), 1);
        code.when(item < in.count / width, [&] {
            code.when(
                in.wide != 0, [&] { clip(item, elements.width()); }, [&] { clip(item, 1); });
        });
        return launch(in, ceil_div(in.count / width, layer_threads), target);
    }

private:
    const ClipInputs in;

    // Compares bits: the default float mode may assume that no value is NaN or infinite.
    void clip(const Expr &item, int width) {
        const Expr at = code.let("at", in.x_first + bytes_of(item, width * elements.size()));
        Elements values = elements.load(at, width);
        for (Expr &value : values) {
            const Expr magnitude = bits(value) & 0x7fffffff;
            const Expr beyond = magnitude > bits(in.limit) && magnitude <= infinity_bits;
            const Expr clipped = select(beyond, bits(in.limit) | (bits(value) & sign_bit), bits(value));
            value = code.let("clipped", reinterpret<float>(clipped));
        }
        elements.store(at, values);
    }
};

HEED_LAUNCH_ARGUMENTS(PaddingInputs, HEED_CUDA_KEY_PADDING)

class PaddingProgram : LayerProgram {
public:
    explicit PaddingProgram(const std::string &name) : LayerProgram(name, ElementType::i8) {}

    Module module(const Target &target) {
        const Expr blocks = ceil_div(in.keys, layer_threads);
        const Expr block = Launch::block(name), line = code.let("line", quotient(block, blocks));
        const Expr j = code.let("j", (block - line * blocks) * layer_threads + Launch::thread(name));
        code.when(j < in.keys, [&] { join(line, j); });
        return launch(in, in.lines * blocks, target);
    }

private:
    const PaddingInputs in;

    Expr hides(const Expr &byte) { return (byte != cast<uint32_t>(0)) == (in.true_hides != 0); }

    void join(const Expr &line, const Expr &j) {
        const Expr above = code.let("above", quotient(line, in.rows)), b = code.let("b", quotient(above, in.heads));
        const Expr h = above - b * in.heads, i = line - above * in.rows;
        const auto times = [](const Expr &index, const Expr &stride) { return cast<uint64_t>(index) * stride; };
        const Expr at_padding = in.padding_first + times(b, cast<uint64_t>(in.keys)) + cast<uint64_t>(j);
        const Registers hidden = code.registers("hidden", Int(32), 1);
        code.set(hidden, 0, cast<int32_t>(hides(code.let("byte", load_u8(at_padding)))));
        code.when(in.mask_first != cast<uint64_t>(0), [&] {
            const Expr at = in.mask_first + times(b, in.mask_batch) + times(h, in.mask_head) + times(i, in.mask_row) +
                            times(j, in.mask_key);
            code.set(hidden, 0, hidden[0] | cast<int32_t>(hides(code.let("byte", load_u8(at)))));
        });
        const Expr element = code.let("element", times(line, cast<uint64_t>(in.keys)) + cast<uint64_t>(j));
        code.when(
            in.as_bias != 0,
            [&] {
                const Expr value = select(hidden[0] != 0, sign_bit + infinity_bits, 0);
                code.run(store_u32(in.out_first + element * cast<uint64_t>(4), cast<uint32_t>(value)));
            },
            [&] {
                const Expr is_true = (hidden[0] != 0) == (in.true_hides != 0);
                code.run(store_u8(in.out_first + element, cast<uint32_t>(is_true)));
            });
    }
};

}  // namespace

Module clip_module(const std::string &name, ElementType type, const Target &target) {
    return ClipProgram(name, type).module(target);
}

Module key_padding_module(const std::string &name, const Target &target) { return PaddingProgram(name).module(target); }

}  // namespace heed::cuda
