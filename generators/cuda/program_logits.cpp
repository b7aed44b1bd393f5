// One block of keys: the logits, what changes and what hides them.
#include "generators/attention/logits.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

// Columns 2 * quad and 2 * quad + 1 of each tile are this thread's.
Expr ProgramBuilder::key(const Expr &start, int n, int e) const { return start + quad * 2 + (8 * n + e); }

void ProgramBuilder::multiply_keys(const Expr &buffer) {
    code.run(begin_products());
    begin_scores(buffer);
    code.run(wait_products(0));
    take_scores();
}

void ProgramBuilder::begin_scores(const Expr &buffer) {
    Expr q = code.let("q_matrix", matrix_descriptor(q_at, 0));
    Expr k = code.let("k_matrix", matrix_descriptor(shared_at + shared.k + buffer * shared.k_buffer, 0));
    for (int term = 0; term < depth; term += 16) {
        const auto at = [&](int rows) {
            return (term / panel_columns * rows * panel_row_bytes + term % panel_columns * 2) / 16;
        };
        code.run(multiply_scores(cfg.dtype, tile.kv_block, q + cast<uint64_t>(at(tile.rows())),
                                 k + cast<uint64_t>(at(tile.kv_block)), term == 0));
    }
    code.run(commit_products());
}

void ProgramBuilder::take_scores() {
    for (int i = 0; i < 4 * key_tiles; i++) code.set(logits, i, score(i));
}

// Each logit of row r of this thread becomes change(logit, tile of columns, column in it).
void ProgramBuilder::change_row(int r, const std::function<Expr(const Expr &, int, int)> &change) {
    for (int n = 0; n < key_tiles; n++) {
        for (int e = 0; e < 2; e++) code.set(logits, logit_register(r, n, e), change(logit(r, n, e), n, e));
    }
}

// In units of log2 where anything but the scale changes them; else as they are, and `unit` is the factor.
void ProgramBuilder::change_logits(const Expr &j) {
    Expr start = code.let("start", key_start(j));
    if (cfg.modifies_logits()) scale_logits();
    if (cfg.has_alibi) add_alibi(start);
    if (cfg.has_bias) {
        code.when(in.bias_form == bias_of_f32, [&] { add_bias_tensor(start, in.bias, true); });
        code.when(in.bias_form == bias_of_dtype, [&] { add_bias_tensor(start, in.bias_16, false); });
    }
    if (cfg.has_mask) {
        code.when(in.mask_form != no_mask, [&] { apply_mask(start); });
    }
    code.when(start < full_begin || start + tile.kv_block > full_end, [&] { hide(start); });
}

void ProgramBuilder::scale_logits() {
    Expr scale = code.let("scale_log2", in.scale * log2_e);
    auto scale_all = [&](const std::function<Expr(const Expr &)> &then) {
        for (int r = 0; r < rows_of_thread; r++) {
            change_row(r, [&](const Expr &x, int, int) { return then(x * scale); });
        }
    };
    if (!cfg.has_softcap) {
        scale_all([](const Expr &x) { return x; });
        return;
    }
    const LogitChanges changes = logit_changes(in);
    code.when(
        changes.cap_on(), [&] { scale_all([&](const Expr &x) { return changes.capped(x, LogitUnits::log2); }); },
        [&] { scale_all([](const Expr &x) { return x; }); });
}

void ProgramBuilder::add_alibi(const Expr &start) {
    Expr slopes = in.alibi_slopes.address();
    code.when(slopes != cast<uint64_t>(0), [&] {
        Expr slope = code.let("slope", load_f32(slopes + element_bytes(head, in.alibi_slopes.stride(0), 4)));
        for (int r = 0; r < rows_of_thread; r++) {
            Expr to_first = code.let("to_first", token_distance(key(start, 0, 0), row(r), position_offset));
            change_row(r, [&](const Expr &x, int n, int e) {
                return add_bias(x, logit_changes(in).bias_of_place(slope, to_first + cast<float>(8 * n + e)));
            });
        }
    });
}

// Address of the element of row r and key 0 of a tensor over [batch, num_heads, q_len, kv_len]. Rows after the last
// query take its elements, keys after the last key those of the last one: they exist.
Expr ProgramBuilder::per_logit_row(const Tensor &tensor, int r, int bytes) {
    return code.let("row_elements", tensor.address() + element_bytes(sequence, tensor.stride(3), bytes) +
                                        element_bytes(head, tensor.stride(2), bytes) +
                                        element_bytes(min(row(r), q_len - 1), tensor.stride(1), bytes));
}

Expr ProgramBuilder::per_logit(const Tensor &tensor, const Expr &row, const Expr &start, int n, int e,
                               int bytes) const {
    return row + element_bytes(min(key(start, n, e), kv_len - 1), tensor.stride(0), bytes);
}

void ProgramBuilder::add_bias_tensor(const Expr &start, const Tensor &tensor, bool as_f32) {
    for (int r = 0; r < rows_of_thread; r++) {
        Expr elements = per_logit_row(tensor, r, as_f32 ? 4 : 2);
        change_row(r, [&](const Expr &x, int n, int e) {
            Expr at = per_logit(tensor, elements, start, n, e, as_f32 ? 4 : 2);
            Expr bias = code.let("bias", as_f32 ? load_f32(at) : unpack(cfg.dtype, load_u16(at), 0));
            return select(is_negative_infinity(bias), minus_infinity, add_bias(x, bias));
        });
    }
}

void ProgramBuilder::apply_mask(const Expr &start) {
    for (int r = 0; r < rows_of_thread; r++) {
        Expr elements = per_logit_row(in.mask, r, 1);
        change_row(r, [&](const Expr &x, int n, int e) {
            Expr mask = code.let("mask", load_u8(per_logit(in.mask, elements, start, n, e, 1)));
            return select(mask_allows(cast<uint8_t>(mask), in.mask_form), x, minus_infinity);
        });
    }
}

void ProgramBuilder::hide(const Expr &start) {
    for (int r = 0; r < rows_of_thread; r++) {
        Expr position = row(r), begin = code.let("begin", first_visible(position, visible_begin));
        Expr count = code.let("count", cast<uint32_t>(max(end_visible(position, visible_end, kv_len) - begin, 0)));
        Expr first = code.let("first", key(start, 0, 0) - begin);
        change_row(r, [&](const Expr &x, int n, int e) {
            return select(cast<uint32_t>(first + (8 * n + e)) < count, x, minus_infinity);
        });
    }
}

}  // namespace heed::cuda
