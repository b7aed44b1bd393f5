// Loads, the steps over the other side, and what is stored.
#include "generators/cuda/backward_cores.h"

#include "generators/common/ceil_div.h"
#include "generators/cuda/backward_cores_program.h"
#include "generators/cuda/launch.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int chunk = 16;  // bytes of one copy

}  // namespace

int backward_cores_shared_bytes(BackwardSide side, const BackwardTile &tile) {
    return BackwardCoresProgram::Shared(side, tile).bytes;
}

Module backward_cores_module(const std::string &name, ElementType type, BackwardSide side, const BackwardTile &tile,
                             const Target &target) {
    return BackwardCoresProgram(name, type, side, tile).module(target);
}

BackwardCoresProgram::Shared::Shared(BackwardSide side, const BackwardTile &tile)
    : row(2 * tile.head_dim + 16), stats(2 * tile.others * row), own(stats), stage(stats) {
    if (side == backward_keys) stage += tile.others * backward_stat_bytes;
    own = 2 * stage;
    zero = own + 2 * tile.rows() * row;
    bytes = zero + 16;
}

Module BackwardCoresProgram::module(const Target &target) {
    thread = Launch::thread(name);
    at.locate(Launch::block(name), tile.rows());
    code.when(at.first_row < at.stored_rows, [&] {
        make_registers();
        run_passes();
        locate_anew();
        find_lane();
        store(at.sums(0), sums[0], in.scale);
        if (side == backward_keys) store(at.sums(1), sums[1], 1.f);
    });
    const Launch launch = {name,           at.num_blocks(),
                           tile.threads(), Shared(side, tile).bytes,
                           in.tensors(),   at.host_values(tile.rows()),
                           code.finish()};
    return launch_module(name, Func("gradients_written"), in.output_types(), in.arguments(), launch, target);
}

// What was not needed meanwhile is found again, rather than kept.
void BackwardCoresProgram::locate_anew() {
    thread = code.let("thread", thread_index());
    at.locate(code.let("block", block_index()), tile.rows());
}

void BackwardCoresProgram::find_lane() {
    lane = code.let("lane", thread % 32);
    const Expr warp = code.let("warp", thread / 32), row_groups = tile.warps / tile.column_groups;
    warp_rows = code.let("warp_rows", warp % row_groups * (16 * tile.m_tiles));
    first_column = code.let("first_column", warp / row_groups * (8 * out_tiles));
    group = code.let("group", lane / 4);
    quad = code.let("quad", lane % 4);
}

// What lane l reads of four 8x8 matrices is row l % 8 of matrix l / 8. Left operands, and transposed right ones: the
// second matrix is 8 rows below the first, the third 8 columns to its right; right operands: the other way round.
void BackwardCoresProgram::choose_addresses() {
    find_lane();
    shared_at = code.let("shared", shared_begin());
    const Expr in_matrix = lane % 8, odd = lane / 8 % 2, upper = lane / 16;
    left_at = code.let("left_at", shared_at + shared.own + (warp_rows + in_matrix + odd * 8) * shared.row + upper * 16);
    right_at = code.let("right_at", shared_at + (in_matrix + upper * 8) * shared.row + odd * 16);
    transposed_at =
        code.let("transposed_at", shared_at + (in_matrix + odd * 8) * shared.row + upper * 16 + first_column * 2);
    code.when(thread == 0, [&] { code.run(store_shared_u32(shared_at + shared.zero, Expr(0u))); });
    plain =
        code.let("plain", cast<int32_t>(in.mask_form == no_mask && in.bias_form == no_bias &&
                                        !logit_changes(in).cap_on() && in.alibi_slopes.address() == cast<uint64_t>(0) &&
                                        in.dropout_threshold == cast<uint64_t>(0)));
    unit = code.let("unit", in.scale * log2_e);
}

void BackwardCoresProgram::make_registers() {
    scores = code.registers("scores", Float(32), 4 * tile.m_tiles * score_tiles);
    weight_grads = code.registers("weight_grads", Float(32), 4 * tile.m_tiles * score_tiles);
    weights = code.registers("weights", UInt(32), 2 * tile.m_tiles * score_tiles);
    score_grads = code.registers("score_grads", UInt(32), 2 * tile.m_tiles * score_tiles);
    for (int n = 0; n < num_sums; n++) {
        sums[n] = code.registers("sums", Float(32), 4 * tile.m_tiles * out_tiles);
    }
    if (tile.own_in_registers) {
        own_rows = code.registers("own_rows", UInt(128), 2 * tile.m_tiles * tile.head_dim / 16);
    }
    if (side == backward_queries) row_stats = code.registers("row_stats", Float(32), 4 * tile.m_tiles);
}

