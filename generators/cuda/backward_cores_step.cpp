// One step: a block of rows of each side.
#include "generators/cuda/backward_cores_program.h"

namespace heed::cuda {

using namespace Halide;

void BackwardCoresProgram::compute(const Step &step, const Expr &stage, const Expr &pass) {
    multiply(0, stage, scores);
    multiply(1, stage, weight_grads);
    const Expr end = step.first + tile.others;
    code.when(
        plain != 0,
        [&] {
            code.when(
                step.first >= at.full_begin && end <= at.full_end, [&] { change(step, stage, Form::whole); },
                [&] { change(step, stage, Form::positioned); });
        },
        [&] { change(step, stage, Form::general); });
    code.when(pass != 0, [&] {
        if (side == backward_keys) show_what_is_no_number();
        clear_what_is_no_number(stage);
    });
    accumulate(0, stage, score_grads, sums[0]);
    if (side == backward_keys) accumulate(1, stage, weights, sums[1]);
}

// For a step's rows of the other side, once their scores are known: NaN and infinities become 0.
void BackwardCoresProgram::clear_what_is_no_number(const Expr &stage) {
    const uint32_t exponent = type == ElementType::f16 ? 0x7c00 : 0x7f80;
    const auto is_number = [&](const Expr &word, int shift) {
        return (word & Expr(exponent << shift)) != Expr(exponent << shift);
    };
    code.run(barrier());
    const Expr me = code.let("me", thread_index());
    const int words = tile.head_dim / 2;
    code.loop("word", 2 * tile.others * words / tile.threads(), [&](const Expr &i) {
        const Expr number = code.let("number", i * tile.threads() + me);
        const Expr to = code.let("to", shared_at + stage + number / words * shared.row + number % words * 4);
        const Expr word = code.let("word", load_shared_u32(to));
        const Expr low = select(is_number(word, 0), word & Expr(0xffffu), Expr(0u)),
                   high = select(is_number(word, 16), word & Expr(0xffff0000u), Expr(0u));
        code.run(store_shared_u32(to, low | high));
    });
    code.run(barrier());
}

// Gradients of scores are NaN where a row that is seen holds no numbers; so are weights then, for rows of dout.
void BackwardCoresProgram::show_what_is_no_number() {
    const uint32_t nan = type == ElementType::f16 ? 0x7e00 : 0x7fc0, one_sign = 0x7fff;
    for (int r = 0; r < 2 * tile.m_tiles; r++) {
        for (int n = 0; n < score_tiles; n++) {
            const int pair = pair_index(r, n);
            for (int e = 0; e < 2; e++) {
                const Expr product = weight_grads[4 * score_index(r / 2, n) + r % 2 * 2 + e];
                const Expr lost = (reinterpret<int32_t>(product) & 0x7fffffff) >= 0x7f800000 &&
                                  (weights[pair] & Expr(one_sign << (16 * e))) != Expr(0u);
                code.set(weights, pair, weights[pair] | select(lost, Expr(nan << (16 * e)), Expr(0u)));
            }
        }
    }
}

// Adds a product to a tile of 16 x 8 floats, held as floats: see ProgramBuilder::multiply.
void BackwardCoresProgram::add_product(const Registers &tiles, int index, const Expr &a, const Expr &b, bool first) {
    const Expr old = first
                         ? zero_fragment()
                         : fragment(tiles[4 * index], tiles[4 * index + 1], tiles[4 * index + 2], tiles[4 * index + 3]);
    const Expr sum = code.let("product", mma(type, a, b, old));
    for (int i = 0; i < 4; i++) code.set(tiles, 4 * index + i, float_of(sum, i));
}

Expr BackwardCoresProgram::load_own(int operand, int m, int k) const {
    return load_matrices(left_at + ((operand * tile.rows() + m * 16) * shared.row + k * 32));
}

// X . Y: operand 0 is X1 and Y1. For each 16 elements all tiles in turn: consecutive products do not depend on each
// other.
void BackwardCoresProgram::multiply(int operand, const Expr &stage, const Registers &result) {
    const Expr right = code.let("right", right_at + stage + operand * tile.others * shared.row);
    for (int k = 0; k < tile.head_dim / 16; k++) {
        std::vector<Expr> x;
        for (int m = 0; m < tile.m_tiles; m++) {
            x.push_back(
                code.let("x", tile.own_in_registers ? own_rows[own_index(operand, m, k)] : load_own(operand, m, k)));
        }
        for (int n = 0; n < score_tiles; n += 2) {
            const Expr pair = code.let("y", load_matrices(right + (n * 8 * shared.row + k * 32)));
            for (int i = 0; i < 2; i++) {
                const Expr y = i == 0 ? low_half(pair) : high_half(pair);
                for (int m = 0; m < tile.m_tiles; m++) add_product(result, score_index(m, n + i), x[m], y, k == 0);
            }
        }
    }
}

// sum += factors Y.
void BackwardCoresProgram::accumulate(int operand, const Expr &stage, const Registers &factors, const Registers &sum) {
    const Expr from = code.let("transposed", transposed_at + stage + operand * tile.others * shared.row);
    for (int k = 0; k < tile.others / 16; k++) {
        std::vector<Expr> x;
        for (int m = 0; m < tile.m_tiles; m++) {
            const auto pair = [&](int r, int n) { return factors[pair_index(2 * m + r, 2 * k + n)]; };
            x.push_back(code.let("factors", fragment(pair(0, 0), pair(1, 0), pair(0, 1), pair(1, 1))));
        }
        for (int n = 0; n < out_tiles; n += 2) {
            const Expr both = code.let("y", load_matrices_transposed(from + (k * 16 * shared.row + n * 16)));
            for (int i = 0; i < 2; i++) {
                const Expr y = i == 0 ? low_half(both) : high_half(both);
                for (int m = 0; m < tile.m_tiles; m++) add_product(sum, m * out_tiles + n + i, x[m], y, false);
            }
        }
    }
}

// What general logits are computed from is not known before they are: nothing waits in registers.
BackwardHead BackwardCoresProgram::general_head(const Expr &query_head) {
    const Expr zero = code.let("zero", cast<int32_t>(load_shared_u32(shared_at + shared.zero)));
    const auto anew = [&](const Expr &x) { return code.let("anew", x ^ zero); };
    const SequenceFields &f = at.fields;
    const Expr head = anew(query_head);
    return {anew(at.sequence),
            head,
            logit.load_slope(head),
            {anew(f.q_len), f.first_q, anew(f.kv_len), f.first_key, anew(f.visible_begin), anew(f.visible_end),
             anew(f.position_offset)},
            zero};
}

// From products to packed weights and gradients of scores.
void BackwardCoresProgram::change(const Step &step, const Expr &stage, Form form) {
    const Expr query_head = code.let("query_head", at.query_head(step.head));
    for (int n = 0; n < score_tiles; n++) {
        const BackwardHead head =
            form == Form::general ? general_head(query_head) : BackwardHead{at.sequence, query_head, Expr(), at.fields};
        Expr column_stats[4];  // lse and delta of two queries
        if (side == backward_keys) {
            const Expr from =
                shared_at + stage + (shared.stats + 8 * n * backward_stat_bytes) + quad * (2 * backward_stat_bytes);
            const Expr four = code.let("stats", load_shared_fragment(from));
            for (int i = 0; i < 4; i++) column_stats[i] = code.let("stat", float_of(four, i));
        }
        for (int r = 0; r < 2 * tile.m_tiles; r++) {
            Expr weight[2], score_grad[2];
            for (int e = 0; e < 2; e++) {
                const Expr other = (step.first + quad * 2 + (8 * n + e)) ^ head.zero, own = own_row(r) ^ head.zero;
                const bool keys = side == backward_keys;
                const int index = 4 * score_index(r / 2, n) + r % 2 * 2 + e;
                const LogitGradients g = of_logit(head, keys ? other : own, keys ? own : other, scores[index],
                                                  weight_grads[index], keys ? column_stats[2 * e] : row_stats[2 * r],
                                                  keys ? column_stats[2 * e + 1] : row_stats[2 * r + 1], form);
                weight[e] = g.weight;
                score_grad[e] = g.score;
            }
            if (side == backward_keys) code.set(weights, pair_index(r, n), pack(type, weight[0], weight[1]));
            code.set(score_grads, pair_index(r, n), pack(type, score_grad[0], score_grad[1]));
        }
    }
}

LogitGradients BackwardCoresProgram::of_logit(const BackwardHead &head, const Expr &i, const Expr &j, const Expr &dot,
                                              const Expr &weight_dot, const Expr &lse, const Expr &delta, Form form) {
    if (form == Form::general) return logit.gradients(head, i, j, dot, weight_dot, lse, delta);
    Expr weight = code.let("weight", exp2(fma(dot, unit, -lse)));
    Expr grad = weight * (weight_dot - delta);
    if (form == Form::positioned) {
        const SequenceFields &f = head.fields;
        // Queries after q_len have no weights; as own rows they are not stored.
        const Expr exists = side == backward_keys ? i < f.q_len : Internal::const_true();
        const Expr seen = code.let("seen", cast<int32_t>(exists && j >= first_visible(i, f.visible_begin) &&
                                                         j < end_visible(i, f.visible_end, f.kv_len)));
        weight = select(seen != 0, weight, 0.f);
        grad = select(seen != 0, grad, 0.f);
    }
    return {weight, code.let("score_grad", grad)};
}

}  // namespace heed::cuda
