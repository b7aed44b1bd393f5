#pragma once
// Gradients of logits whose tensors are at addresses, from the products q . k and dout . v.

#include "generators/attention/backward_logits.h"
#include "generators/ops/device_scores.h"

namespace heed {

// Arguments: a list's with HEED_LOGIT_GRADIENT_VALUES.
template <typename Arguments>
struct BackwardScores : DeviceScores<Arguments> {
    // The weight of a logit, at coordinates of the kernel: stages, so that both gradients are made of one.
    struct Weight {
        Halide::Func before{"before"};  // dropout
        Halide::Func factor{"factor"};  // what dropout multiplies it by
    };

    explicit BackwardScores(ElementType type) : DeviceScores<Arguments>({type}) {}

protected:
    using Expr = Halide::Expr;
    using Row = typename DeviceScores<Arguments>::Row;

    // Tensor 0 or 1 of a side: q and dout, k and v. Token `number` of a sequence; strides in bytes.
    struct Rows {
        Expr first, batch, token, head, length, first_token;

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

    struct Gradients {
        Expr weight, score;  // the weight after dropout; the gradient of the logit before softcap and bias
    };
    // The gradients of key j in a row, neither of which need exist; defines `weight` at these coordinates. The products
    // of a hidden logit may be anything.
    Gradients gradients(Weight &weight, const std::vector<Halide::Var> &at, const Expr &product, const Expr &weight_dot,
                        const Row &row, const Expr &j) const {
        const Expr exists = this->exists(row), line = row.sequence * this->num_heads + row.head;
        const Expr stat = after(this->stats, line * this->stat_rows + row.i, Expr(backward_stat_bytes));
        const auto of_row = [&](int which) { return load_at_if(exists, Halide::Float(32), stat, which); };
        const ProbsScore::Logit logit = this->logit_of(product, row, j);
        const Expr power = exp2_on_device(fused_on_device(logit.changed.value, log2_e, -of_row(0)));
        weight.before(at) = select(logit.visible, power, 0.f);
        weight.factor(at) = kept(row, j);
        const std::vector<Expr> here(at.begin(), at.end());
        const Expr factor = weight.factor(here);
        const WeightGradients of =
            weight_gradients(weight.before(here), weight_dot, of_row(1), factor, is_zero(factor));
        const Expr of_logit = select(logit.visible, of.logit, 0.f);
        return {of.weight, scaled_gradient(of_logit, logit.changed, logit.changes, !logit.visible)};
    }

private:
    Expr kept(const Row &row, const Expr &j) const {
        const auto wide = [](const Expr &x) { return Halide::cast<uint64_t>(x); };
        const Expr line = wide(row.sequence) * wide(this->num_heads) + wide(row.head);
        const Expr number = (line * wide(this->max_q_len) + wide(row.i)) * wide(this->max_kv_len) + wide(j);
        const DropoutStream stream = DropoutStream::of(this->dropout_seed, this->dropout_offset);
        const Expr keeps = is_kept(stream, this->dropout_threshold, number);
        return branched(this->dropout_threshold != wide(0), select(keeps, this->dropout_scale, 0.f), 1.f);
    }
};

}  // namespace heed
