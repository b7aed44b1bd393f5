#pragma once
// Merges attention states over disjoint key sets: out = sum_n w_n x_n with w_n = exp(lse_n - lse), where lse is the
// logarithm of the sum of all exp(lse_n) and of exp(sink).
//
// A state without keys (lse_n = -inf) changes no bit, whatever its x holds; a single state comes out bit by bit.
// Without any key out = +0. NaN in lse or sink gives NaN in that row.

#include "generators/attention/logits.h"
#include "generators/common/device_memory.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/contract/operations.h"

namespace heed {

// States in floats, however they are stored.
struct StateRows {
    Halide::Expr num_states;
    std::function<Halide::Expr(Halide::Expr row, Halide::Expr state)> lse;
    std::function<Halide::Expr(Halide::Expr d, Halide::Expr row, Halide::Expr state)> x;
    std::function<Halide::Expr(Halide::Expr row)> sink;
    Halide::Expr (*exp2)(const Halide::Expr &);  // of what is not positive
};

struct MergedStates {
    using Expr = Halide::Expr;
    using Func = Halide::Func;

    Halide::Var d{"d"}, row{"row"}, state{"state"};
    Halide::RDom over_states;
    Func row_max{"row_max"};      // (row) largest lse_n or sink
    Func row_sum{"row_sum"};      // (row) sum relative to row_max, 0 without keys and sink
    Func weights{"weights"};      // (row, state)
    Func num_keyed{"num_keyed"};  // (row) states with keys
    Func sum{"sum"};              // (d, row)
    Func merged{"merged"};        // (d, row)
    Func merged_lse{"merged_lse"};

    explicit MergedStates(const StateRows &in) : over_states(0, in.num_states, "over_states") {
        const Halide::RDom &n = over_states;
        // exp(x - max), exactly 1 for the maximum itself and 0 without keys.
        const auto weight_of = [&](const Expr &x, const Expr &max) {
            return select(is_negative_infinity(x), 0.f, in.exp2((x - max) * log2_e));
        };
        row_max(row) = logit_or_lowest(in.sink(row));
        row_max(row) = max(row_max(row), logit_or_lowest(in.lse(row, n)));
        row_sum(row) = weight_of(in.sink(row), row_max(row));
        row_sum(row) += weight_of(in.lse(row, n), row_max(row));
        weights(row, state) = weight_of(in.lse(row, state), row_max(row)) / row_sum(row);
        num_keyed(row) = 0;
        num_keyed(row) += select(is_negative_infinity(in.lse(row, n)), 0, 1);

        // Minus zero is the sum of nothing: added to x it leaves every x as it is, zeros of both signs too, where the
        // addition is a strict one. A strict operation in the kernel also keeps its predicated loads free of the
        // assumption that what they load is finite, on which the compiler would delete the tests for minus infinity.
        sum(d, row) = -0.f;
        Expr term = weights(row, n) * in.x(d, row, n);
        sum(d, row) = select(is_negative_infinity(in.lse(row, n)), sum(d, row), strict_float(sum(d, row) + term));
        Expr total = row_sum(row), is_nan = (bits(total) & 0x7fffffff) > infinity_bits;
        Expr value = select(is_nan, bits(total), num_keyed(row) == 0, 0, bits(sum(d, row)));
        merged(d, row) = Halide::reinterpret<float>(value);

        constexpr int32_t one_bits = 0x3f800000;
        merged_lse(row) = Halide::reinterpret<float>(select(is_nan, bits(total), bits(total) == 0,
                                                            negative_infinity_bits, bits(total) == one_bits,
                                                            bits(row_max(row)), bits(row_max(row) + log(total))));
    }

private:
    // A logit that takes part in a maximum: no key counts as the lowest finite one.
    static Expr logit_or_lowest(const Expr &x) { return select(is_negative_infinity(x), lowest_logit(), x); }
};

HEED_KERNEL_ARGUMENTS(MergeStatesArguments, HEED_MERGE_STATES)

struct MergeStatesKernel : MergeStatesArguments, MergedStates {
    Func out{"out"};  // (d, row)

    explicit MergeStatesKernel(ElementType type) : MergeStatesArguments({type}), MergedStates(rows(type)) {
        out(d, row) = from_float(type, merged(d, row));
        state_buffer_contract();
    }

