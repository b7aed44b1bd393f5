// The block of query rows: its shared memory, and the order of loads, barriers and steps.
#include "generators/cuda/attention_program.h"

#include <limits>

#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int row_padding = 16;  // bytes

int padded_depth(int head_dim, int multiple) {
    const int least = head_dim == 0 ? max_cuda_head_dim : head_dim;
    return (least + multiple - 1) / multiple * multiple;
}

// Elements of a row of K, or of V's columns, that one load of matrices brings.
int matrices_width(const AttentionConfig &config) { return config.has_kv_scales() ? 32 : 16; }

}  // namespace

int ProgramBuilder::depth_of(const AttentionConfig &config) {
    return padded_depth(config.head_dim, matrices_width(config));
}

// Each warp loads whole matrices for its columns, and stores an equal part of them, in whole tiles; of codes in pairs.
int ProgramBuilder::depth_v_of(const AttentionConfig &config, const AttentionTile &tile) {
    const int stored = (config.has_kv_scales() ? 16 : 8) * tile.key_groups;
    return padded_depth(config.head_dim_v, tile.column_groups * std::max(matrices_width(config), stored));
}

ProgramBuilder::Shared ProgramBuilder::shared_of(const AttentionConfig &config, const AttentionTile &tile) {
    const int size = stored_type(config.dtype).bytes(), kv_size = stored_type(config.kv_dtype).bytes();
    const int depth = depth_of(config), depth_v = depth_v_of(config, tile);
    Shared s{};
    s.found_key = config.has_kv_scales() ? 24 : 16;
    s.scale_buffer = config.has_kv_scales() ? 2 * 4 * tile.kv_block : 0;
    s.scales = config.paged ? found_blocks(tile) * s.found_key * tile.kv_block : 0;
    s.q = s.scales + tile.stages * s.scale_buffer;
    if (tile.warpgroups) {
        s.q_row = s.k_row = s.v_row = panel_row_bytes;
        s.weight_row = size * tile.keys_of_warp() + row_padding;
        s.k_buffer = tile.kv_block * panels_of(depth) * panel_row_bytes;
        s.v_buffer = tile.kv_block * panels_of(depth_v) * panel_row_bytes;
        s.k = s.q + tile.rows() * panels_of(depth) * panel_row_bytes;
        s.v = s.k + std::max(tile.stages * s.k_buffer, tile.rows() * s.weight_row);
        s.bytes = s.v + tile.stages * s.v_buffer;
        return s;
    }
    s.q_row = size * depth + row_padding;
    s.k_row = kv_size * depth + row_padding;
    s.v_row = kv_size * depth_v + row_padding;
    s.weight_row = size * tile.keys_of_warp() + row_padding;
    s.k_buffer = tile.kv_block * s.k_row;
    s.v_buffer = tile.kv_block * s.v_row;
    s.k = s.q + tile.rows() * s.q_row;
    s.v = s.k + std::max(tile.stages * s.k_buffer, 16 * tile.m_tiles * tile.warps * s.weight_row);
    s.bytes = s.v + tile.stages * s.v_buffer;
    if (tile.key_groups == 1) return s;
    s.states = s.k + bytes_of_row_state * tile.key_groups * tile.rows();
    s.bytes = std::max(s.bytes, s.states + tile.key_groups * tile.rows() * 4 * depth_v);
    return s;
}

int attention_shared_bytes(const AttentionConfig &config, const AttentionTile &tile) {
    return ProgramBuilder::shared_of(config, tile).bytes;
}

Internal::Stmt attention_program(const AttentionConfig &config, const AttentionTile &tile, const ProgramInputs &in,
                                 const Expr &block, const Expr &thread) {
    return ProgramBuilder(config, tile, in, block, thread).build();
}

