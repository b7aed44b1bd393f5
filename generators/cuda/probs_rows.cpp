#include "generators/cuda/probs_rows.h"

#include "generators/attention/probs.h"
#include "generators/common/ceil_div.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/cuda/device_faults.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/launch_arguments.h"
#include "generators/cuda/row_elements.h"
#include "generators/cuda/sequence_field.h"

namespace heed::cuda {

using namespace Halide;

namespace {

HEED_LAUNCH_ARGUMENTS(ProbsInputs, HEED_CUDA_ATTENTION_PROBS)

class ProbsProgram {
public:
    ProbsProgram(const std::string &name, ElementType type, ElementType kv_type)
        : name(name), type(type), kv_type(kv_type), in({type, kv_type}), elements(type, code) {}

    Module module(const Target &target) {
        constexpr int warps = probs_threads / 32;
        const Expr thread = Launch::thread(name), heads = in.q.extent(1);
        const Expr row = code.let("row", Launch::block(name) * warps + thread / 32);
        const Expr line = code.let("line", quotient(row, in.max_q_len)), s = code.let("s", quotient(line, heads));
        i = code.let("i", row - line * in.max_q_len);
        head = code.let("head", line - s * heads);
        lane = code.let("lane", thread % 32);
        code.when(s < in.sequences, [&] {
            sequence = code.let("sequence", in.first_sequence + s);
            read_sequence();
            read_head();
            run();
        });
        const Expr blocks = ceil_div(in.sequences * in.q.extent(1) * in.max_q_len, warps);
        const Launch launch = {name, blocks, probs_threads, 0, in.tensors(), {}, code.finish()};
        return launch_module(name, Func("probs"), in.output_types(), in.arguments(), launch, target);
    }

private:
    const std::string name;
    const ElementType type, kv_type;
    const ProbsInputs in;
    DeviceCode code;
    RowElements elements;
    Expr i, head, kv_head, lane, sequence, begin, end, slope, sink;
    SequenceFields field;
    Expr q_row, out_row;
    Registers row_max, row_sum, factor;

    Expr row_of(const DeviceTensor &tensor, int size) {
        return code.let("row_of", tensor.address() + element_bytes(sequence, tensor.stride(3), size) +
                                      element_bytes(head, tensor.stride(2), size) +
                                      element_bytes(i, tensor.stride(1), size));
    }

    void read_sequence() {
        field = read_sequence_fields(
            code, in.tasks, sequence, in.uniform,
            {in.uniform_q_len, 0, in.max_kv_len, 0, in.visible_begin, in.visible_end, in.position_offset});
        begin = code.let("begin", first_visible(i, field.visible_begin));
        end = code.let("end", end_visible(i, field.visible_end, field.kv_len));
    }

    void read_head() {
        const int size = elements.size();
        kv_head = code.let("kv_head", quotient(head, quotient(in.q.extent(1), in.k.extent(1))));
        q_row = code.let("q_row", in.q.address() + element_bytes(sequence, in.q.stride(3), size) +
                                      element_bytes(head, in.q.stride(1), size) +
                                      element_bytes(field.first_q + i, in.q.stride(2), size));
        out_row = code.let("result_row", in.out + cast<uint64_t>(sequence) * in.out_batch +
                                             cast<uint64_t>(head) * in.out_head + cast<uint64_t>(i) * in.out_row);
        const Registers of_head = code.registers("of_head", Float(32), 2);
        code.set(of_head, 0, negative_infinity());
        code.set(of_head, 1, 0.f);
        const DeviceTensor tensors[] = {in.sink, in.alibi_slopes};
        for (int n = 0; n < 2; n++) {
            code.when(tensors[n].address() != cast<uint64_t>(0), [&] {
                code.set(of_head, n, load_f32(tensors[n].address() + element_bytes(head, tensors[n].stride(0), 4)));
            });
        }
        sink = code.let("sink_logit", of_head[0]);
        slope = code.let("slope", of_head[1]);
    }

