#pragma once
// Scores of rows of queries whose masks, biases and slopes are at addresses.

#include "generators/attention/config.h"
#include "generators/attention/probs.h"
#include "generators/common/device_memory.h"

namespace heed {

constexpr int fault_of_page = 4;  // heed_execute: device_status

// Value n of a Func of one or several.
inline Halide::Expr value_of(const Halide::Func &f, const std::vector<Halide::Expr> &at, int n) {
    return f.outputs() == 1 ? Halide::Expr(f(at)) : Halide::Expr(f(at)[n]);
}

inline Halide::Expr is_given(const Halide::Expr &address) { return address != Halide::cast<uint64_t>(0); }

// Arguments: a list's, whose names of fields, masks, biases and slopes are those of HEED_CUDA_ATTENTION_PROBS.
template <typename Arguments>
struct DeviceScores : Arguments {
    explicit DeviceScores(const ArgumentTypes &argument_types) : Arguments(argument_types) {}
    explicit DeviceScores(const AttentionConfig &config) : Arguments(config) {}
    virtual ~DeviceScores() = default;

protected:
    using Expr = Halide::Expr;

    struct Row {
        Expr sequence, head, i;
    };

    // What the table says of a sequence; without a table all are the same.
    virtual Expr field(SequenceField which, const Expr &sequence) const {
        Expr of_all[num_sequence_fields];
        of_all[sequence_q_len] = this->uniform_q_len;
        of_all[sequence_first_q] = 0;
        of_all[sequence_kv_len] = this->max_kv_len;
        of_all[sequence_first_key] = 0;
        of_all[sequence_visible_begin] = this->visible_begin;
        of_all[sequence_visible_end] = this->visible_end;
        of_all[sequence_position_offset] = this->position_offset;
        const Expr on = is_given(this->tasks);
        const Expr of_one = load_at_if(on, Halide::Int(32), this->tasks, sequence * num_sequence_fields + which);
        return select(on, of_one, of_all[which]);
    }
    Expr exists(const Row &at) const { return at.i < field(sequence_q_len, at.sequence); }

    // Where key j of a sequence is; `wrong`: its page does not exist, another one takes its place.
    struct Slot {
        Expr page, slot, wrong;
    };
    Slot slot_of(const Expr &j, const Expr &sequence) const { return slot_of(j, sequence, pages_of(sequence)); }
    Expr pages_of(const Expr &sequence) const { return after(this->page_table, sequence, this->page_table_row); }
    Slot slot_of(const Expr &j, const Expr &sequence, const Expr &pages) const {
        const Expr paged = this->page_size > 0, page = j / max(this->page_size, 1);
        const Expr id = load_at_if(paged, Halide::Int(32), pages, min(page, this->table_pages - 1));
        const Expr valid = clamp(id, 0, this->num_pages - 1);
        return {select(paged, valid, sequence),
                select(paged, j - page * this->page_size, field(sequence_first_key, sequence) + j),
                paged && id != valid};
    }

    // An element of an array of floats, or these bits.
    Expr of_head(const Expr &array, const Expr &stride, const Expr &head, const Expr &otherwise) const {
        const Expr on = is_given(array);
        const Expr element = load_at_if(on, Halide::Int(32), after(array, head, stride), 0);
        return Halide::reinterpret<float>(select(on, element, otherwise));
    }

    // Key j of a row as ProbsScore has it. The key need not exist: a score is 0 where the row has no such key.
    Expr score_of(const Expr &product, const Expr &mode, const Row &at, const Expr &j) const {
        return score_in(product, mode, at, j).value(changes_of(at));
    }
    // What is added to a logit (ProbsScore::added()), and whether there is such a thing.
    Expr added_to_logit(const Row &at, const Expr &j) const {
        return score_in(Expr(), Expr(), at, j).added(changes_of(at));
    }
    Expr adds_to_logits() const {
        return this->mask_form != no_mask || this->bias_form != no_bias || is_given(this->alibi_slopes);
    }

    LogitChanges changes_of(const Row &at) const {
        LogitChanges changes = logit_changes(*this);
        changes.alibi_slopes = of_head(this->alibi_slopes, this->slope_head, at.head, 0);
        return changes;
    }

    ProbsScore score_in(const Expr &product, const Expr &mode, const Row &at, const Expr &j) const {
        const ElementType type = this->types.own;
        const Expr kv_len = select(exists(at), field(sequence_kv_len, at.sequence), 0), on = j < kv_len;
        struct Matrices {  // [batch, head, row, key], strides in bytes
            Expr first, batch, head, row, key;
        };
        const auto element = [&](const Expr &asked, const Halide::Type &of, const Matrices &in) {
            const Expr row = after(after(after(in.first, at.sequence, in.batch), at.head, in.head), at.i, in.row);
            return load_at_if(on && asked, of, after(row, j, in.key), 0);
        };
        const Matrices masks = {this->mask, this->mask_batch, this->mask_head, this->mask_row, this->mask_key},
                       biases = {this->bias, this->bias_batch, this->bias_head, this->bias_row, this->bias_key};
        ProbsScore in = {product,
                         mode,
                         j,
                         at.i,
                         kv_len,
                         field(sequence_visible_begin, at.sequence),
                         field(sequence_visible_end, at.sequence),
                         field(sequence_position_offset, at.sequence),
                         element(this->mask_form != no_mask, Halide::UInt(8), masks),
                         this->mask_form,
                         element(this->bias_form == bias_of_f32, Halide::Float(32), biases),
                         this->bias_form};
        if (type != ElementType::f32) {
            in.bias_16 = to_float(type, element(this->bias_form == bias_of_dtype, stored_type(type), biases));
        }
        return in;
    }
};

}  // namespace heed