void BackwardCoresProgram::load_row_stats() {
    const Expr stats = code.let("stats", in.stats_of(at.sequence, at.head));
    for (int r = 0; r < 2 * tile.m_tiles; r++) {
        const Expr i = min(own_row(r), in.stat_rows - 1),
                   from = code.let("stat", stats + bytes_of(i, backward_stat_bytes));
        code.set(row_stats, 2 * r, load_f32(from));
        code.set(row_stats, 2 * r + 1, load_f32(from + cast<uint64_t>(4)));
    }
}

// The first pass takes all rows to hold numbers. Where its sums do not, all is done again: then what a factor of 0
// multiplies counts for nothing.
void BackwardCoresProgram::run_passes() {
    const Registers wanted = code.registers("wanted", Int(32), 1);
    code.set(wanted, 0, 1);
    code.loop("pass", 2, [&](const Expr &pass) {
        code.when(wanted[0] != 0, [&] {
            locate_anew();
            choose_addresses();
            if (side == backward_queries) load_row_stats();
            run_steps(pass);
            code.set(wanted, 0, barrier_any(some_sum_is_no_number()));
        });
    });
}

// While a step computes, the rows of the next one arrive.
void BackwardCoresProgram::run_steps(const Expr &pass) {
    first_step = code.let("first_step", at.begin_other / tile.others);
    steps_of_head = code.let("steps_of_head", max(ceil_div(at.end_other, tile.others) - first_step, 0));
    num_steps = code.let("num_steps", at.num_heads * steps_of_head);
    for (int n = 0; n < num_sums; n++) {
        for (int i = 0; i < 4 * tile.m_tiles * out_tiles; i++) code.set(sums[n], i, 0.f);
    }
    code.when(num_steps > 0, [&] {
        for (int n = 0; n < 2; n++) {
            load_rows(at.own(n), at.first_row, at.num_rows, tile.rows(), shared.own + n * tile.rows() * shared.row);
        }
        load_step(0, 0);
    });
    code.run(commit_copies());
    if (tile.own_in_registers) code.when(num_steps > 0, [&] { hold_own_rows(); });
    code.loop("step", num_steps, [&](const Expr &step) {
        code.run(wait_copies(0));
        code.run(barrier());
        const Expr buffer = code.let("buffer", step % 2);
        code.when(step + 1 < num_steps, [&] { load_step(step + 1, 1 - buffer); });
        code.run(commit_copies());
        compute(step_of(step), code.let("stage", buffer * shared.stage), pass);
    });
}

void BackwardCoresProgram::hold_own_rows() {
    code.run(wait_copies(0));
    code.run(barrier());
    for (int operand = 0; operand < 2; operand++) {
        for (int m = 0; m < tile.m_tiles; m++) {
            for (int k = 0; k < tile.head_dim / 16; k++) {
                code.set(own_rows, own_index(operand, m, k), load_own(operand, m, k));
            }
        }
    }
}

BackwardCoresProgram::Step BackwardCoresProgram::step_of(const Expr &number) {
    if (side == backward_queries) return {0, code.let("first_other", (first_step + number) * tile.others)};
    const Expr h = code.let("h", quotient(number, steps_of_head));
    return {h, code.let("first_other", (first_step + number - h * steps_of_head) * tile.others)};
}

void BackwardCoresProgram::load_step(const Expr &number, const Expr &buffer) {
    const Step step = step_of(number);
    const Expr head = code.let("other_head", at.other_head(step.head)), to = code.let("to", buffer * shared.stage);
    const Expr existing = side == backward_keys ? at.fields.q_len : at.fields.kv_len;
    for (int n = 0; n < 2; n++) {
        load_rows(at.other(n, head), step.first, existing, tile.others, to + n * tile.others * shared.row);
    }
    if (side == backward_queries) return;
    constexpr int rows_of_chunk = chunk / backward_stat_bytes;
    const Expr stats = code.let("stats", in.stats_of(at.sequence, head) + bytes_of(step.first, backward_stat_bytes));
    const Expr me = code.let("me", thread_index());
    code.when(me < tile.others / rows_of_chunk, [&] {
        const Expr there = select(step.first + me * rows_of_chunk < in.stat_rows, chunk, 0);
        code.run(copy_async(shared_at + to + shared.stats + me * chunk, stats + bytes_of(me, chunk), there));
    });
}

