// Dense layers on packed weights: the loops around the kernels.
#include <algorithm>
#include <limits>

#include "runtime/backends.h"
#include "runtime/cpu/linear_blocks.h"
#include "runtime/cpu/linear_in_place.h"
#include "runtime/cpu/linear_runs.h"
#include "runtime/ops/linear.h"

namespace heed {
namespace {

// (step of a block, row, block, tile), as floats or pairs of bf16.
KernelBuffer x_tiles(const heed_linear_weights &w, float *data, int32_t rows, int32_t num_tiles) {
    constexpr int32_t step_block = linear_step_block;
    const heed_dtype dtype = w.k_step == 2 ? HEED_I32 : HEED_F32;
    return packed_buffer(data, dtype, {step_block, rows, w.k_steps / step_block, num_tiles});
}

// Rows that are in one line: all of x and out, or those of one sequence.
struct RowSpan {
    int64_t first_sequence, first_token;
    int32_t num_rows;
};

// Rows whose tiles are at `tiles`, and what the thread that works on them has.
struct PackedRows {
    RowSpan span;
    int32_t tile;  // of the weights
    float *tiles, *own;
};

// Whole panels of a piece's columns, from `column` of its weights on, for out from `column` of its run on.
struct PanelRange {
    const ColumnRun &run;
    int32_t begin, end;  // columns of the run
};

constexpr int32_t most_columns = 32;  // of a panel
alignas(64) const float zeros[most_panels * most_columns] = {};

class LinearLoops {
public:
    LinearLoops(const LinearCall &call, float *scratch)
        : call_(call), first_(*call.pieces[0].weights), own_(first_, call.view.extent[0] * call.view.extent[1]),
          scratch_(scratch), tiles_(scratch + limit() * own_.floats()) {
        for (int32_t i = 0; i < call.num_pieces; i++) num_runs_ += num_runs(call.pieces[i]);
        for (int32_t i = 0; i < num_runs_; i++) {
            num_panels_ += num_panels(run_at(call, i));
        }
        weight_bytes_ = bytes_of(first_, num_panels_);
    }

    heed_status run() {
        bool one_line = in_one_line(call_.view);
        for (int32_t i = 0; i < call_.num_pieces; i++) one_line = one_line && in_one_line(call_.pieces[i].view);
        const int64_t sequences = call_.view.extent[0], len = call_.view.extent[1];
        const int64_t lines = one_line ? 1 : sequences, rows = one_line ? sequences * len : len;
        const int64_t own = own_tiles(first_, weight_bytes_), enough = is_small(weight_bytes_) ? 1 : own;
        by_tiles_ = own > 0 && rows >= 2 * enough * limit() * tile_rows(0);
        const int64_t block = by_tiles_ ? most_span : block_rows(first_, rows);
        for (int64_t line = 0; line < lines; line++) {
            for (int64_t row = 0; row < rows; row += block) {
                const int64_t sequence = one_line && len == 1 ? row : line, token = one_line && len == 1 ? 0 : row;
                const RowSpan span = {sequence, token, narrow(std::min<int64_t>(block, rows - row))};
                if (const heed_status status = run_rows(span)) return status;
            }
        }
        return HEED_OK;
    }

private:
    static constexpr int64_t most_span = 1 << 30;  // of rows

    const LinearCall &call_;
    const heed_linear_weights &first_;
    const ThreadScratch own_;
    float *const scratch_, *const tiles_;
    int32_t num_runs_ = 0;
    int64_t num_panels_ = 0, weight_bytes_ = 0;  // of all pieces
    bool by_tiles_ = false;                      // a task packs its own

    int32_t limit() const { return op_threads(call_.execution, std::numeric_limits<double>::infinity()); }
    int32_t tile_rows(int32_t tile) const { return first_.tiles[tile]->rows; }
    int32_t num_tiles(const PackedRows &rows) const {
        return (rows.span.num_rows + tile_rows(rows.tile) - 1) / tile_rows(rows.tile);
    }

    heed_status run_rows(const RowSpan &span) const {
        const int32_t tile = call_.out_is_f32 || by_tiles_ ? 0 : choose_tile(first_, span.num_rows);
        const PackedRows rows = {span, tile, tiles_, nullptr};
        // (Arithmetic in terms of bytes: a core computes some 8 operations while it moves one.)
        const double flops = 2.0 * span.num_rows * first_.dim_in * static_cast<double>(num_panels_ * first_.columns);
        const int32_t threads = op_threads(call_.execution, std::max(flops / 8, static_cast<double>(weight_bytes_)));
        return by_tiles_ ? run_tiles(rows, threads) : run_panels(rows, threads);
    }