    // Passes 0 and 1, for probabilities only: maximum and sum. Pass 2 writes.
    void run() {
        row_max = code.registers("row_max", Float(32), 1);
        row_sum = code.registers("row_sum", Float(32), 1);
        factor = code.registers("factor", Float(32), 1);
        code.set(row_max, 0, lowest_logit());
        code.set(row_sum, 0, 0.f);
        code.set(factor, 0, 0.f);
        code.loop("pass", select(in.mode == probabilities, 3, 1), [&](const Expr &number) {
            const Expr pass = code.let("pass", select(in.mode == probabilities, number, 2));
            code.loop("round", ceil_div(in.max_kv_len, 32), [&](const Expr &round) {
                const Expr j = code.let("j", round * 32 + lane);
                code.when(j < in.max_kv_len, [&] { take(pass, j, score(j)); });
            });
            code.when(pass == 0, [&] { reduce(row_max, maximum); });
            code.when(pass == 1, [&] {
                reduce(row_sum, [](const Expr &a, const Expr &b) { return a + b; });
                code.set(factor, 0, with_sink(row_max[0] * log2_e, row_sum[0], sink).factor());
            });
        });
    }

    // Minus infinity, or 0 in the first two modes, where the row has no such key. Chosen as bits: the default float
    // mode may assume that no value is infinite.
    Expr score(const Expr &j) {
        const Registers result = code.registers("score", Int(32), 1);
        code.set(result, 0, select(in.mode == masked_scores || in.mode == probabilities, INT32_MIN + 0x7f800000, 0));
        code.when(j < field.kv_len && i < field.q_len, [&] {
            const Expr raw = code.let("raw", dot(find_key(j)) * in.scale);
            const Registers capped = code.registers("capped", Float(32), 1);
            code.set(capped, 0, raw);
            code.when(logit_changes(in).cap_on() && in.mode != raw_scores,
                      [&] { code.set(capped, 0, logit_changes(in).capped(raw, LogitUnits::natural)); });
            code.when(
                in.mode < masked_scores, [&] { code.set(result, 0, bits(capped[0])); },
                [&] { code.when(is_visible(j), [&] { add_biases(j, capped[0], result); }); });
        });
        return code.let("score", reinterpret<float>(result[0]));
    }

    struct Slot {
        Expr page, slot;
    };

    // Where key j of the sequence is. Ids of pages are clamped and reported: memory of the caller may hold anything.
    Slot find_key(const Expr &j) {
        const Registers at = code.registers("page_and_slot", Int(32), 2);
        code.set(at, 0, sequence);
        code.set(at, 1, field.first_key + j);
        code.when(in.page_size > 0, [&] {
            const Expr page = code.let("page", quotient(j, in.page_size));
            const Expr entry = element_bytes(sequence, in.page_table.stride(1), 4) +
                               element_bytes(min(page, in.page_table.extent(0) - 1), 1, 4);
            const Expr id = code.let("page_id", load_i32(in.page_table.address() + entry));
            const Expr valid = code.let("valid_id", clamp(id, 0, in.k.extent(3) - 1));
            code.set(at, 0, valid);
            code.set(at, 1, j - page * in.page_size);
            report_if(code, id != valid, in.device_status, sequence, fault_of_pages);
        });
        return {code.let("page", at[0]), code.let("slot", at[1])};
    }

