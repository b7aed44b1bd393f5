#include "generators/cuda/metadata_ops.h"

#include <limits>

#include "generators/common/ceil_div.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/cuda/device_faults.h"
#include "generators/cuda/launch_arguments.h"
#include "generators/cuda/sequence_field.h"

namespace heed::cuda {

using namespace Halide;

namespace {

HEED_LAUNCH_ARGUMENTS(MetadataInputs, HEED_CUDA_WRITE_METADATA)

}  // namespace

Module write_metadata_module(const std::string &name, const Target &target) {
    Func words("words");
    const DeviceTensor out{words.name(), 1};
    const MetadataInputs in;
    DeviceCode code;
    for (int i = 0; i < num_metadata_words / 2; i++) {
        code.when(2 * i < out.extent(0),
                  [&] { code.run(store_u64(out.address() + cast<uint64_t>(8 * i), in.word.words[i])); });
    }
    return launch_module(name, words, in.output_types(), in.arguments(), {name, 1, 1, 0, {out}, {}, code.finish()},
                         target);
}

namespace {

// heed_position.
enum Position { top_left, bottom_right, explicit_offsets };

HEED_LAUNCH_ARGUMENTS(SequenceInputs, HEED_CUDA_SEQUENCES)

class SequenceProgram {
public:
    SequenceProgram(const SequenceInputs &in, const DeviceTensor &table, const Expr &sequence)
        : in(in), table(table), b(sequence) {}

    Internal::Stmt build() {
        code.when(b < in.batch, [&] {
            fields = code.registers("fields", Int(32), num_sequence_fields);
            fault = code.registers("fault", Int(32), 1);
            code.set(fault, 0, 0);
            read_segment(in.cu_seqlens_q, 1, in.max_q_len, in.total_q, sequence_q_len, sequence_first_q);
            read_segment(in.cu_seqlens_kv, 2, in.max_kv_len, in.total_kv, sequence_kv_len, sequence_first_key);
            read_kv_len();
            find_visible();
            for (int i = 0; i <= sequence_position_offset; i++) {
                Expr at = table.address() + cast<uint64_t>(b) * cast<uint64_t>(4 * num_sequence_fields);
                code.run(store_u32(at + cast<uint64_t>(4 * i), cast<uint32_t>(fields[i])));
            }
            report_if(code, fault[0] != 0, in.status, b, fault[0]);
        });
        return code.finish();
    }

private:
    const SequenceInputs &in;
    const DeviceTensor &table;
    const Expr b;
    DeviceCode code;
    Registers fields, fault;

    Expr is_given(int kind) const { return (in.given & (1 << (kind - 1))) != 0; }
    Expr element(const DeviceTensor &tensor, const Expr &i) {
        return code.let("element", load_i32(tensor.address() + cast<uint64_t>(i) * cast<uint64_t>(4)));
    }
    void report_unless(const Expr &valid, int kind) {
        code.when(!valid && fault[0] == 0, [&] { code.set(fault, 0, kind); });
    }

    void read_segment(const DeviceTensor &sums, int kind, const Expr &longest, const Expr &total, int length,
                      int first) {
        code.set(fields, length, longest);
        code.set(fields, first, 0);
        code.when(is_given(kind), [&] {
            Expr begin = element(sums, b), end = element(sums, b + 1);
            Expr valid = begin >= 0 && begin <= end && end <= total && (b > 0 || begin == 0) &&
                         (b < in.batch - 1 || end == total);
            Expr inside = code.let("inside", clamp(begin, 0, total));
            code.set(fields, first, inside);
            code.set(fields, length, min(max(end, inside) - inside, min(longest, total - inside)));
            report_unless(valid && end - inside <= longest, kind);
        });
    }

    void read_kv_len() {
        code.when(is_given(3), [&] {
            Expr count = element(in.kv_lens, b);
            code.set(fields, sequence_kv_len, clamp(count, 0, in.max_kv_len));
            report_unless(count >= 0 && count <= in.max_kv_len, 3);
        });
    }

    // As the runtime does for metadata on the host (tasks.cpp); 64 bits inside, clamped without a change of what is
    // seen.
    void find_visible() {
        const Expr least = cast<int64_t>(std::numeric_limits<int32_t>::min());
        const Expr most = cast<int64_t>(std::numeric_limits<int32_t>::max());
        Expr kv_len = code.let("kv_len", cast<int64_t>(fields[sequence_kv_len]));
        Expr q_len = code.let("q_len", cast<int64_t>(fields[sequence_q_len]));
        Registers offset = code.registers("offset", Int(64), 1);
        code.set(offset, 0, select(in.position == bottom_right, kv_len - q_len, cast<int64_t>(0)));
        code.when(is_given(4), [&] { code.set(offset, 0, cast<int64_t>(element(in.q_offsets, b))); });
        Expr p = code.let("p", offset[0]);
        Expr begin = select(in.window_left >= 0, clamp(p - cast<int64_t>(in.window_left), least, kv_len), least);
        Expr right = select(in.causal != 0, cast<int64_t>(0), cast<int64_t>(in.window_right));
        Expr end =
            select(in.causal != 0 || in.window_right >= 0, clamp(p + right + cast<int64_t>(1), -q_len, kv_len), kv_len);
        code.set(fields, sequence_visible_begin, cast<int32_t>(begin));
        code.set(fields, sequence_visible_end, cast<int32_t>(end));
        code.set(fields, sequence_position_offset, cast<int32_t>(clamp(p, least, most)));
    }
};

}  // namespace

Module sequences_module(const std::string &name, const Target &target) {
    constexpr int threads = sequences_threads;
    Func func("sequences");
    const DeviceTensor table{func.name(), 2};
    const SequenceInputs in;
    std::vector<DeviceTensor> tensors = in.tensors();
    tensors.push_back(table);
    Expr sequence = Launch::block(name) * threads + Launch::thread(name);
    return launch_module(
        name, func, in.output_types(), in.arguments(),
        {name, ceil_div(in.batch, threads), threads, 0, tensors, {}, SequenceProgram(in, table, sequence).build()},
        target);
}

}  // namespace heed::cuda
