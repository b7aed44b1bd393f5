// Dense layers: packing of weights, and the loops around the kernels.
#include "ops/linear.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/cpu_backend.h"
#include "ops/op_rows.h"
#include "weight_element.h"

namespace heed {
namespace {

// Rows of x whose tiles are in memory at once, as far as they fit: W is read once for all of them, and what lies in the
// L3 cache feeds a full tile with 4 bytes a cycle.
constexpr int32_t most_rows = 384;
constexpr int64_t tiles_bytes = 6 << 20;

int32_t block_rows(const heed_linear_weights &w, int64_t num_rows) {
    const int64_t fitting = std::clamp<int64_t>(tiles_bytes / (int64_t{4} * w.k_steps), w.tiles[0]->rows, most_rows);
    return static_cast<int32_t>(std::min(num_rows, fitting / w.tiles[0]->rows * w.tiles[0]->rows));
}

// The tile for a number of rows: reading a panel costs as much as two rows of arithmetic.
int32_t choose_tile(const heed_linear_weights &w, int32_t num_rows) {
    const auto cost = [&](int32_t i) {
        const int64_t rows = w.tiles[i]->rows;
        return (num_rows + rows - 1) / rows * (rows + 2);
    };
    int32_t best = 0;
    for (int32_t i = 1; i < w.num_tiles; i++) {
        if (cost(i) < cost(best)) best = i;
    }
    return best;
}

// Of the elements of a tile of x: floats, or pairs of bf16.
heed_dtype tile_dtype(const heed_linear_weights &w) { return w.k_step == 2 ? HEED_I32 : HEED_F32; }

// (row, step of k, tile)
KernelBuffer x_tiles(const heed_linear_weights &w, float *data, int32_t rows, int32_t num_tiles) {
    const int32_t k = w.k_steps, of_row = w.steps_are_inner ? k : 1, of_step = w.steps_are_inner ? 1 : rows;
    return {data, tile_dtype(w), 3, {rows, k, num_tiles}, {of_row, of_step, rows * k}};
}

template <typename T>
void pack_panel(const WeightSource &source, const heed_linear_weights &w, int64_t panel, T *panels) {
    constexpr int64_t lanes = 16;  // whose offsets are computed once for all of k
    const int64_t first = panel * w.columns, behind = std::min(first + w.columns, int64_t{w.dim_out});
    for (int64_t n = first; n < behind; n += lanes) {
        const int64_t count = std::min(lanes, behind - n);
        int64_t offsets[lanes];
        for (int64_t lane = 0; lane < count; lane++) offsets[lane] = source.row_offset(n + lane);
        T *const column = panels + (first * w.k_steps + n - first) * w.k_step;
        for (int64_t k = 0; k < w.dim_in; k++) {
            const T *const row = static_cast<const T *>(source.data) + source.column_offset(k);
            T *const to = column + k / w.k_step * w.columns * w.k_step + k % w.k_step;
            for (int64_t lane = 0; lane < count; lane++) to[lane * w.k_step] = row[offsets[lane]];
        }
    }
}

// Rows that lie in one line: all of x and out, or those of one sequence.
struct RowSpan {
    int64_t first_sequence, first_token;
    int32_t num_rows;
};

// Consecutive columns of a piece that lie in one line: all of them, or one head.
struct ColumnRun {
    const LinearPiece *piece;
    int32_t head, num_columns;
};

bool heads_are_packed(const View &view) { return view.extent[2] == 1 || view.stride[2] == view.extent[3]; }

int32_t num_runs(const LinearPiece &piece) { return heads_are_packed(piece.view) ? 1 : narrow(piece.view.extent[2]); }

ColumnRun run_at(const LinearCall &call, int32_t index) {
    const LinearPiece *piece = call.pieces;
    for (; index >= num_runs(*piece); piece++) index -= num_runs(*piece);
    const bool packed = heads_are_packed(piece->view);
    return {piece, index, narrow(piece->view.extent[3] * (packed ? piece->view.extent[2] : 1))};
}

// Panels that hold some of the columns.
int32_t num_panels(const ColumnRun &run) {
    const int32_t width = run.piece->weights->columns, head_dim = narrow(run.piece->view.extent[3]);
    const int32_t first = (run.piece->first_column + run.head * head_dim) % width;
    return narrow((int64_t{first} + run.num_columns + width - 1) / width);
}

// Whether tokens of all sequences have one stride.
bool in_one_line(const View &view) {
    return view.extent[0] == 1 || view.extent[1] == 1 || view.stride[0] == view.stride[1] * view.extent[1];
}

int64_t row_stride(const View &view) { return view.extent[1] == 1 ? view.stride[0] : view.stride[1]; }

class LinearLoops {
public:
    LinearLoops(const LinearCall &call, float *scratch)
        : call_(call), scratch_(scratch), first_(*call.pieces[0].weights) {}

