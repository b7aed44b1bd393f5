#include "generators/cuda/backward_bias.h"

#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/cuda/backward_logit.h"
#include "generators/cuda/block_sum.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/launch.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int logits_of_thread = 8;  // that an element of one thread may have

// Axes from the innermost: key, query, head, sequence.
constexpr int num_axes = 4;

class BiasProgram {
public:
    BiasProgram(const std::string &name, ElementType type)
        : name(name), type(type), elements(type, code), logit(type, in, code) {}

    Module module(const Target &target) {
        const Expr all[] = {in.max_kv_len, in.max_q_len, in.q.extent(1), in.batch};
        Expr num_elements = cast<int64_t>(1), num_logits = cast<int64_t>(1);
        for (int n = 0; n < num_axes; n++) {
            num_elements = num_elements * in.dbias.extent(n);
            shared[n] = select(in.dbias.extent(n) == all[n], 1, all[n]);
            num_logits = num_logits * shared[n];
        }
        const Expr whole_block = num_logits > logits_of_thread, thread = Launch::thread(name);
        const Expr threads = code.let("threads", select(whole_block, bias_threads, 1));
        const Expr number = cast<int64_t>(Launch::block(name)) * bias_threads + thread;
        const Expr element = code.let("element", select(whole_block, cast<int64_t>(Launch::block(name)), number));
        code.when(element < num_elements, [&] {
            const Registers sum = code.registers("sum", Float(32), 1);
            code.set(sum, 0, 0.f);
            find_element(element);
            const Expr first = code.let("first", select(whole_block, thread, 0));
            code.loop("logit", cast<int32_t>((num_logits - first + threads - 1) / threads),
                      [&](const Expr &n) { add(code.let("shared_logit", cast<int64_t>(n) * threads + first), sum); });
            code.when(whole_block,
                      [&] { sum_over_block(code, sum, thread, bias_threads, code.let("shared", shared_begin())); });
            code.when(first == 0, [&] { store(sum[0]); });
        });
        const Expr blocks = select(whole_block, num_elements, (num_elements + bias_threads - 1) / bias_threads);
        const Launch launch = {name, cast<int32_t>(blocks), bias_threads, bias_shared_bytes, in.tensors(),
                               {},   code.finish()};
        return launch_module(name, Func("bias_written"), in.output_types(), in.arguments(), launch, target);
    }

private:
    const std::string name;
    const ElementType type;
    const BackwardInputs in{type};
    DeviceCode code;
    RowElements elements;
    BackwardLogit logit;
    Expr shared[num_axes];  // logits along an axis that share an element
    Expr place[num_axes];   // of the element
    Expr offset;            // of the element in dbias, in elements

    void find_element(Expr element) {
        offset = cast<int64_t>(0);
        for (int n = 0; n < num_axes; n++) {
            const Expr extent = cast<int64_t>(in.dbias.extent(n)), rest = code.let("rest", element / extent);
            place[n] = code.let("place", cast<int32_t>(element - rest * extent));
            offset = offset + cast<int64_t>(place[n]) * in.dbias.stride(n);
            element = rest;
        }
        offset = code.let("offset", offset);
    }

    // The gradient of logit `n` of those that share the element.
    void add(Expr n, const Registers &sum) {
        Expr index[num_axes];
        for (int axis = 0; axis < num_axes; axis++) {
            const Expr extent = cast<int64_t>(shared[axis]), rest = code.let("rest", n / extent);
            index[axis] = code.let("index", place[axis] + cast<int32_t>(n - rest * extent));
            n = rest;
        }
        const Expr j = index[0], i = index[1], head = index[2], sequence = index[3];
        const SequenceFields f = in.read_sequence(code, sequence);
        code.when(i < f.q_len && j < f.kv_len, [&] {
            const Expr kv_head = quotient(head, quotient(in.q.extent(1), in.k.extent(1)));
            const int size = elements.size();
            const Expr query = f.first_q + i, key = f.first_key + j;
            const Expr raw = dot(tensor_row(in.q, sequence, head, query, size),
                                 tensor_row(in.k, sequence, kv_head, key, size), in.q.extent(0));
            const Expr weight_grad = dot(tensor_row(in.dout, sequence, head, query, size),
                                         tensor_row(in.v, sequence, kv_head, key, size), in.v.extent(0));
            const Expr stat = in.stats_of(sequence, head) + bytes_of(i, backward_stat_bytes);
            const Expr lse = code.let("lse", load_f32(stat)),
                       delta = code.let("delta", load_f32(stat + cast<uint64_t>(4)));
            const BackwardHead at = {sequence, head, logit.load_slope(head), f};
            code.set(sum, 0, sum[0] + logit.gradients(at, i, j, raw, weight_grad, lse, delta).logit);
        });
    }

    Expr dot(const Expr &first, const Expr &second, const Expr &length) {
        const Registers sum = code.registers("dot", Float(32), 1);
        code.set(sum, 0, 0.f);
        const Expr a = code.let("a", first), b = code.let("b", second);
        code.loop("d", length, [&](const Expr &d) {
            const Expr x = elements.load(a + bytes_of(d, elements.size()), 1)[0],
                       y = elements.load(b + bytes_of(d, elements.size()), 1)[0];
            code.set(sum, 0, fma(x, y, sum[0]));
        });
        return code.let("product", sum[0]);
    }

    void store(const Expr &sum) {
        const Expr x = code.let("sum", sum);
        if (type == ElementType::f32) {
            code.run(store_f32(in.dbias.address() + cast<uint64_t>(offset * 4), x));
            return;
        }
        code.when(
            in.bias_form == bias_of_f32,
            [&] { code.run(store_f32(in.dbias.address() + cast<uint64_t>(offset * 4), x)); },
            [&] { elements.store(in.dbias.address() + cast<uint64_t>(offset * 2), {x}); });
    }
};

}  // namespace

Module backward_bias_module(const std::string &name, ElementType type, const Target &target) {
    return BiasProgram(name, type).module(target);
}

}  // namespace heed::cuda
