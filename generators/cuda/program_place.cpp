// Where a block is: its rows, its sequence, the keys that it sees, their addresses, its registers.
#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/program_builder.h"
#include "generators/cuda/sequence_field.h"

namespace heed::cuda {

using namespace Halide;

void ProgramBuilder::locate() {
    lane = code.let("lane", thread % 32);
    warp = code.let("warp", thread / 32);
    warp_rows = code.let("warp_rows", warp % tile.row_groups() * (16 * tile.m_tiles));
    const int same_keys = tile.row_groups() * tile.column_groups;
    column_group = tile.column_groups == 1 ? Expr(0) : code.let("column_group", warp % same_keys / tile.row_groups());
    key_group = tile.key_groups == 1 ? Expr(0) : code.let("key_group", warp / same_keys);
    group = code.let("group", lane / 4);
    quad = code.let("quad", lane % 4);
    locate_block();
    head_dim = cfg.any_head_dim() ? in.q.extent(0) : Expr(cfg.head_dim);
    head_dim_v = cfg.any_head_dim() ? in.v.extent(0) : Expr(cfg.head_dim_v);
}

// Prefill: blocks of one head follow each other, so that they share its keys in the L2 cache; the last rows, which see
// most keys under a causal mask, come first. Decode: blocks that read the same keys, then the heads, whose keys are
// side by side.
void ProgramBuilder::locate_block() {
    Expr task = code.let("task", quotient(block, in.row_blocks));
    if (cfg.has_gqa) {
        Expr num_heads = in.k.extent(1);
        first_row = code.let("first_row", (block - task * in.row_blocks) * tile.rows());
        Expr part = code.let("part", quotient(task, num_heads));
        kv_head = code.let("kv_head", task - part * num_heads);
        sequence = code.let("sequence", quotient(part, in.num_splits));
        split = code.let("split", part - sequence * in.num_splits);
        queries.clear();
        for (int r = 0; r < rows_of_thread(); r++) {
            const Query query = query_of(code.let("row", row(r)));
            queries.push_back({code.let("position", query.position), code.let("head", query.head)});
        }
        return;
    }
    Expr num_heads = in.q.extent(1);
    sequence = code.let("sequence", quotient(task, num_heads));
    head = code.let("head", task - sequence * num_heads);
    kv_head = code.let("kv_head", quotient(head, in.group_size));
    first_row = code.let("first_row", ((task + 1) * in.row_blocks - 1 - block) * tile.rows());
}

ProgramBuilder::Query ProgramBuilder::query_of(const Expr &row) const {
    if (!cfg.has_gqa) return {row, head};
    Expr position = quotient(row, in.group_size);
    return {position, (kv_head - position) * in.group_size + row};
}

void ProgramBuilder::read_sequence() {
    const SequenceFields fields =
        read_sequence_fields(code, in.tasks, sequence, in.uniform,
                             {in.max_q_len, 0, in.max_kv_len, 0, in.visible_begin, in.visible_end, in.position_offset});
    q_len = fields.q_len;
    first_q = fields.first_q;
    kv_len = fields.kv_len;
    first_key = fields.first_key;
    visible_begin = fields.visible_begin;
    visible_end = fields.visible_end;
    position_offset = fields.position_offset;
    num_rows = cfg.has_gqa ? code.let("num_rows", q_len * in.group_size) : q_len;
}

// What a row sees moves with its position. Blocks of keys start at multiples of kv_block, and so do splits.
void ProgramBuilder::choose_keys() {
    Expr first = query_of(first_row).position;
    Expr last = code.let("last_row", query_of(min(first_row + tile.rows(), num_rows) - 1).position);
    Expr seen_begin = first_visible(first, visible_begin), seen_end = end_visible(last, visible_end, kv_len);
    if (cfg.has_gqa) {
        Expr split_begin = code.let("split_begin", split * in.split_len);
        seen_begin = max(seen_begin, split_begin);
        seen_end = min(seen_end, split_begin + in.split_len);
    }
    seen_begin = code.let("seen_begin", seen_begin);
    seen_end = code.let("seen_end", seen_end);
    full_begin = code.let("full_begin", first_visible(last, visible_begin));
    full_end = code.let("full_end", end_visible(first, visible_end, kv_len));
    first_block = code.let("first_block", seen_begin / tile.kv_block);
    num_blocks =
        code.let("num_blocks", select(seen_begin < seen_end, ceil_div(seen_end, tile.kv_block) - first_block, 0));
}

void ProgramBuilder::choose_addresses() {
    Expr begin = code.let("shared_begin", shared_begin());
    const bool through_slots = cfg.paged;
    auto rows = [&](const Tensor &tensor) {
        return code.let(
            "rows", row_address(tensor, through_slots ? 0 : sequence, kv_head, through_slots ? 0 : first_key, kv_size));
    };
    k_rows = rows(in.k);
    v_rows = rows(in.v);
    k_whole = code.let("k_whole", cast<int32_t>(in_whole_chunks(in.k, head_dim, kv_size)));
    v_whole = code.let("v_whole", cast<int32_t>(in_whole_chunks(in.v, head_dim_v, kv_size)));
    if (cfg.has_kv_scales()) {
        k_scales = code.let("k_scales", scale_row(in.k_scale));
        v_scales = code.let("v_scales", scale_row(in.v_scale));
    }

    // What lane l reads of four 8x8 matrices is row l % 8 of matrix l / 8. Q and V: the second matrix is 8 rows
    // below the first, the third 8 columns to its right; K: the other way round.
    if (tile.warpgroups) q_at = code.let("q_at", begin + shared.q + warp_rows / 64 * (64 * panel_row_bytes));
    shared_at = begin;
    if (tile.warpgroups) return;
    Expr in_matrix = lane % 8, odd = (lane / 8) % 2, upper = lane / 16;
    q_at = code.let("q_at", begin + shared.q + (warp_rows + in_matrix + odd * 8) * shared.q_row + upper * 16);
    Expr first = first_key_of_warp();
    k_at = code.let("k_at", begin + shared.k + (first + in_matrix + upper * 8) * shared.k_row + odd * 16);
    v_at = code.let("v_at", begin + shared.v + (first + in_matrix + odd * 8) * shared.v_row + upper * 16 +
                                column_group * (kv_size * 8 * out_tiles));
}

// The address of chunk `chunk` of row `row`, of `count` rows that begin at `rows` in shared memory.
Expr ProgramBuilder::chunk_at(const Expr &rows, int count, int row_bytes, const Expr &row, const Expr &chunk) const {
    return tile.warpgroups ? rows + chunk_in_panels(row, chunk, count) : rows + row * row_bytes + chunk * 16;
}

Expr ProgramBuilder::element_at(const Expr &rows, int count, int row_bytes, const Expr &row, const Expr &d,
                                int bytes) const {
    if (!tile.warpgroups) return rows + row * row_bytes + d * bytes;
    return chunk_at(rows, count, row_bytes, row, d * bytes / 16) + d * bytes % 16;
}

void ProgramBuilder::make_registers() {
    minus_infinity = code.let("minus_infinity", negative_infinity());
    // A factor of 0 would make NaN of a hidden logit; the least normal number leaves every weight exactly 1.
    const float least = std::numeric_limits<float>::min();
    unit = cfg.modifies_logits() ? Expr(1.f) : code.let("unit", max(abs(in.scale) * log2_e, least));
    logits = code.registers("logits", Float(32), 4 * tile.m_tiles * key_tiles);
    weights = code.registers("weights", UInt(32), rows_of_thread() * key_tiles);
    out = code.registers("out", Float(32), 4 * tile.m_tiles * out_tiles);
    row_max = code.registers("row_max", Float(32), rows_of_thread());
    row_sum = code.registers("row_sum", Float(32), rows_of_thread());
    bases = code.registers("bases", Float(32), rows_of_thread());
    factors = code.registers("factors", Float(32), rows_of_thread());
    if (has_codes) value_units = code.registers("value_units", Float(32), rows_of_thread());
    if (cfg.has_dropout) kept = code.registers("kept", UInt(32), rows_of_thread());
    if (tile.q_in_registers) q_fragments = code.registers("q_fragments", UInt(128), tile.m_tiles * depth / 16);
}

}  // namespace heed::cuda