    heed_status run() {
        bool one_line = in_one_line(call_.view);
        for (int32_t i = 0; i < call_.num_pieces; i++) one_line = one_line && in_one_line(call_.pieces[i].view);
        const int64_t sequences = call_.view.extent[0], len = call_.view.extent[1];
        const int64_t lines = one_line ? 1 : sequences, rows = one_line ? sequences * len : len;
        const int32_t block = block_rows(first_, rows);
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
    const LinearCall &call_;
    float *const scratch_;
    const heed_linear_weights &first_;

    double flops(const RowSpan &span) const {
        double columns = 0;
        for (int32_t i = 0; i < call_.num_pieces; i++) {
            columns += static_cast<double>(call_.pieces[i].view.extent[2] * call_.pieces[i].view.extent[3]);
        }
        return 2.0 * span.num_rows * first_.dim_in * columns;
    }

    heed_status run_rows(const RowSpan &span) const {
        const int32_t tile = choose_tile(first_, span.num_rows), rows = first_.tiles[tile]->rows;
        const int32_t num_tiles = (span.num_rows + rows - 1) / rows;
        const int64_t tile_floats = int64_t{rows} * first_.k_steps;
        // (Arithmetic in terms of bytes: a core computes some 8 operations while it moves one.)
        const int32_t threads = op_threads(call_.execution, flops(span) / 8);
        const auto pack = [&](int64_t t, int32_t, char(&message)[512]) { return pack_tile(span, tile, t, message); };
        const int32_t packers = op_threads(call_.execution, 4.0 * static_cast<double>(num_tiles * tile_floats));
        heed_status status = run_op(call_.name, call_.execution, packers, num_tiles, pack);
        if (status) return status;

        int64_t panels = 0;
        int32_t runs = 0;
        for (int32_t i = 0; i < call_.num_pieces; i++) runs += num_runs(call_.pieces[i]);
        for (int32_t i = 0; i < runs; i++) panels += num_panels(run_at(call_, i));
        // Several tasks a thread, each of several panels.
        const int64_t share = std::clamp<int64_t>(panels / (int64_t{8} * threads), 1, 16);
        const auto multiply = [&](int64_t index, int32_t, char(&message)[512]) {
            const int64_t begin = index * share, end = std::min(panels, begin + share);
            return multiply_panels(span, tile, begin, end, message);
        };
        return run_op(call_.name, call_.execution, threads, (panels + share - 1) / share, multiply);
    }

    int pack_tile(const RowSpan &span, int32_t tile, int64_t t, char (&message)[512]) const {
        const int32_t rows = first_.tiles[tile]->rows, first = narrow(t) * rows;
        const int32_t count = std::min(rows, span.num_rows - first);
        const bool sequences = call_.view.extent[1] == 1;
        const int64_t at = (span.first_sequence + (sequences ? first : 0)) * call_.view.stride[0] +
                           (span.first_token + (sequences ? 0 : first)) * call_.view.stride[1];
        const char *x = static_cast<const char *>(call_.x) + at * dtype_bytes(first_.dtype);
        const int64_t stride = row_stride(call_.view);
        LinearRowsArguments arguments;
        arguments.x = {const_cast<char *>(x), first_.dtype, 2, {first_.dim_in, count}, {1, narrow(stride)}};
        arguments.tiles = x_tiles(first_, scratch_ + t * rows * first_.k_steps, rows, 1);
        return call_op_kernel(*first_.row_tiles[tile], arguments, message);
    }

    int multiply_panels(const RowSpan &span, int32_t tile, int64_t begin, int64_t end, char (&message)[512]) const {
        int64_t passed = 0;
        for (int32_t i = 0; passed < end; i++) {
            const ColumnRun run = run_at(call_, i);
            const int32_t count = num_panels(run);
            const int64_t from = std::max(begin, passed) - passed, to = std::min(end, passed + count) - passed;
            passed += count;
            if (from >= to) continue;
            if (const int code = multiply_run(span, tile, run, narrow(from), narrow(to), message)) return code;
        }
        return 0;
    }

    // Panels [from, to) of a run. The columns of its first panel may begin inside a panel of the weights: a kernel call
    // of its own, whose panel lies that much further on.
    int multiply_run(const RowSpan &span, int32_t tile, const ColumnRun &run, int32_t from, int32_t to,
                     char (&message)[512]) const {
        const int32_t width = run.piece->weights->columns;
        const int32_t first = run.piece->first_column + run.head * narrow(run.piece->view.extent[3]);
        const int32_t lead = first % width;
        if (from == 0 && lead > 0) {
            const int code = multiply(span, tile, run, 0, std::min(width - lead, run.num_columns), message);
            if (code != 0) return code;
            from = 1;
        }
        if (from >= to) return 0;
        const int32_t begin = from * width - lead, end = std::min(to * width - lead, run.num_columns);
        return multiply(span, tile, run, begin, end, message);
    }

    // Columns [begin, end) of a run: of one panel, or from a panel's first column on.
    int multiply(const RowSpan &span, int32_t tile, const ColumnRun &run, int32_t begin, int32_t end,
                 char (&message)[512]) const {
        const heed_linear_weights &w = *run.piece->weights;
        const View &view = run.piece->view;
        const int32_t rows = w.tiles[tile]->rows, width = w.columns, k = w.k_steps;
        const int32_t column = run.piece->first_column + run.head * narrow(view.extent[3]) + begin;
        const int32_t panel = column / width, panels = (end - begin + width - 1) / width;
        const int64_t bytes = dtype_bytes(w.dtype), lead = column % width;
        const int32_t num_tiles = (span.num_rows + rows - 1) / rows;
        LinearArguments arguments;
        arguments.x = x_tiles(w, scratch_, rows, num_tiles);
        char *const weight =
            const_cast<char *>(w.panels.data()) + (int64_t{panel} * k * width + lead) * w.k_step * bytes;
        arguments.weight = {weight, w.k_step == 2 ? HEED_I32 : w.dtype, 3, {width, k, panels}, {1, width, k * width}};
        float *const bias = const_cast<float *>(w.bias.data()) + column;
        arguments.bias = {bias, HEED_F32, 1, {panels * width}, {1}};
        const int64_t at = span.first_sequence * view.stride[0] + span.first_token * view.stride[1] +
                           run.head * view.stride[2] + begin;
        char *const out = static_cast<char *>(run.piece->out) + at * bytes;
        arguments.clip = run.piece->clip;
        arguments.out = {out, w.dtype, 2, {end - begin, span.num_rows}, {1, narrow(row_stride(view))}};
        return call_op_kernel(*w.tiles[tile], arguments, message);
    }
};

}  // namespace

heed_status pack_linear(const char *name, const LinearSource &source, heed_linear_weights *w,
                        const heed_execution *execution) {
    const heed_dtype dtype = source.dtype;
    const int32_t dim_in = source.dim_in, dim_out = source.dim_out;
    w->dtype = dtype;
    w->dim_in = dim_in;
    w->dim_out = dim_out;
    if (const heed_status status = find_linear_rows(dtype, w)) return status;
    w->num_panels = narrow((int64_t{dim_out} + w->columns - 1) / w->columns);
    const int64_t panels = int64_t{w->num_panels} + 1, bytes = dtype_bytes(dtype);
    const Isa isa = w->tiles[0]->isa;
    const int64_t unit = isa == Isa::amx ? 32 : isa == Isa::avx512bf16 ? 2 : 1;
    w->k_step = unit > 1 ? 2 : 1;
    w->k_steps = narrow((dim_in + unit - 1) / unit * unit / w->k_step);
    w->steps_are_inner = isa == Isa::amx;
    const int64_t panel_elements = int64_t{w->k_steps} * w->k_step * w->columns;
    if (panel_elements > std::numeric_limits<int32_t>::max()) {
        return fail(HEED_UNSUPPORTED, "%s: dim_in is %d; a panel of %d columns is beyond 2^31-1 elements", name, dim_in,
                    w->columns);
    }
    const int64_t elements = panel_elements * panels;
    heed_status status = w->panels.allocate(name, elements * bytes);
    if (!status) status = w->bias.allocate(name, panels * w->columns);
    if (status) return status;
    // Columns behind dim_out, and elements behind dim_in.
    const int64_t zeros = dim_in % unit == 0 ? 2 * panel_elements : elements;
    std::memset(w->panels.data() + (elements - zeros) * bytes, 0, static_cast<size_t>(zeros * bytes));
    const auto pack = [&](int64_t panel, int32_t, char(&)[512]) {
        void *const to = w->panels.data();
        if (dtype == HEED_F32) pack_panel(source.weight, *w, panel, static_cast<float *>(to));
        if (dtype != HEED_F32) pack_panel(source.weight, *w, panel, static_cast<uint16_t *>(to));
        return 0;
    };
    const int32_t threads =
        execution == nullptr ? 1 : op_threads(execution, 2.0 * static_cast<double>(elements * bytes));
    status = run_op(name, execution, threads, w->num_panels, pack);
    if (status) return status;
    for (int64_t n = 0; n < panels * w->columns; n++) {
        w->bias[n] = source.bias != nullptr && n < dim_out ? load_element(source.bias, n, dtype) : 0;
    }
    return HEED_OK;
}

heed_status CpuBackend::pack(const char *name, const LayerDevice &, const LinearSource &source,
                             heed_linear_weights *packed) const {
    return pack_linear(name, source, packed);
}

WeightSource CpuBackend::unpacked(const heed_linear_weights &w) const {
    const int64_t step = int64_t{w.columns} * w.k_step;
    return {w.panels.data(), w.columns, w.k_step, w.k_steps * step, w.k_step, step, 1};
}

int64_t CpuBackend::linear_scratch(const heed_linear_weights &weights, int64_t num_rows) const {
    // Whole tiles of any size.
    return (block_rows(weights, num_rows) + weights.tiles[0]->rows) * int64_t{weights.k_steps};
}

heed_status CpuBackend::linear(const LinearCall &call, float *scratch) const {
    return LinearLoops(call, scratch).run();
}

}  // namespace heed