    // A task has some tiles, in its thread's memory, and all panels.
    heed_status run_tiles(const PackedRows &rows, int32_t threads) const {
        const int64_t tiles = num_tiles(rows),
                      share = std::clamp<int64_t>(tiles / (int64_t{4} * threads), 1, own_tiles(first_, weight_bytes_));
        // As many for each thread.
        const int64_t tasks = std::min(round_up((tiles + share - 1) / share, threads), tiles);
        const auto task = [&](int64_t index, int32_t item, char(&message)[512]) {
            const int64_t first = tiles * index / tasks;
            PackedRows some = tiles_of(rows, first, tiles * (index + 1) / tasks - first);
            some.own = scratch_ + item * own_.floats();
            some.tiles = tiles_ + item * own_.tiles;
            for (int32_t t = 0; t < num_tiles(some); t++) {
                if (const int code = pack_tile(some, t, message)) return code;
            }
            return multiply_panels(some, 0, num_panels_, message);
        };
        return run_op(call_.name, call_.execution, threads, tasks, task);
    }

    // A task has some panels and some tiles, which all are packed first.
    heed_status run_panels(const PackedRows &rows, int32_t threads) const {
        const int64_t tiles = num_tiles(rows);
        const auto pack = [&](int64_t t, int32_t, char(&message)[512]) { return pack_tile(rows, t, message); };
        const int32_t packers = op_threads(call_.execution, 4.0 * rows.span.num_rows * first_.k_steps);
        const heed_status status = run_op(call_.name, call_.execution, packers, tiles, pack);
        if (status) return status;

        // Some eight tasks a thread, of x that stays in the L2 cache while a task's panels pass.
        const int64_t at_once = panels_at_once(*first_.tiles[rows.tile]);
        const int64_t least = (tiles + block_tiles(first_) - 1) / block_tiles(first_);
        const int64_t share =
            std::clamp<int64_t>(num_panels_ * least / (int64_t{8} * threads) / at_once * at_once, at_once, most_panels);
        const int64_t shares = (num_panels_ + share - 1) / share;
        const int64_t parts = std::clamp<int64_t>(int64_t{4} * threads / shares, std::min(least, tiles), tiles),
                      part = (tiles + parts - 1) / parts;
        const auto multiply = [&](int64_t index, int32_t item, char(&message)[512]) {
            const int64_t begin = index / parts * share, end = std::min(num_panels_, begin + share);
            PackedRows some = tiles_of(rows, index % parts * part, part);
            some.own = scratch_ + item * own_.floats();
            return multiply_panels(some, begin, end, message);
        };
        return run_op(call_.name, call_.execution, threads, shares * parts, multiply);
    }

    // One tile reads each step of x and W once, whatever their order; tasks that take all steps at once have one block.
    bool in_blocks(const PackedRows &rows) const {
        const bool takes_all = by_tiles_ && own_tiles_take_all_steps(first_);
        return rows.tile == 0 && !takes_all && heed::in_blocks(first_, rows.span.num_rows);
    }

    const OpKernel &result_kernel(const PackedRows &rows) const {
        return call_.out_is_f32 ? *first_.sums : *first_.tiles[rows.tile];
    }

    // Tiles [first, first + count), as far as there are any.
    PackedRows tiles_of(const PackedRows &rows, int64_t first, int64_t count) const {
        const int64_t before = std::min<int64_t>(first * tile_rows(rows.tile), rows.span.num_rows);
        const int64_t num_rows = std::min<int64_t>(rows.span.num_rows - before, count * tile_rows(rows.tile));
        const bool sequences = call_.view.extent[1] == 1;
        return {{rows.span.first_sequence + (sequences ? before : 0), rows.span.first_token + (sequences ? 0 : before),
                 narrow(num_rows)},
                rows.tile,
                rows.tiles + before * first_.k_steps,
                rows.own};
    }

