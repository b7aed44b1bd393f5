// The block of query rows: its shared memory, and the order of loads, barriers and steps.
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int row_padding = 16;  // bytes, so that eight rows of weights are in different banks

int padded_depth(int head_dim) { return (head_dim + 15) / 16 * 16; }
int panels_of(int head_dim) { return (padded_depth(head_dim) + panel_columns - 1) / panel_columns; }

}  // namespace

ProgramBuilder::Shared ProgramBuilder::shared_of(const AttentionConfig &config, const AttentionTile &tile) {
    Shared s{};
    s.weight_row = size * tile.kv_block + row_padding;
    s.k_buffer = tile.kv_block * panels_of(config.head_dim) * panel_row_bytes;
    s.v_buffer = tile.kv_block * panels_of(config.head_dim_v) * panel_row_bytes;
    s.q = config.paged ? found_blocks * found_key_bytes * tile.kv_block : 0;
    s.k = s.q + tile.rows() * panels_of(config.head_dim) * panel_row_bytes;
    s.v = s.k + std::max(2 * s.k_buffer, tile.rows() * s.weight_row);
    s.bytes = s.v + 2 * s.v_buffer;
    return s;
}

ProgramBuilder::ProgramBuilder(const AttentionConfig &config, const AttentionTile &tile, const ProgramInputs &in,
                               const Expr &block, const Expr &thread)
    : cfg(config), tile(tile), in(in), depth(padded_depth(config.head_dim)), depth_v(padded_depth(config.head_dim_v)),
      key_tiles(tile.kv_block / 8), out_tiles(depth_v / 8), shared(shared_of(config, tile)), block(block),
      thread(thread) {}

Internal::Stmt ProgramBuilder::build() {
    locate();
    read_sequence();
    code.when(first_row < q_len, [&] {
        choose_keys();
        choose_addresses();
        make_registers();
        load_queries();
        run_pipeline();
        // A weight of 0 does not hide a NaN or an infinity in V: then all is done again.
        Expr nan = code.let("result_is_nan", barrier_any(some_result_is_nan()));
        code.when(nan != 0, [&] { run_key_by_key(); });
        for (int i = 0; i < 4 * out_tiles; i++) code.set(out, i, sum(i));
        // What the loops did not need is found again, rather than kept.
        thread = code.let("thread", thread_index());
        block = code.let("block", block_index());
        locate();
        read_sequence();
        store_results();
    });
    return code.finish();
}

// Values of a block are multiplied while the exponentials of the next one are computed (FlashAttention-3: Shah et al.,
// arXiv 2407.08608, section 3.2). So they arrive a step after their keys, before a barrier that says that the block
// before is used up. Each block's keys are found before a barrier that is before the block's load. A turn of the loop
// begins where products are waited for: the compiler would else move exponentials after it.
void ProgramBuilder::run_pipeline() {
    const auto arrive = [&] {
        code.run(wait_copies(0));
        code.run(copies_for_products());
        code.run(barrier());
    };
    const auto load_ahead = [&](const Expr &j) {
        code.when(j + 1 < num_blocks, [&] { load_keys(j + 1, (j + 1) % 2); });
        load_values(j, j % 2);
        code.run(commit_copies());
        if (cfg.paged) find_keys(j + 2);
    };
    const auto weigh = [&](const Expr &j) {
        change_logits(j);
        softmax(false);
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
        multiply_keys(0);
        weigh(0);
        code.loop("key_block", num_blocks - 1, [&](const Expr &before) {
            const Expr j = code.let("key_block", before + 1);
            hand_weights_over();
            arrive();
            load_ahead(j);
            code.run(begin_products());
            begin_scores(j % 2);
            begin_sums(before % 2);
            code.run(wait_products(1));
            take_scores();
            weigh(j);
        });
        hand_weights_over();
        arrive();
        multiply_values((num_blocks - 1) % 2);
    });
}

void ProgramBuilder::run_key_by_key() {
    reset();
    code.loop("block_key_by_key", num_blocks, [&](const Expr &j) { step_key_by_key(j); });
}

void ProgramBuilder::reset() {
    for (int i = 0; i < 4 * out_tiles; i++) code.run(set_sum(i, 0.f));
    for (int r = 0; r < rows_of_thread; r++) {
        code.set(row_max, r, minus_infinity);
        code.set(row_sum, r, 0.f);
    }
}

// One buffer, nothing overlaps, and values that are no numbers are multiplied key by key for the rows that see the key.
// Where V holds numbers only it gives the bits of the other steps.
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
    code.run(copies_for_products());
    code.run(barrier());
    multiply_keys(0);
    change_logits(j);
    code.run(barrier());  // weights go where K was
    softmax(true);
    code.run(barrier());
    multiply_values_key_by_key();
    code.run(barrier());
    drop_what_is_not_finite();
    code.run(copies_for_products());
    code.run(barrier());
    pack_weights();
    multiply_values(0);
    thread = outer;
}

}  // namespace heed::cuda
