#pragma once
// Gradients of logits whose tensors are at addresses, from the products q . k and dout . v.

#include "generators/attention/backward_logits.h"
#include "generators/ops/device_score_buffers.h"
#include "generators/ops/device_scores.h"

namespace heed {

// Arguments: a list's with HEED_LOGIT_GRADIENT_VALUES.
template <typename Arguments>
struct BackwardScores : DeviceScores<Arguments> {
    // The weight of a logit, at coordinates of the kernel: stages, so that both gradients are made of one, and what is
    // off is not computed (Halide skips a stage that only a select reads).
    struct Weight {
        Halide::Func product{"product"};  // q . k
        Halide::Func capped{"capped"};    // the logit by a softcap, and the slope of that
        Halide::Func added{"added"};      // by bias and ALiBi; minus infinity: hidden
        Halide::Func by_user{"by_user"};  // the logit by a score function, and the slope of that
        Halide::Func shown{"shown"};      // whether a score function lets the key be seen
        Halide::Func before{"before"};    // dropout
        Halide::Func factor{"factor"};    // what dropout multiplies it by

        // Those that the kernel has.
        std::vector<Halide::Func> stages() const {
            std::vector<Halide::Func> defined;
            for (const Halide::Func &f : {product, capped, added, by_user, shown, before, factor}) {
                if (f.defined()) defined.push_back(f);
            }
            return defined;
        }
    };

    BackwardScores(ElementType type, const ScoreMod &score_mod)
        : DeviceScores<Arguments>({type}), score_mod(score_mod) {}

protected:
    const ScoreMod score_mod;  // with its derivative

    using Expr = Halide::Expr;
    using Row = typename DeviceScores<Arguments>::Row;

    // Tensor 0 or 1 of a side: q and dout, k and v. Token `number` of a sequence; strides in bytes.
    struct Rows {
        Expr first, batch, token, head, length, first_token;

        // Whether rows are whole chunks of 16 bytes, aligned; of types of 16 bits.
        Expr in_chunks() const {
            const Expr bytes = first | batch | token | head | bytes_of(Halide::UInt(16), length);
            return (bytes & Halide::cast<uint64_t>(15)) == 0;
        }
        Expr in_words() const {
            return ((first | batch | token | head | bytes_of(Halide::UInt(16), length)) & Halide::cast<uint64_t>(3)) ==
                   0;
        }
        Expr row(const Expr &sequence, const Expr &of_head, const Expr &number) const {
            return after(after(after(first, sequence, batch), of_head, head), first_token + number, token);
        }
    };
    Rows query_rows(int n, const Expr &sequence) const {
        const Expr first_q = this->field(sequence_first_q, sequence);
        if (n == 0) return {this->q, this->q_batch, this->q_token, this->q_head, this->head_dim, first_q};
        return {this->dout, this->dout_batch, this->dout_token, this->dout_head, this->head_dim_v, first_q};
    }
    Rows key_rows(int n, const Expr &sequence) const {
        const Expr first_key = this->field(sequence_first_key, sequence);
        if (n == 0) return {this->k, this->k_batch, this->k_token, this->k_head, this->head_dim, first_key};
        return {this->v, this->v_batch, this->v_token, this->v_head, this->head_dim_v, first_key};
    }
    Expr kv_head_of(const Expr &head) const { return head / (this->num_heads / this->num_kv_heads); }

    Expr stat_of(const Row &row) const {
        const Expr line = row.sequence * this->num_heads + row.head;
        return after(this->stats, line * this->stat_rows + row.i, Expr(backward_stat_bytes));
    }
    // What logits know of the query whose row they are in: its stats, 0 where it does not exist, and the keys that it
    // may see by the lengths and places alone.
    struct Query {
        Expr lse, delta, first_key, end_key;

        explicit Query(const std::vector<Expr> &all) : lse(all[0]), delta(all[1]), first_key(all[2]), end_key(all[3]) {}
    };
    std::vector<Expr> query_values(const Row &row) const {
        const Expr exists = this->exists(row), s = row.sequence, stat = stat_of(row);
        const auto of_row = [&](int which) { return load_at_if(exists, Halide::Float(32), stat, which); };
        const Expr kv_len = this->field(sequence_kv_len, s);
        return {of_row(0), of_row(1), first_visible(row.i, this->field(sequence_visible_begin, s)),
                select(exists, end_visible(row.i, this->field(sequence_visible_end, s), kv_len), 0)};
    }