    int pack_tile(const PackedRows &rows, int64_t t, char (&message)[512]) const {
        const PackedRows one = tiles_of(rows, t, 1);
        const int64_t at = one.span.first_sequence * call_.view.stride[0] + one.span.first_token * call_.view.stride[1];
        const char *x = static_cast<const char *>(call_.x) + at * dtype_bytes(first_.dtype);
        const int64_t stride = row_stride(call_.view);
        LinearRowsArguments arguments;
        arguments.x = {const_cast<char *>(x), first_.dtype, 2, {first_.dim_in, one.span.num_rows}, {1, narrow(stride)}};
        arguments.tiles = x_tiles(first_, one.tiles, tile_rows(rows.tile), 1);
        return call_op_kernel(*first_.row_tiles[rows.tile], arguments, message);
    }

    int multiply_panels(const PackedRows &rows, int64_t begin, int64_t end, char (&message)[512]) const {
        if (rows.span.num_rows == 0) return 0;
        int64_t passed = 0;
        for (int32_t i = 0; passed < end; i++) {
            const ColumnRun run = run_at(call_, i);
            const int32_t count = num_panels(run);
            const int64_t from = std::max(begin, passed) - passed, to = std::min(end, passed + count) - passed;
            passed += count;
            if (from >= to) continue;
            if (const int code = multiply_run(rows, run, narrow(from), narrow(to), message)) return code;
        }
        return 0;
    }

    // Panels [from, to) of a run. The columns of its first panel may begin inside a panel of the weights: a kernel call
    // of its own, whose panel is that much further on.
    int multiply_run(const PackedRows &rows, const ColumnRun &run, int32_t from, int32_t to,
                     char (&message)[512]) const {
        const int32_t width = run.piece->weights->columns;
        const int32_t lead = first_column(run) % width;
        if (from == 0 && lead > 0) {
            const int code = multiply(rows, run, 0, std::min(width - lead, run.num_columns), message);
            if (code != 0) return code;
            from = 1;
        }
        if (from >= to) return 0;
        const int32_t begin = from * width - lead, end = std::min(to * width - lead, run.num_columns);
        return multiply(rows, run, begin, end, message);
    }

    // Columns [begin, end) of a run: of one panel, or from a panel's first column on.
    int multiply(const PackedRows &rows, const ColumnRun &run, int32_t begin, int32_t end, char (&message)[512]) const {
        if (!in_blocks(rows)) {
            const LinearArguments arguments = result_of(rows, {run, begin, end});
            return call_op_kernel(result_kernel(rows), arguments, message);
        }
        const int64_t of_panel = int64_t{num_tiles(rows)} * tile_rows(0) * first_.columns;
        const int32_t at_once = panels_at_once(*first_.tiles[0]);
        const int64_t panels = std::clamp<int64_t>(own_.sums / of_panel / at_once * at_once, 1, most_panels);
        const int32_t share = narrow(panels) * first_.columns;
        for (int32_t from = begin; from < end; from += share) {
            if (const int code = multiply_blocks(rows, {run, from, std::min(end, from + share)}, message)) return code;
        }
        return 0;
    }

    // Block after block of steps into the thread's sums, the last one, or of converted weights no step, into out.
    int multiply_blocks(const PackedRows &rows, const PanelRange &range, char (&message)[512]) const {
        const heed_linear_weights &w = first_;
        const KBlocks blocks(w);
        const int32_t tile = tile_rows(0), width = w.columns, pitch = panels_in(range) * width;
        const KernelBuffer before = {
            rows.own, HEED_F32, 4, {width, tile, panels_in(range), num_tiles(rows)}, {1, pitch, width, tile * pitch}};
        LinearArguments result = result_of(rows, range), partial = result;
        partial.bias = packed_buffer(zeros, HEED_F32, {pitch});
        partial.clip = no_clip;
        partial.out = packed_buffer(rows.own, HEED_F32, {pitch, num_tiles(rows) * tile});
        for (int32_t step = 0; step < w.k_steps; step += blocks.steps) {
            const int32_t steps = std::min(blocks.steps, w.k_steps - step);
            const bool last = step + steps == w.k_steps && !converts(w);
            LinearArguments &some = last ? result : partial;
            take_steps(rows, range, step, steps, &some);
            const int code = last          ? call_op_kernel(result_kernel(rows), some, message)
                             : converts(w) ? multiply_converted(rows, some, message)
                                           : call_op_kernel(*w.sums, some, message);
            if (code != 0 || last) return code;
            partial.before = result.before = before;
        }
        take_steps(rows, range, 0, 0, &result);
        return call_op_kernel(result_kernel(rows), result, message);
    }

