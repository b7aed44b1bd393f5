#include "generators/cuda/merge_rows.h"

#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/launch_arguments.h"
#include "generators/cuda/launch_words.h"
#include "generators/cuda/row_elements.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int32_t one_bits = 0x3f800000;

// A logit that takes part in a maximum: no key counts as the lowest finite one.
Expr logit_or_lowest(const Expr &x) { return select(is_negative_infinity(x), lowest_logit(), x); }

HEED_LAUNCH_ARGUMENTS(MergeInputs, HEED_CUDA_MERGE_STATES)

class MergeProgram {
public:
    MergeProgram(const std::string &name, ElementType type) : name(name), elements(type, code) {}

    Module module(const Target &target) {
        const Expr row_items = Internal::Variable::make(Int(32), "row_items");
        const Expr item = code.let("item", Launch::block(name) * merge_threads + Launch::thread(name));
        const Expr row = code.let("row", quotient(item, row_items));
        code.when(row < in.num_rows, [&] {
            const Expr i = code.let("i", item - row * row_items);
            find_row(row);
            sum_weights();
            code.when(
                in.wide != 0, [&] { merge(i, elements.width()); }, [&] { merge(i, 1); });
            code.when(i == 0 && in.lse != cast<uint64_t>(0), [&] { store_lse(); });
        });
        const std::vector<std::pair<std::string, Expr>> host_values = {
            {"row_items", in.head_dim / select(in.wide != 0, elements.width(), 1)}};
        const Launch launch = {
            name, ceil_div(in.num_rows * row_items, merge_threads), merge_threads, 0, {}, host_values, code.finish()};
        return launch_module(name, Func("merged"), in.output_types(), in.arguments(), launch, target);
    }

private:
    const std::string name;
    const MergeInputs in;
    const LaunchWords states{in.word};
    DeviceCode code;
    RowElements elements;
    Expr from, to, lse_row;  // of the thread's row: bytes from the first one, index
    Registers row_max, row_sum;
    Expr sink;

    // Heads vary fastest, then positions.
    void find_row(const Expr &row) {
        const Expr token = code.let("q", quotient(row, in.num_heads)), h = code.let("h", row - token * in.num_heads);
        const Expr b = code.let("q", quotient(token, in.q_len)), i = code.let("t", token - b * in.q_len);
        const auto at = [&](const Expr &batch, const Expr &position, const Expr &head) {
            return cast<uint64_t>(b) * batch + cast<uint64_t>(i) * position + cast<uint64_t>(h) * head;
        };
        from = code.let("from", at(in.from_batch, in.from_token, in.from_head));
        to = code.let("to", at(in.to_batch, in.to_token, in.to_head));
        lse_row = code.let("lse_row", (b * in.num_heads + h) * in.q_len + i);
        const Registers logit = code.registers("logit", Float(32), 1);
        code.set(logit, 0, negative_infinity());
        code.when(in.sink != cast<uint64_t>(0), [&] { code.set(logit, 0, load_f32(in.sink + bytes_of(h, 4))); });
        sink = code.let("sink_logit", logit[0]);
    }

    // body(address of the state's out, its lse) for each state.
    void for_states(const std::function<void(const Expr &, const Expr &)> &body) {
        code.loop("state", in.num_states, [&](const Expr &n) {
            const std::vector<Expr> words = states.find(code, n);
            body(words[0], code.let("state_lse", load_f32(words[1] + bytes_of(lse_row, 4))));
        });
    }

    // exp(x - max), exactly 1 for the maximum itself.
    Expr weight(const Expr &x) { return select(is_negative_infinity(x), 0.f, exp2((x - row_max[0]) * log2_e)); }

    void sum_weights() {
        row_max = code.registers("row_max", Float(32), 1);
        row_sum = code.registers("row_sum", Float(32), 1);
        code.set(row_max, 0, logit_or_lowest(sink));
        for_states([&](const Expr &, const Expr &x) { code.set(row_max, 0, maximum(row_max[0], logit_or_lowest(x))); });
        code.set(row_sum, 0, weight(sink));
        for_states([&](const Expr &, const Expr &x) { code.set(row_sum, 0, row_sum[0] + weight(x)); });
    }

    // Sums start from minus zero, the sum of nothing, so that a single state keeps its zeros.
    void merge(const Expr &i, int width) {
        const Expr first = code.let("first", bytes_of(i, width * elements.size()));
        const Registers sum = code.registers("sum", Float(32), width), keyed = code.registers("keyed", Int(32), 1);
        for (int e = 0; e < width; e++) code.set(sum, e, -0.f);
        code.set(keyed, 0, 0);
        for_states([&](const Expr &out, const Expr &x) {
            code.when(!is_negative_infinity(x), [&] {
                const Expr w = code.let("w", strict_float(weight(x) / row_sum[0]));
                const Elements value = elements.load(out + from + first, width);
                for (int e = 0; e < width; e++) code.set(sum, e, fma(w, value[e], sum[e]));
                code.set(keyed, 0, 1);
            });
        });
        const Expr total = code.let("total", bits(row_sum[0]));
        Elements result;
        for (int e = 0; e < width; e++) {
            result.push_back(
                reinterpret<float>(select((total & 0x7fffffff) > 0x7f800000, total, keyed[0] == 0, 0, bits(sum[e]))));
        }
        elements.store(in.out + to + first, result);
    }

    void store_lse() {
        const Expr total = code.let("total", bits(row_sum[0]));
        const Expr lse = select((total & 0x7fffffff) > 0x7f800000, total, total == 0, negative_infinity_bits,
                                total == one_bits, bits(row_max[0]), bits(row_max[0] + log(row_sum[0])));
        code.run(store_u32(in.lse + bytes_of(lse_row, 4), cast<uint32_t>(lse)));
    }
};

}  // namespace

Module merge_states_module(const std::string &name, ElementType type, const Target &target) {
    return MergeProgram(name, type).module(target);
}

}  // namespace heed::cuda
