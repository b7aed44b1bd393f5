#pragma once
// Gradients of logits whose tensors are at addresses, from the products q . k and dout . v.

#include "generators/attention/backward_logits.h"
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
        Halide::Func before{"before"};    // dropout
        Halide::Func factor{"factor"};    // what dropout multiplies it by

        std::vector<Halide::Func> stages() const { return {product, capped, added, before, factor}; }
    };

    explicit BackwardScores(ElementType type) : DeviceScores<Arguments>({type}) {}

protected:
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

    struct Gradients {
        Expr weight, score;  // the weight after dropout; the gradient of the logit before softcap and bias
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
        const ChangedLogit logit = changed_logit(dot, changes, LogitUnits::natural);
        const Expr in_range = j >= query.first_key && j < query.end_key;
        const Expr visible = is_visible({in_range, Expr(), Expr(), Expr(), changes.bias, Expr()});
        const Expr power = exp2_on_device(fused_on_device(logit.value, log2_e, -query.lse));
        weight.before(at) = select(visible, power, 0.f);
        weight.factor(at) = kept(row, j);
        const Expr factor = weight.factor(here);
        const WeightGradients of =
            weight_gradients(weight.before(here), weight_dot, query.delta, factor, is_zero(factor));
        return {of.weight, select(visible, scaled_gradient(of.logit, logit, changes, !visible), 0.f)};
    }

    // What dropout numbers a weight by.
    Expr element_of_dropout(const Row &row, const Expr &j) const {
        const auto wide = [](const Expr &x) { return Halide::cast<uint64_t>(x); };
        const Expr line = wide(row.sequence) * wide(this->num_heads) + wide(row.head);
        return (line * wide(this->max_q_len) + wide(row.i)) * wide(this->max_kv_len) + wide(j);
    }
    Expr keeps(const Row &row, const Expr &j) const {
        const DropoutStream stream = DropoutStream::of(this->dropout_seed, this->dropout_offset);
        return is_kept(stream, this->dropout_threshold, element_of_dropout(row, j));
    }
    Expr drops() const { return this->dropout_threshold != Halide::cast<uint64_t>(0); }

private:
    Expr kept(const Row &row, const Expr &j) const {
        return branched(drops(), select(keeps(row, j), this->dropout_scale, 0.f), 1.f);
    }
};

}  // namespace heed
