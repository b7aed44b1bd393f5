// The block of queries: where it stands, which keys it sees, and the order of loads, barriers and steps.
#include "attention_prefill.h"

#include "../ceil_div.h"
#include "../score_mod.h"
#include "prefill_builder.h"
#include "sequence_field.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int row_padding = 16;  // bytes

int padded_depth(int head_dim) {
    return head_dim == 0 ? AttentionConfig::max_cuda_head_dim : (head_dim + 15) / 16 * 16;
}

}  // namespace

PrefillBuilder::Shared PrefillBuilder::shared_of(const AttentionConfig &config, const PrefillTile &tile) {
    const int size = stored_type(config.dtype).bytes();
    Shared s{};
    s.q_row = s.k_row = size * padded_depth(config.head_dim) + row_padding;
    s.v_row = size * padded_depth(config.head_dim_v) + row_padding;
    s.weight_row = size * tile.kv_block + row_padding;
    s.k_buffer = tile.kv_block * s.k_row;
    s.v_buffer = tile.kv_block * s.v_row;
    s.k = tile.rows() * s.q_row;
    s.v = s.k + std::max(tile.stages * s.k_buffer, 16 * tile.m_tiles * tile.warps * s.weight_row);
    s.bytes = s.v + tile.stages * s.v_buffer;
    return s;
}

int prefill_shared_bytes(const AttentionConfig &config, const PrefillTile &tile) {
    return PrefillBuilder::shared_of(config, tile).bytes;
}

Internal::Stmt prefill_program(const AttentionConfig &config, const PrefillTile &tile, const PrefillInputs &in,
                               const Expr &block, const Expr &thread) {
    return PrefillBuilder(config, tile, in, block, thread).build();
}

PrefillBuilder::PrefillBuilder(const AttentionConfig &config, const PrefillTile &tile, const PrefillInputs &in,
                               const Expr &block, const Expr &thread)
    : cfg(config), tile(tile), in(in), size(stored_type(config.dtype).bytes()), depth(padded_depth(config.head_dim)),
      depth_v(padded_depth(config.head_dim_v)), key_tiles(tile.kv_block / 8),
      out_tiles(depth_v / 8 / tile.column_groups), shared(shared_of(config, tile)), block(block), thread(thread) {}

Internal::Stmt PrefillBuilder::build() {
    locate();
    read_sequence();
    code.when(first_row < q_len, [&] {
        choose_keys();
        load_queries();
        if (tile.tensor_cores) {
            run_pipeline();
            // On tensor cores a weight of 0 does not hide a NaN or an infinity in V: then all is done again.
            Expr nan = code.let("result_is_nan", barrier_any(some_result_is_nan()));
            code.when(nan != 0, [&] { run_carefully(); });
        } else {
            run_carefully();
        }
        // What the loops did not need is found again, rather than kept.
        thread = code.let("thread", thread_index());
        block = code.let("block", block_index());
        locate();
        read_sequence();
        store_results();
    });
    return code.finish();
}

void PrefillBuilder::run_pipeline() {
    reset();
    code.when(is_key_block(0), [&] {
        load_keys(0, 0);
        if (tile.stages == 2) load_values(0, 0);
    });
    code.run(commit_copies());
    if (tile.q_in_registers) {
        code.run(barrier());
        for (int m = 0; m < tile.m_tiles; m++) {
            for (int k = 0; k < depth / 16; k++) {
                code.set(q_fragments, m * (depth / 16) + k, load_matrices(q_at + q_offset(m, k)));
            }
        }
    }
    code.loop("key_block", num_blocks, [&](const Expr &j) { tile.stages == 1 ? step_single(j) : step_double(j); });
}

void PrefillBuilder::run_carefully() {
    reset();
    code.loop("careful_block", num_blocks, [&](const Expr &j) { careful_step(j); });
}

// Blocks of one head follow each other, so that they share its keys in the L2 cache; the last rows, which see most keys
// under a causal mask, come first.
void PrefillBuilder::locate() {
    lane = code.let("lane", thread % 32);
    warp = code.let("warp", thread / 32);
    const int row_groups = tile.warps / tile.column_groups;
    warp_rows = code.let("warp_rows", warp % row_groups * (16 * tile.m_tiles));
    column_group = tile.column_groups == 1 ? Expr(0) : code.let("column_group", warp / row_groups);
    group = code.let("group", lane / 4);
    quad = code.let("quad", lane % 4);
    auto natural = [](const Expr &x) { return cast<uint32_t>(x); };
    auto divide = [&](const Expr &x, const Expr &by) { return cast<int32_t>(natural(x) / natural(by)); };
    Expr num_heads = in.q.extent(1);
    Expr task = code.let("task", divide(block, in.row_blocks));
    sequence = code.let("sequence", divide(task, num_heads));
    head = code.let("head", task - sequence * num_heads);
    kv_head = code.let("kv_head", divide(head, in.group_size));
    first_row = code.let("first_row", ((task + 1) * in.row_blocks - 1 - block) * tile.rows());
    head_dim = cfg.any_head_dim() ? in.q.extent(0) : Expr(cfg.head_dim);
    head_dim_v = cfg.any_head_dim() ? in.v.extent(0) : Expr(cfg.head_dim_v);
}

