#include "generators/cuda/merge_splits.h"

#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/cuda/device_code.h"
#include "generators/cuda/device_tensor.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/launch_arguments.h"

namespace heed::cuda {

using namespace Halide;

namespace {

HEED_LAUNCH_ARGUMENTS(SplitArguments, HEED_CUDA_MERGE_SPLITS)

struct SplitInputs : SplitArguments {
    DeviceTensor out, lse;
};

// Each thread has its columns, and finds the maximum of the row by itself: a warp reads it as one word.
class SplitProgram {
public:
    SplitProgram(const SplitInputs &in, ElementType type, const Expr &block, const Expr &thread)
        : in(in), type(type), block(block), thread(thread) {}

    Internal::Stmt build() {
        locate();
        find_sum();
        Registers sink = code.registers("sink", Float(32), 1);
        code.set(sink, 0, negative_infinity());
        code.when(in.sink.address() != cast<uint64_t>(0),
                  [&] { code.set(sink, 0, load_f32(in.sink.address() + element_bytes(head, in.sink.stride(0), 4))); });
        const RowResult result = with_sink(largest[0], sum[0], sink[0]);
        Expr factor = code.let("factor", result.factor()), lse = code.let("lse", result.lse);
        code.when(thread == 0, [&] { code.run(store_f32(in.lse.address() + row_offset(in.lse, 4), lse)); });
        const int size = stored_type(type).bytes();
        Expr out_row = code.let("out_row", in.out.address() + row_offset(in.out, size));
        code.loop("pass", ceil_div(in.out.extent(0), merge_splits_threads), [&](const Expr &pass) {
            Expr d = code.let("d", pass * merge_splits_threads + thread);
            code.when(d < in.out.extent(0), [&] {
                sum_column(d);
                Expr at = out_row + cast<uint64_t>(d * size), value = column[0] * factor;
                code.run(size == 4 ? store_f32(at, value)
                                   : store_u16(at, cast<uint32_t>(from_float(type, code.let("value", value)))));
            });
        });
        return code.finish();
    }

private:
    const SplitInputs &in;
    const ElementType type;
    const Expr block, thread;
    DeviceCode code;
    Expr head, token, sequence, first_state, end_of_state;
    Registers largest, sum, column;

    Expr row_offset(const DeviceTensor &tensor, int bytes) const {
        return element_bytes(sequence, tensor.stride(3), bytes) + element_bytes(token, tensor.stride(2), bytes) +
               element_bytes(head, tensor.stride(1), bytes);
    }

    void locate() {
        Expr row = code.let("row", quotient(block, in.out.extent(1)));
        head = code.let("head", block - row * in.out.extent(1));
        sequence = code.let("sequence", quotient(row, in.out.extent(2)));
        token = code.let("token", row - sequence * in.out.extent(2));
        first_state = code.let("first_state", in.states.address() + element_bytes(sequence, in.states.stride(3), 4) +
                                                  element_bytes(token, in.states.stride(2), 4) +
                                                  element_bytes(head * in.num_splits, in.states.stride(1), 4));
        end_of_state = code.let("end_of_state", element_bytes(in.states.extent(0) - 2, 1, 4));
    }

    Expr state(const Expr &split) const { return first_state + element_bytes(split, in.states.stride(1), 4); }
    Expr maximum_of(const Expr &split) { return code.let("maximum", load_f32(state(split) + end_of_state)); }
    Expr sum_of(const Expr &split) {
        return code.let("sum", load_f32(state(split) + end_of_state + cast<uint64_t>(4)));
    }
    Expr factor_of(const Expr &split) {
        return code.let("factor",
                        exp2(maximum_of(split) - (select(is_negative_infinity(largest[0]), 0.f, largest[0]))));
    }

    void find_sum() {
        largest = code.registers("largest", Float(32), 1);
        sum = code.registers("sum", Float(32), 1);
        code.set(largest, 0, negative_infinity());
        code.set(sum, 0, 0.f);
        code.loop("split", in.num_splits,
                  [&](const Expr &split) { code.set(largest, 0, maximum(largest[0], maximum_of(split))); });
        code.loop("split", in.num_splits,
                  [&](const Expr &split) { code.set(sum, 0, sum[0] + sum_of(split) * factor_of(split)); });
        column = code.registers("column", Float(32), 1);
    }

    // Splits without a key have left no output.
    void sum_column(const Expr &d) {
        code.set(column, 0, 0.f);
        code.loop("split", in.num_splits, [&](const Expr &split) {
            code.when(!is_zero(sum_of(split)), [&] {
                Expr value = code.let("value", load_f32(state(split) + cast<uint64_t>(4 * d)));
                code.set(column, 0, column[0] + value * factor_of(split));
            });
        });
    }
};

}  // namespace

Module merge_splits_module(const std::string &name, ElementType type, const Target &target) {
    Func merged("merged");
    const SplitInputs in = {SplitArguments({type}), {merged.name() + ".0", 4}, {merged.name() + ".1", 4}};
    Launch launch;
    launch.name = name;
    launch.blocks = in.out.extent(1) * in.out.extent(2) * in.out.extent(3);
    launch.threads = merge_splits_threads;
    launch.tensors = {in.states, in.sink, in.out, in.lse};
    launch.program = SplitProgram(in, type, Launch::block(name), Launch::thread(name)).build();
    return launch_module(name, merged, in.output_types(), in.arguments(), launch, target);
}

}  // namespace heed::cuda