ProgramBuilder::ProgramBuilder(const AttentionConfig &config, const AttentionTile &tile, const ProgramInputs &in,
                               const Expr &block, const Expr &thread)
    : cfg(config), tile(tile), in(in), size(stored_type(config.dtype).bytes()),
      kv_size(stored_type(config.kv_dtype).bytes()), depth(depth_of(config)), depth_v(depth_v_of(config, tile)),
      key_tiles(tile.keys_of_warp() / 8), out_tiles(depth_v / 8 / tile.column_groups),
      result_tiles(out_tiles / tile.key_groups), has_codes(config.has_kv_scales()), shared(shared_of(config, tile)),
      block(block), thread(thread) {}

Internal::Stmt ProgramBuilder::build() {
    locate();
    read_sequence();
    code.when(first_row < num_rows, [&] {
        choose_keys();
        choose_addresses();
        make_registers();
        load_queries();
        sums_of_products = tile.warpgroups;
        run_pipeline();
        if (!has_codes) {
            // A weight of 0 does not hide a NaN or an infinity in V: then all is done again.
            Expr nan = code.let("result_is_nan", barrier_any(some_result_is_nan()));
            code.when(nan != 0, [&] { run_key_by_key(); });
        }
        if (tile.warpgroups) {
            sums_of_products = false;
            for (int i = 0; i < 4 * out_tiles; i++) code.set(out, i, sum(i));
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

// Each block's keys are found before a barrier that is before the block's load.
void ProgramBuilder::load_first_blocks() {
    for (int j = 0; j < std::max(tile.stages - 1, 1); j++) {
        if (cfg.paged) {
            find_keys(j);
            code.run(barrier());
        }
        code.when(is_key_block(j), [&] {
            load_keys(j, j);
            if (tile.stages > 1) load_values(j, j);
        });
        code.run(commit_copies());
    }
    if (cfg.paged && tile.stages > 1) find_keys(tile.stages - 1);
}

void ProgramBuilder::run_pipeline() {
    if (tile.warpgroups) return run_warpgroups();
    reset();
    load_first_blocks();
    if (tile.q_in_registers) {
        code.run(barrier());
        for (int m = 0; m < tile.m_tiles; m++) {
            for (int k = 0; k < depth / 16; k++) {
                code.set(q_fragments, m * (depth / 16) + k, load_matrices(q_at + q_offset(m, k)));
            }
        }
    }
    code.loop("key_block", num_blocks, [&](const Expr &j) { tile.stages == 1 ? step_single(j) : step_pipelined(j); });
}

// Values of a block are multiplied while the exponentials of the next one are computed (FlashAttention-3: Shah et al.,
// arXiv 2407.08608, section 3.2). So they arrive a step after their keys, before a barrier that says that the block
// before is used up. A turn of the loop begins where products are waited for: the compiler would else move exponentials
// after it.
void ProgramBuilder::run_warpgroups() {
    const auto arrive = [&] {
        code.run(wait_copies(0));
        code.run(copies_for_products());
        code.run(barrier());
    };
    const auto load_ahead = [&](const Expr &j) {
        code.when(is_key_block(j + 1), [&] { load_keys(j + 1, (j + 1) % 2); });
        load_values(j, j % 2);
        code.run(commit_copies());
        if (cfg.paged) find_keys(j + 2);
    };
    const auto weigh = [&](const Expr &j) {
        change_logits(j, j % 2);
        softmax(j % 2, false);
    };
    reset();
    code.when(num_blocks > 0, [&] {
        if (cfg.paged) {
            for (int j = 0; j < 2; j++) find_keys(j);
            code.run(barrier());
        }
        load_keys(0, 0);
        code.run(commit_copies());
        arrive();
        load_ahead(0);
        multiply_keys(0, false);
        weigh(0);
        code.loop("key_block", num_blocks - 1, [&](const Expr &before) {
            const Expr j = code.let("key_block", before + 1);
            hand_weights_over();
            arrive();
            load_ahead(j);
            code.run(begin_products());
            multiply_keys_of_warpgroup(j % 2);
            multiply_values_of_warpgroup(before % 2);
            code.run(wait_products(1));
            take_scores();
            weigh(j);
        });
        hand_weights_over();
        arrive();
        multiply_values((num_blocks - 1) % 2, false);
    });
}

void ProgramBuilder::run_key_by_key() {
    reset();
    code.loop("block_key_by_key", num_blocks, [&](const Expr &j) { when_seen(j, [&] { step_key_by_key(j); }); });
}

void ProgramBuilder::reset() {
    for (int i = 0; i < 4 * tile.m_tiles * out_tiles; i++) set_sum_so_far(i, 0.f);
    for (int r = 0; r < rows_of_thread(); r++) {
        code.set(row_max, r, minus_infinity);
        code.set(row_sum, r, 0.f);
        if (has_codes) code.set(value_units, r, std::numeric_limits<float>::min());
    }
}

// Two barriers a step: the first says that K has arrived and the old V is used up, the second that V has arrived and K
// is used up.
void ProgramBuilder::step_single(const Expr &j) {
    code.run(wait_copies(0));
    code.run(barrier());
    when_seen(j, [&] { load_values(j, 0); });
    code.run(commit_copies());
    if (cfg.paged) find_keys(j + 1);
    when_seen(j, [&] {
        multiply_keys(0, tile.q_in_registers);
        change_logits(j, 0);
        if (cfg.has_dropout) find_kept(key_start(j));
    });
    code.run(wait_copies(0));
    code.run(barrier());
    code.when(is_key_block(j + 1), [&] { load_keys(j + 1, 0); });
    code.run(commit_copies());
    when_seen(j, [&] {
        softmax(0, false);
        multiply_values(0, false);
    });
}

// One barrier a step: this block's keys and values have arrived, the block before is used up.
void ProgramBuilder::step_pipelined(const Expr &j) {
    const int ahead = tile.stages - 1;
    code.run(wait_copies(ahead - 1));
    code.run(barrier());
    Expr buffer = code.let("buffer", j % tile.stages);
    Expr free = tile.stages == 2 ? 1 - buffer : code.let("free", select(buffer == 0, ahead, buffer - 1));
    code.when(is_key_block(j + ahead), [&] {
        load_keys(j + ahead, free);
        load_values(j + ahead, free);
    });
    code.run(commit_copies());
    if (cfg.paged) find_keys(j + ahead + 1);
    when_seen(j, [&] {
        multiply_keys(buffer, tile.q_in_registers);
        change_logits(j, buffer);
        if (cfg.has_dropout) find_kept(key_start(j));
        softmax(buffer, false);
        multiply_values(buffer, false);
    });
}

// One buffer, nothing overlaps, and V is multiplied key by key for the rows that see the key. Where V holds numbers
// only it gives the bits of the other steps.
void ProgramBuilder::step_key_by_key(const Expr &j) {
    const Expr outer = thread;
    thread = code.let("thread", thread_index());  // for addresses that do not stay in registers over a step
    code.run(barrier());
    if (cfg.paged) {
        find_keys(j);
        code.run(barrier());
    }
    load_keys(j, 0);
    load_values(j, 0);
    code.run(commit_copies());
    code.run(wait_copies(0));
    if (tile.warpgroups) code.run(copies_for_products());
    code.run(barrier());
    multiply_keys(0, false);
    change_logits(j, 0);
    if (cfg.has_dropout) find_kept(key_start(j));
    code.run(barrier());  // weights go where K was
    softmax(0, true);
    code.run(barrier());
    if (tile.warpgroups) {
        multiply_values_key_by_key();
        code.run(barrier());
        drop_what_is_not_finite();
        code.run(copies_for_products());
        code.run(barrier());
        pack_weights();
        multiply_values(0, true);
    } else {
        multiply_values(0, true);
        multiply_values_key_by_key();
    }
    thread = outer;
}

}  // namespace heed::cuda