void PrefillBuilder::read_sequence() {
    Registers fields = code.registers("fields", Int(32), num_sequence_fields);
    code.when(
        in.uniform != 0,
        [&] {
            const Expr same[] = {in.max_q_len,      0, in.max_kv_len, 0, in.visible_begin, in.visible_end,
                                 in.position_offset};
            for (int i = field_q_len; i <= field_position_offset; i++) code.set(fields, i, same[i]);
        },
        [&] {
            Expr at = in.sequences.address() + cast<uint64_t>(sequence) * (4 * num_sequence_fields);
            for (int i = field_q_len; i <= field_position_offset; i++) {
                code.set(fields, i, load_i32(at + cast<uint64_t>(4 * i)));
            }
        });
    q_len = code.let("q_len", fields[field_q_len]);
    first_q = code.let("first_q", fields[field_first_q]);
    kv_len = code.let("kv_len", fields[field_kv_len]);
    first_key = code.let("first_key", fields[field_first_key]);
    visible_begin = code.let("visible_begin", fields[field_visible_begin]);
    visible_end = code.let("visible_end", fields[field_visible_end]);
    position_offset = code.let("position_offset", fields[field_position_offset]);
}

// What a row sees moves with its position. Blocks of keys start at multiples of kv_block.
void PrefillBuilder::choose_keys() {
    Expr last_row = code.let("last_row", min(first_row + tile.rows(), q_len) - 1);
    Expr seen_begin = code.let("seen_begin", first_visible(first_row, visible_begin));
    Expr seen_end = code.let("seen_end", end_visible(last_row, visible_end, kv_len));
    full_begin = code.let("full_begin", first_visible(last_row, visible_begin));
    full_end = code.let("full_end", end_visible(first_row, visible_end, kv_len));
    first_block = code.let("first_block", seen_begin / tile.kv_block);
    num_blocks =
        code.let("num_blocks", select(seen_begin < seen_end, ceil_div(seen_end, tile.kv_block) - first_block, 0));

    k_rows = code.let("k_rows", row_address(in.k, sequence, kv_head, first_key));
    v_rows = code.let("v_rows", row_address(in.v, sequence, kv_head, first_key));
    k_whole = code.let("k_whole", cast<int32_t>(in_whole_chunks(in.k, head_dim)));
    v_whole = code.let("v_whole", cast<int32_t>(in_whole_chunks(in.v, head_dim_v)));

    // What lane l reads of four 8x8 matrices is row l % 8 of matrix l / 8. Q and V: the second matrix lies 8 rows
    // below the first, the third 8 columns to its right; K: the other way round.
    Expr in_matrix = lane % 8, odd = (lane / 8) % 2, upper = lane / 16;
    Expr begin = code.let("shared_begin", shared_begin());
    q_at = code.let("q_at", begin + (warp_rows + in_matrix + odd * 8) * shared.q_row + upper * 16);
    k_at = code.let("k_at", begin + shared.k + (in_matrix + upper * 8) * shared.k_row + odd * 16);
    v_at = code.let("v_at", begin + shared.v + (in_matrix + odd * 8) * shared.v_row + upper * 16 +
                                column_group * (2 * 8 * out_tiles));
    shared_at = begin;
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
    if (tile.q_in_registers) q_fragments = code.registers("q_fragments", UInt(128), tile.m_tiles * depth / 16);
}

void PrefillBuilder::reset() {
    for (int i = 0; i < 4 * tile.m_tiles * out_tiles; i++) code.set(out, i, 0.f);
    for (int r = 0; r < rows_of_thread(); r++) {
        code.set(row_max, r, minus_infinity);
        code.set(row_sum, r, 0.f);
    }
}

// Two barriers a step: the first says that K has arrived and the old V is used up, the second that V has arrived and K
// is used up.
void PrefillBuilder::step_single(const Expr &j) {
    code.run(wait_copies());
    code.run(barrier());
    load_values(j, 0);
    code.run(commit_copies());
    multiply_keys(0, tile.q_in_registers);
    change_logits(j);
    code.run(wait_copies());
    code.run(barrier());
    code.when(is_key_block(j + 1), [&] { load_keys(j + 1, 0); });
    code.run(commit_copies());
    softmax(false);
    multiply_values(0, false);
}

// One barrier a step: this block's keys and values have arrived, the block before is used up.
void PrefillBuilder::step_double(const Expr &j) {
    code.run(wait_copies());
    code.run(barrier());
    Expr buffer = code.let("buffer", j % 2);
    code.when(is_key_block(j + 1), [&] {
        load_keys(j + 1, 1 - buffer);
        load_values(j + 1, 1 - buffer);
    });
    code.run(commit_copies());
    multiply_keys(buffer, tile.q_in_registers);
    change_logits(j);
    softmax(false);
    multiply_values(buffer, false);
}

// One buffer, nothing overlaps, and V is multiplied key by key for the rows that see the key. Where V holds numbers
// only it gives the bits of the other steps.
void PrefillBuilder::careful_step(const Expr &j) {
    const Expr outer = thread;
    thread = code.let("thread", thread_index());  // for addresses that do not stay in registers over a step
    code.run(barrier());
    load_keys(j, 0);
    load_values(j, 0);
    if (tile.tensor_cores) {
        code.run(commit_copies());
        code.run(wait_copies());
    }
    code.run(barrier());
    if (tile.tensor_cores) {
        multiply_keys(0, false);
    } else {
        multiply_keys_on_cores();
    }
    change_logits(j);
    code.run(barrier());  // weights go where K was
    softmax(true);
    code.run(barrier());
    if (tile.tensor_cores) multiply_values(0, true);
    multiply_values_carefully();
    thread = outer;
}

}  // namespace heed::cuda
