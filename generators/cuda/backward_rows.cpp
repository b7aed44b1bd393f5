#include "generators/cuda/backward_rows.h"

#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/cuda/backward_inputs.h"
#include "generators/cuda/block_sum.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/launch.h"
#include "generators/cuda/row_elements.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr float no_key = 1e30f;  // as lse: every weight is 0

class StatsProgram {
public:
    StatsProgram(const std::string &name, ElementType type) : name(name), type(type), elements(type, code) {}

    Module module(const Target &target) {
        constexpr int warps = backward_threads / 32;
        const Expr thread = Launch::thread(name), heads = in.q.extent(1);
        const Expr row = code.let("row", Launch::block(name) * warps + thread / 32);
        const Expr line = code.let("line", quotient(row, in.stat_rows)), i = code.let("i", row - line * in.stat_rows);
        const Expr sequence = code.let("sequence", quotient(line, heads)),
                   head = code.let("head", line - sequence * heads), lane = code.let("lane", thread % 32);
        code.when(sequence < in.batch, [&] {
            const Registers stat = code.registers("stat", Float(32), 2);
            code.set(stat, 0, no_key);
            code.set(stat, 1, 0.f);
            const SequenceFields fields = in.read_sequence(code, sequence);
            code.when(i < fields.q_len, [&] {
                const Expr token = code.let("token", fields.first_q + i);
                const Expr lse = code.let("lse", load_f32(tensor_row(in.lse, sequence, head, token, 4)));
                code.when(!is_negative_infinity(lse), [&] {
                    code.set(stat, 0, lse * log2_e);
                    code.set(stat, 1, dot(sequence, head, token, lane));
                });
            });
            code.when(lane == 0, [&] {
                const Expr to = in.stats_of(sequence, head) + bytes_of(i, backward_stat_bytes);
                code.run(store_two_f32(to, stat[0], stat[1]));
            });
        });
        const Expr blocks = ceil_div(in.batch * heads * in.stat_rows, warps);
        const Launch launch = {name, blocks, backward_threads, 0, in.tensors(), {}, code.finish()};
        return launch_module(name, Func("stats_written"), in.output_types(), in.arguments(), launch, target);
    }

private:
    const std::string name;
    const ElementType type;
    const BackwardInputs in{type};
    DeviceCode code;
    RowElements elements;

    // dout . out, with 0 where out is: a row without keys but with a sink may meet anything in dout.
    Expr dot(const Expr &sequence, const Expr &head, const Expr &token, const Expr &lane) {
        const int size = elements.size();
        const Expr out = code.let("out_row", tensor_row(in.out, sequence, head, token, size)),
                   dout = code.let("dout_row", tensor_row(in.dout, sequence, head, token, size));
        const Registers sum = code.registers("sum", Float(32), 1);
        code.set(sum, 0, 0.f);
        code.loop("round", ceil_div(in.out.extent(0), 32), [&](const Expr &round) {
            const Expr d = code.let("d", round * 32 + lane);
            code.when(d < in.out.extent(0), [&] {
                const Expr a = elements.load(out + bytes_of(d, size), 1)[0],
                           b = elements.load(dout + bytes_of(d, size), 1)[0];
                code.set(sum, 0, select(is_zero(a), sum[0], fma(a, b, sum[0])));
            });
        });
        for (const int mask : {1, 2, 4, 8, 16}) {
            code.set(sum, 0, sum[0] + code.let("other", from_lane(sum[0], mask)));
        }
        return code.let("delta", sum[0]);
    }
};

}  // namespace

Module backward_stats_module(const std::string &name, ElementType type, const Target &target) {
    return StatsProgram(name, type).module(target);
}

Module backward_sinks_module(const std::string &name, ElementType type, const Target &target) {
    const BackwardInputs in{type};
    DeviceCode code;
    const Expr thread = Launch::thread(name), head = Launch::block(name), shared = code.let("shared", shared_begin());
    const Expr sink = code.let("sink", load_f32(in.sink.address() + element_bytes(head, in.sink.stride(0), 4)));
    const Registers sum = code.registers("sum", Float(32), 1);
    code.set(sum, 0, 0.f);
    code.loop("sequence", in.batch, [&](const Expr &sequence) {
        const Expr stats = code.let("stats", in.stats_of(sequence, head));
        code.loop("round", ceil_div(in.stat_rows, backward_threads), [&](const Expr &round) {
            const Expr i = code.let("i", round * backward_threads + thread);
            code.when(i < in.stat_rows, [&] {
                const Expr at = stats + bytes_of(i, backward_stat_bytes), lse = code.let("lse", load_f32(at));
                const Expr delta = code.let("delta", load_f32(at + cast<uint64_t>(4)));
                code.set(sum, 0, sum[0] - exp2(fma(sink, log2_e, -lse)) * delta);
            });
        });
    });
    sum_over_block(code, sum, thread, backward_threads, shared);
    code.when(thread == 0, [&] { code.run(store_f32(in.dsink + bytes_of(head, 4), sum[0])); });
    const Launch launch = {name, in.q.extent(1), backward_threads, sinks_shared_bytes, in.tensors(), {}, code.finish()};
    return launch_module(name, Func("sinks_written"), in.output_types(), in.arguments(), launch, target);
}

}  // namespace heed::cuda