// Rows from `first` on, of which `existing` exist in all; zeros after the last one and after the last element.
void BackwardCoresProgram::load_rows(const BackwardBlock::Rows &rows, const Expr &first, const Expr &existing,
                                     int count, const Expr &to) {
    const Expr from = code.let("from", rows.row(first)), left = code.let("left", existing - first),
               shared_to = code.let("shared_to", shared_at + to), me = code.let("me", thread_index());
    code.when(
        rows.whole,
        [&] {
            const int chunks = tile.head_dim / 8, at_once = tile.threads() / chunks;
            const Expr row = code.let("row", me / chunks), column = code.let("column", me % chunks);
            const Expr mine = code.let("mine", from + cast<uint64_t>(row * rows.row_bytes) + bytes_of(column, chunk)),
                       there = code.let("there", select(column * 8 < rows.length, left, 0)),
                       mine_to = code.let("mine_to", shared_to + row * shared.row + column * chunk);
            const Expr pass_bytes = code.let("pass_bytes", cast<uint64_t>(rows.row_bytes * at_once));
            Expr source = mine;
            for (int pass = 0; pass * at_once < count; pass++) {
                const auto copy = [&] {
                    const Expr bytes = select(row + pass * at_once < there, chunk, 0);
                    code.run(copy_async(mine_to + pass * at_once * shared.row, source, bytes));
                };
                if ((pass + 1) * at_once <= count) {
                    copy();
                } else {
                    code.when(row + pass * at_once < count, copy);
                }
                // One sum after the other: multiples of pass_bytes would be kept in registers from before the loop.
                source = code.let("source", advance(source, pass_bytes));
            }
        },
        [&] {
            code.loop("element", count * tile.head_dim / tile.threads(), [&](const Expr &i) {
                const Expr element = code.let("element", i * tile.threads() + me);
                const Expr row = element / tile.head_dim, d = element % tile.head_dim;
                const Expr there = cast<int32_t>(row < left && d < rows.length);
                const Expr address = from + cast<uint64_t>(row * rows.row_bytes) + bytes_of(d, 2);
                code.run(store_shared_u16(shared_to + row * shared.row + d * 2, load_u16_if(address, there)));
            });
        });
}

// For rows that exist: NaN or infinite, by what a hidden row holds or what the problem asks for.
Expr BackwardCoresProgram::some_sum_is_no_number() {
    const Registers found = code.registers("found", Int(32), 1);
    code.set(found, 0, 0);
    for (int r = 0; r < 2 * tile.m_tiles; r++) {
        const Expr exists = code.let("exists", cast<int32_t>(own_row(r) < at.num_rows));
        for (int n = 0; n < num_sums; n++) {
            for (int i = 0; i < 2 * out_tiles; i++) {
                const Expr x = sums[n][4 * (r / 2 * out_tiles + i / 2) + r % 2 * 2 + i % 2];
                const Expr size = reinterpret<int32_t>(x) & 0x7fffffff;
                code.set(found, 0, found[0] | select(size >= 0x7f800000, exists, 0));
            }
        }
    }
    return code.let("found", found[0]);
}

void BackwardCoresProgram::store(const BackwardBlock::Rows &to, const Registers &sum, const Expr &factor) {
    code.when(to.exists, [&] {
        for (int r = 0; r < 2 * tile.m_tiles; r++) {
            const Expr row = code.let("row", own_row(r));
            code.when(row < at.stored_rows, [&] {
                const Expr of_row = code.let("of_row", to.row(row));
                for (int n = 0; n < out_tiles; n++) {
                    Expr x[2];
                    for (int e = 0; e < 2; e++) {
                        // Rows after the last one met others all the same, as zeros.
                        const Expr value = sum[4 * (r / 2 * out_tiles + n) + r % 2 * 2 + e] * factor;
                        x[e] = code.let("x", select(row < at.num_rows, value, 0.f));
                    }
                    const Expr d = first_column + quad * 2 + 8 * n, address = of_row + bytes_of(d, 2);
                    code.when(
                        to.pairs,
                        [&] {
                            code.when(d < to.length, [&] { code.run(store_u32(address, pack(type, x[0], x[1]))); });
                        },
                        [&] {
                            for (int e = 0; e < 2; e++) {
                                code.when(d + e < to.length,
                                          [&] { elements.store(address + cast<uint64_t>(2 * e), {x[e]}); });
                            }
                        });
                }
            });
        }
    });
}

}  // namespace heed::cuda