    // What a score function makes of a logit in natural units, with the slope of that, and whether it lets the key be
    // seen: undefined where it leaves that alone. block: the variable of stages.
    struct OfUser {
        Expr value, slope, visible;
    };
    OfUser of_user(const Expr &logit, const ScorePlace &place, const Expr &block) const {
        const std::vector<ScoreWords> words = {{this->score_buffer_0, this->score_size_0},
                                               {this->score_buffer_1, this->score_size_1},
                                               {this->score_buffer_2, this->score_size_2},
                                               {this->score_buffer_3, this->score_size_3}};
        const ScoreBuffers buffers = device_score_buffers(words, score_mod, block);
        OfUser found;
        if (score_mod.logit) {
            found.value = score_mod.logit(logit, place, buffers);
            found.slope = score_mod.logit_derivative(logit, place, buffers);
        }
        if (score_mod.visible) found.visible = score_mod.visible(place, buffers);
        return found;
    }

    ScorePlace logit_place(const Row &row, const Expr &j, const Expr &position_offset) const {
        return {row.sequence, row.head, row.i, j, row.i + position_offset};
    }

    struct Gradients {
        Expr weight, score;  // the weight after dropout; the gradient of the scaled product
    };
    // The gradients of key j in a row, neither of which need exist; defines `weight` at these coordinates. The products
    // of a hidden logit may be anything.
    Gradients gradients(Weight &weight, const std::vector<Halide::Var> &at, const Expr &product, const Expr &weight_dot,
                        const Row &row, const Query &query, const Expr &j) const {
        const std::vector<Expr> here(at.begin(), at.end());
        LogitChanges changes = logit_changes(*this);
        weight.product(at) = product;
        const Expr dot = weight.product(here), capped = changes.capped(dot * changes.scale, LogitUnits::natural);
        weight.capped(at) = Halide::Tuple(capped, changes.slope(capped));
        changes.of_cap = weight.capped(here)[0];
        changes.of_slope = weight.capped(here)[1];
        weight.added(at) = this->added_to_logit(row, j);
        changes.bias = select(this->adds_to_logits(), weight.added(here), 0.f);
        ChangedLogit logit = changed_logit(dot, changes, LogitUnits::natural);
        const Expr offset = this->field(sequence_position_offset, row.sequence);
        OfUser user = of_user(logit.value, logit_place(row, j, offset), at.back());
        if (user.value.defined()) {
            weight.by_user(at) = Halide::Tuple(user.value, user.slope);
            logit.value = weight.by_user(here)[0];
            user.slope = weight.by_user(here)[1];
        }
        if (user.visible.defined()) {
            weight.shown(at) = user.visible;
            user.visible = weight.shown(here);
        }
        const Expr in_range = j >= query.first_key && j < query.end_key;
        const Expr visible = is_visible({in_range, Expr(), Expr(), Expr(), changes.bias, user.visible});
        const Expr power = exp2_on_device(fused_on_device(logit.value, log2_e, -query.lse));
        weight.before(at) = select(visible, power, 0.f);
        weight.factor(at) = kept(row, j);
        const Expr factor = weight.factor(here);
        const WeightGradients of =
            weight_gradients(weight.before(here), weight_dot, query.delta, factor, is_zero(factor));
        const Expr before_user = user.slope.defined() ? of.logit * user.slope : of.logit;
        return {of.weight, select(visible, scaled_gradient(before_user, logit, changes, !visible), 0.f)};
    }

    // What dropout numbers a weight by.
    Expr element_of_dropout(const Row &row, const Expr &j) const {
        const auto wide = [](const Expr &x) { return Halide::cast<uint64_t>(x); };
        const Expr line = wide(row.sequence) * wide(this->num_heads) + wide(row.head);
        return (line * wide(this->max_q_len) + wide(row.i)) * wide(this->max_kv_len) + wide(j);
    }
    Expr keeps(const Row &row, const Expr &j) const {
        const DropoutStream stream = DropoutStream::on_device(this->dropout_seed, this->dropout_offset);
        return is_kept(stream, this->dropout_threshold, element_of_dropout(row, j));
    }
    Expr drops() const { return this->dropout_threshold != Halide::cast<uint64_t>(0); }

private:
    Expr kept(const Row &row, const Expr &j) const {
        return branched(drops(), select(keeps(row, j), this->dropout_scale, 0.f), 1.f);
    }
};

}  // namespace heed