    Halide::Pipeline pipeline() const { return Halide::Pipeline({row_max, row_sum, weights, merged_lse, out}); }

private:
    StateRows rows(ElementType type) const {
        return {lse.dim(1).extent(), [this](const Expr &r, const Expr &n) { return lse(r, n); },
                [this, type](const Expr &at, const Expr &r, const Expr &n) { return to_float(type, x(at, r, n)); },
                [this](const Expr &r) { return sink(r); }, exp2_nonpositive};
    }

    void state_buffer_contract() {
        Halide::OutputImageParam out_buffer = out.output_buffer();
        Expr num_rows = lse.dim(0).extent(), num_states = lse.dim(1).extent();
        for (int i = 0; i < 2; i++) {
            lse.dim(i).set_min(0);
            out_buffer.dim(i).set_min(0);
        }
        x.dim(0).set_bounds(0, out_buffer.dim(0).extent());
        x.dim(1).set_bounds(0, num_rows);
        x.dim(2).set_bounds(0, num_states);
        out_buffer.dim(1).set_extent(num_rows);
        weights.output_buffer().dim(0).set_bounds(0, num_rows);
        weights.output_buffer().dim(1).set_bounds(0, num_states);
        sink.dim(0).set_bounds(0, num_rows);
        for (Func f : {row_max, row_sum, merged_lse}) f.output_buffer().dim(0).set_bounds(0, num_rows);
    }
};

HEED_KERNEL_ARGUMENTS(MergeStatesDeviceArguments, HEED_CUDA_MERGE_STATES)

// States at addresses. A part of the kernel has chunks of rows, numbered through all of them, for its rows.
struct MergeStatesDevice : MergeStatesDeviceArguments, Results {
    struct Part : MergedStates {
        Halide::RDom all;  // element of a chunk, chunk
    };
    std::vector<Part> by_width;

    explicit MergeStatesDevice(ElementType type) : MergeStatesDeviceArguments({type}) {
        for (const int width : {chunk_of(type), 1}) add_part(type, width, (wide != 0) == (width > 1));
    }

private:
    using Expr = Halide::Expr;

    // Heads vary fastest, then positions.
    struct Place {
        Expr chunk, batch, position, head;
    };
    Place place_of(const Expr &number, const Expr &row_chunks) const {
        const Expr row_number = number / row_chunks, token = row_number / num_heads, b = token / q_len;
        return {number - row_number * row_chunks, b, token - b * q_len, row_number - token * num_heads};
    }
    Expr lse_row(const Place &at) const { return (at.batch * num_heads + at.head) * q_len + at.position; }

    void add_part(ElementType type, int width, const Expr &on) {
        const Expr row_chunks = head_dim / width, has_sink = sink != Halide::cast<uint64_t>(0);
        const StateRows in = {
            num_states,
            [=](const Expr &r, const Expr &n) {
                return float_at(ElementType::f32, entry_word(word, n, 1), lse_row(place_of(r, row_chunks)));
            },
            [=](const Expr &e, const Expr &r, const Expr &n) {
                const Place at = place_of(r, row_chunks);
                const Expr from =
                    after(after(after(entry_word(word, n, 0), at.batch, from_batch), at.position, from_token), at.head,
                          from_head);
                return float_at(type, from, at.chunk * width + e);
            },
            [=](const Expr &r) {
                const Expr logit = load_at_if(has_sink, Halide::Int(32), sink, place_of(r, row_chunks).head);
                return Halide::reinterpret<float>(select(has_sink, logit, negative_infinity_bits));
            },
            exp2_on_device};
        by_width.push_back({MergedStates(in), Halide::RDom(0, width, 0, select(on, num_rows * row_chunks, 0), "all")});
        const Part &part = by_width.back();
        const Expr e = part.all.x, r = part.all.y;
        const Place at = place_of(r, row_chunks);
        const Expr to = after(after(after(out, at.batch, to_batch), at.position, to_token), at.head, to_head);
        const Expr has_lse = lse != Halide::cast<uint64_t>(0);
        add(store_at(to, at.chunk * width + e, from_float(type, part.merged(e, r))) +
            store_at_if(e == 0 && at.chunk == 0 && has_lse, lse, lse_row(at), part.merged_lse(r)));
    }
};

}  // namespace heed