    // Some panels after others, of which the steps become floats first.
    int multiply_converted(const PackedRows &rows, const LinearArguments &all, char (&message)[512]) const {
        const int32_t width = first_.columns, steps = all.weight.extent[1], panel = steps * width;
        float *const wide = rows.own + own_.sums;
        for (int32_t first = 0; first < all.weight.extent[2]; first += narrow(converted_panels)) {
            const int32_t count = std::min(narrow(converted_panels), all.weight.extent[2] - first);
            for (int32_t n = 0; n < count; n++) {
                const int64_t at = int64_t{first + n} * all.weight.stride[2] * dtype_bytes(first_.dtype);
                char *const weight = static_cast<char *>(all.weight.data) + at;
                if (const int code = to_floats(weight, panel, wide + int64_t{n} * panel, message)) return code;
            }
            LinearArguments some = all;
            some.weight = packed_buffer(wide, HEED_F32, {width, steps, count});
            some.before.data = static_cast<float *>(all.before.data) + int64_t{first} * all.before.stride[2];
            some.before.extent[2] = count;
            some.bias.extent[0] = count * width;
            some.out.data = static_cast<float *>(all.out.data) + int64_t{first} * width;
            some.out.extent[0] = count * width;
            if (const int code = call_op_kernel(*first_.sums, some, message)) return code;
        }
        return 0;
    }

    // What packs a tile of one row copies: whole linear_step_blocks.
    int to_floats(char *from, int32_t count, float *to, char (&message)[512]) const {
        constexpr int32_t block = linear_step_block;
        LinearRowsArguments arguments;
        arguments.x = packed_buffer(from, first_.dtype, {count, 1});
        arguments.tiles = packed_buffer(to, HEED_F32, {block, 1, count / block, 1});
        return call_op_kernel(*first_.row_tiles[first_.num_tiles - 1], arguments, message);
    }

    int32_t panels_in(const PanelRange &range) const {
        return (range.end - range.begin + first_.columns - 1) / first_.columns;
    }

    // For all steps.
    LinearArguments result_of(const PackedRows &rows, const PanelRange &range) const {
        const LinearPiece &piece = *range.run.piece;
        const View &view = piece.view;
        const int32_t column = piece.first_column + range.run.head * narrow(view.extent[3]) + range.begin;
        const int32_t panels = panels_in(range), tile = tile_rows(rows.tile);
        LinearArguments arguments;
        take_steps(rows, range, 0, first_.k_steps, &arguments);
        arguments.before = {
            const_cast<float *>(zeros), HEED_F32, 4, {first_.columns, tile, panels, num_tiles(rows)}, {1, 0, 0, 0}};
        arguments.bias = packed_buffer(piece.weights->bias.data() + column, HEED_F32, {panels * first_.columns});
        arguments.clip = piece.clip;
        const int64_t at = rows.span.first_sequence * view.stride[0] + rows.span.first_token * view.stride[1] +
                           range.run.head * view.stride[2] + range.begin;
        const heed_dtype dtype = out_dtype(call_);
        char *const out = static_cast<char *>(piece.out) + at * dtype_bytes(dtype);
        arguments.out = {out, dtype, 2, {range.end - range.begin, rows.span.num_rows}, {1, narrow(row_stride(view))}};
        return arguments;
    }

    // Steps [step, step + steps) of x and of the weights.
    void take_steps(const PackedRows &rows, const PanelRange &range, int32_t step, int32_t steps,
                    LinearArguments *arguments) const {
        const heed_linear_weights &w = *range.run.piece->weights;
        const int32_t tile = tile_rows(rows.tile);
        arguments->x = x_tiles(w, rows.tiles + int64_t{step} * tile, tile, num_tiles(rows));
        arguments->x.extent[2] = steps / linear_step_block;
        arguments->weight = panels_from(w, first_column(range.run) + range.begin, step, steps, panels_in(range));
    }
};

}  // namespace

int64_t CpuBackend::linear_scratch(const heed_linear_weights &weights, int64_t num_rows, int32_t num_threads) const {
    const ThreadScratch own(weights, num_rows);
    return num_threads * own.floats() + std::max(shared_floats(weights, num_rows), num_threads * own.tiles);
}

heed_status CpuBackend::linear(const LinearCall &call, float *scratch) const {
    return reads_x_in_place(call) ? run_in_place(call) : LinearLoops(call, scratch).run();
}

}  // namespace heed