    Expr dot(const Slot &key) {
        const bool has_codes = kv_type == ElementType::i8;
        const int size = elements.size(), kv_size = has_codes ? 1 : size;
        const Registers sum = code.registers("dot", Float(32), 1);
        code.set(sum, 0, 0.f);
        const Expr k_row = code.let("k_row", in.k.address() + element_bytes(key.page, in.k.stride(3), kv_size) +
                                                 element_bytes(kv_head, in.k.stride(1), kv_size) +
                                                 element_bytes(key.slot, in.k.stride(2), kv_size));
        code.loop("d", in.q.extent(0), [&](const Expr &d) {
            const Expr a = elements.load(q_row + element_bytes(d, 1, size), 1)[0],
                       at = k_row + element_bytes(d, 1, kv_size);
            const Expr b = has_codes ? cast<float>(cast<int8_t>(load_u8(at))) : elements.load(at, 1)[0];
            code.set(sum, 0, fma(a, b, sum[0]));
        });
        if (!has_codes) return sum[0];
        const Expr scale = in.k_scale.address() + element_bytes(key.page, in.k_scale.stride(2), 4) +
                           element_bytes(kv_head, in.k_scale.stride(0), 4) +
                           element_bytes(key.slot, in.k_scale.stride(1), 4);
        return sum[0] * load_f32(scale);
    }

    Expr is_visible(const Expr &j) {
        const Registers allowed = code.registers("allowed", Int(32), 1);
        code.set(allowed, 0, cast<int32_t>(j >= begin && j < end));
        code.when(in.mask_form != no_mask && allowed[0] != 0, [&] {
            const Expr mask = code.let("mask", load_u8(row_of(in.mask, 1) + element_bytes(j, in.mask.stride(0), 1)));
            code.set(allowed, 0, cast<int32_t>(mask_allows(cast<uint8_t>(mask), in.mask_form)));
        });
        return allowed[0] != 0;
    }

    void add_biases(const Expr &j, const Expr &capped, const Registers &result) {
        const Registers added = code.registers("added", Float(32), 1);
        code.set(added, 0, 0.f);
        code.when(in.bias_form == bias_of_f32,
                  [&] { code.set(added, 0, load_f32(row_of(in.bias, 4) + element_bytes(j, in.bias.stride(0), 4))); });
        if (type != ElementType::f32) {
            code.when(in.bias_form == bias_of_dtype, [&] {
                code.set(added, 0,
                         elements.load(row_of(in.bias_16, 2) + element_bytes(j, in.bias_16.stride(0), 2), 1)[0]);
            });
        }
        const Expr distance = token_distance(j, i, field.position_offset);
        code.when(!is_negative_infinity(added[0]), [&] {
            code.set(result, 0, bits(capped + (added[0] + logit_changes(in).bias_of_place(slope, distance))));
        });
    }

    void take(const Expr &pass, const Expr &j, const Expr &x) {
        const Expr hidden = is_negative_infinity(x);
        const auto weight = [&] { return select(hidden, 0.f, exp2((x - row_max[0]) * log2_e)); };
        code.when(pass == 0, [&] { code.set(row_max, 0, select(hidden, row_max[0], maximum(row_max[0], x))); });
        code.when(pass == 1, [&] { code.set(row_sum, 0, row_sum[0] + weight()); });
        code.when(pass == 2, [&] {
            const Registers value = code.registers("value", Int(32), 1);
            code.set(value, 0, select(i < field.q_len, bits(x), 0));
            code.when(in.mode == probabilities, [&] { code.set(value, 0, bits(strict_float(weight() * factor[0]))); });
            const Expr result = code.let("result", value[0]);
            code.when(
                in.as_f32 != 0, [&] { code.run(store_u32(out_row + element_bytes(j, 1, 4), cast<uint32_t>(result))); },
                [&] { elements.store(out_row + element_bytes(j, 1, elements.size()), {reinterpret<float>(result)}); });
        });
    }

    template <typename Combine>
    void reduce(const Registers &x, const Combine &combine) {
        for (const int mask : {1, 2, 4, 8, 16}) {
            const Expr other = code.let("other", from_lane(x[0], mask));
            code.set(x, 0, combine(x[0], other));
        }
    }
};

}  // namespace

Module attention_probs_module(const std::string &name, ElementType type, ElementType kv_type, const Target &target) {
    return ProbsProgram(name, type, kv_type).module(target);
}

}  // namespace heed::cuda
