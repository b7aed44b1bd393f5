// Where a block is: its rows, its sequence, the keys that it sees, their addresses, its registers.
#include <limits>

#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/contract/fields.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

// Blocks of one head follow each other, so that they share its keys in the L2 cache; the last rows, which see most keys
// under a causal mask, come first.
void ProgramBuilder::locate() {
    lane = code.let("lane", thread % 32);
    warp = code.let("warp", thread / 32);
    // The remainder is the number itself, of which the compiler then knows how large it can be.
    warp_rows = code.let("warp_rows", warp % tile.warps * 16);
    group = code.let("group", lane / 4);
    quad = code.let("quad", lane % 4);
    Expr task = code.let("task", quotient(block, in.row_blocks));
    Expr num_heads = in.q.extent(1);
    sequence = code.let("sequence", quotient(task, num_heads));
    head = code.let("head", task - sequence * num_heads);
    kv_head = code.let("kv_head", quotient(head, in.group_size));
    first_row = code.let("first_row", ((task + 1) * in.row_blocks - 1 - block) * tile.rows());
}

// A line of the table or, where `uniform` is not 0, the same fields for every sequence.
void ProgramBuilder::read_sequence() {
    const Expr of_all[] = {in.max_q_len, 0, in.max_kv_len, 0, in.visible_begin, in.visible_end, in.position_offset};
    const Registers fields = code.registers("fields", Int(32), num_sequence_fields);
    code.when(
        in.uniform != 0,
        [&] {
            for (int f = 0; f <= sequence_position_offset; f++) code.set(fields, f, of_all[f]);
        },
        [&] {
            const Expr line = in.tasks.address() + cast<uint64_t>(sequence) * (4 * num_sequence_fields);
            for (int f = 0; f <= sequence_position_offset; f++) {
                code.set(fields, f, load_i32(line + cast<uint64_t>(4 * f)));
            }
        });
    const auto field = [&](int f) { return code.let("field", fields[f]); };
    q_len = field(sequence_q_len);
    first_q = field(sequence_first_q);
    kv_len = field(sequence_kv_len);
    first_key = field(sequence_first_key);
    visible_begin = field(sequence_visible_begin);
    visible_end = field(sequence_visible_end);
    position_offset = field(sequence_position_offset);
}

// What a row sees moves with its position. Blocks of keys start at multiples of kv_block.
void ProgramBuilder::choose_keys() {
    Expr last = code.let("last_row", min(first_row + tile.rows(), q_len) - 1);
    Expr seen_begin = code.let("seen_begin", first_visible(first_row, visible_begin));
    Expr seen_end = code.let("seen_end", end_visible(last, visible_end, kv_len));
    full_begin = code.let("full_begin", first_visible(last, visible_begin));
    full_end = code.let("full_end", end_visible(first_row, visible_end, kv_len));
    first_block = code.let("first_block", seen_begin / tile.kv_block);
    num_blocks =
        code.let("num_blocks", select(seen_begin < seen_end, ceil_div(seen_end, tile.kv_block) - first_block, 0));
}

void ProgramBuilder::choose_addresses() {
    shared_at = code.let("shared_begin", shared_begin());
    auto rows = [&](const Tensor &tensor) {
        return code.let("rows",
                        row_address(tensor, cfg.paged ? Expr(0) : sequence, kv_head, cfg.paged ? Expr(0) : first_key));
    };
    k_rows = rows(in.k);
    v_rows = rows(in.v);
    k_whole = code.let("k_whole", cast<int32_t>(in_whole_chunks(in.k, cfg.head_dim)));
    v_whole = code.let("v_whole", cast<int32_t>(in_whole_chunks(in.v, cfg.head_dim_v)));
    q_at = code.let("q_at", shared_at + shared.q + warp_rows / 64 * (64 * panel_row_bytes));
}

// The address of element d of row `row`, of `count` rows that begin at `rows` in shared memory.
Expr ProgramBuilder::element_at(const Expr &rows, int count, const Expr &row, const Expr &d) const {
    return rows + chunk_in_panels(row, d * size / 16, count) + d * size % 16;
}

void ProgramBuilder::make_registers() {
    minus_infinity = code.let("minus_infinity", negative_infinity());
    // A factor of 0 would make NaN of a hidden logit; the least normal number leaves every weight exactly 1.
    const float least = std::numeric_limits<float>::min();
    unit = cfg.modifies_logits() ? Expr(1.f) : code.let("unit", max(abs(in.scale) * log2_e, least));
    logits = code.registers("logits", Float(32), 4 * key_tiles);
    out = code.registers("out", Float(32), 4 * out_tiles);
    row_max = code.registers("row_max", Float(32), rows_of_thread);
    row_sum = code.registers("row_sum", Float(32), rows_of_thread);
    bases = code.registers("bases", Float(32), rows_of_thread);
    factors = code.registers("factors", Float(32), rows_of_thread);
}

}  // namespace heed::cuda
