#include "generators/cuda/backward_tiles.h"

#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/cuda/backward_block.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/launch.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// A block has `edge` rows of the side, meets `edge` rows of the other at a time, and sums `width` columns: blocks for
// other columns compute the same scores again. A thread has 4 x 2 scores and 4 x 4 results of each sum.
constexpr int edge = 32, width = 64, step = 32, rows_of_thread = 4;
constexpr int scores_of_thread = edge / 16, results_of_thread = width / 16;
constexpr int shared_row = 4 * (edge + 1);        // bytes; neighbouring rows begin in neighbouring banks
constexpr int shared_square = edge * shared_row;  // bytes
constexpr int shared_wide = 4 * edge * width;     // bytes
static_assert(step == edge && 16 * edge / rows_of_thread == backward_tile_threads);

class TilesProgram {
public:
    TilesProgram(const std::string &name, ElementType type)
        : name(name), type(type), elements(type, code), logit(type, in, code),
          at(in, code, in.side == backward_keys, elements.size()) {}

    Module module(const Target &target) {
        const Expr chunks = Internal::Variable::make(Int(32), "chunks");
        thread = Launch::thread(name);
        const Expr number = Launch::block(name), block = code.let("block", quotient(number, chunks));
        first_column = code.let("first_column", (number - block * chunks) * width);
        at.locate(block, edge);
        code.when(at.first_row < at.stored_rows, [&] { run(); });
        const Expr columns = select(in.side == backward_keys, max(in.q.extent(0), in.v.extent(0)), in.q.extent(0));
        auto host_values = at.host_values(edge);
        host_values.emplace_back("chunks", ceil_div(columns, width));
        const Launch launch = {name,
                               at.num_blocks() * chunks,
                               backward_tile_threads,
                               backward_tile_shared_bytes(),
                               in.tensors(),
                               host_values,
                               code.finish()};
        return launch_module(name, Func("gradients_written"), in.output_types(), in.arguments(), launch, target);
    }

private:
    const std::string name;
    const ElementType type;
    const BackwardInputs in{type};
    DeviceCode code;
    RowElements elements;
    BackwardLogit logit;
    BackwardBlock at;
    Expr thread, row, column;  // row: the first of this thread's; column: its first, the next are 16 further
    Expr first_column, shared, head, stats;
    Registers scores, weight_grads, sums[2];

    void run() {
        shared = code.let("shared", shared_begin());
        row = code.let("row", thread / 16 * rows_of_thread);
        column = code.let("column", thread % 16);
        scores = code.registers("scores", Float(32), rows_of_thread * scores_of_thread);
        weight_grads = code.registers("weight_grads", Float(32), rows_of_thread * scores_of_thread);
        for (Registers &sum : sums) {
            sum = code.registers("sums", Float(32), rows_of_thread * results_of_thread);
            for (int i = 0; i < rows_of_thread * results_of_thread; i++) code.set(sum, i, 0.f);
        }
        code.loop("head", at.num_heads, [&](const Expr &h) {
            head = code.let("other_head", at.other_head(h));
            const Expr query_head = code.let("query_head", at.query_head(h));
            const BackwardHead of_logits = {at.sequence, query_head, logit.load_slope(query_head), at.fields};
            stats = code.let("stats", in.stats_of(at.sequence, query_head));
            code.loop("step", ceil_div(at.end_other - at.begin_other, edge), [&](const Expr &n) {
                const Expr first = code.let("first_other", at.begin_other + n * edge);
                code.run(barrier());
                multiply(at.own(0), at.other(0, head), first, scores);
                multiply(at.own(1), at.other(1, head), first, weight_grads);
                change(of_logits, first);
                code.run(barrier());
                add(at.other(0, head), first, 1, sums[0]);
                code.when(in.side == backward_keys, [&] { add(at.other(1, head), first, 0, sums[1]); });
            });
        });
        store(at.sums(0), sums[0], in.scale);
        code.when(in.side == backward_keys, [&] { store(at.sums(1), sums[1], 1.f); });
    }

    // Shared memory: two squares of elements of X and Y, then of weights and gradients of scores; elements of Y.
    Expr square(int n) const { return shared + n * shared_square; }
    Expr wide_rows() const { return shared + 4 * shared_square; }

    // Zero where row or element do not exist.
    Expr load_bits(const BackwardBlock::Rows &rows, const Expr &number, const Expr &count, const Expr &d) {
        const Expr on = cast<int32_t>(number < count && d < rows.length);
        const Expr from = rows.row(number) + bytes_of(d, elements.size());
        if (type == ElementType::f32) return load_u32_if(from, on);
        return reinterpret<uint32_t>(to_float(type, cast<uint16_t>(load_u16_if(from, on))));
    }

    Expr other_len() const { return select(in.side == backward_keys, at.fields.q_len, at.fields.kv_len); }

    void multiply(const BackwardBlock::Rows &own, const BackwardBlock::Rows &other, const Expr &first,
                  const Registers &result) {
        for (int i = 0; i < rows_of_thread * scores_of_thread; i++) code.set(result, i, 0.f);
        code.loop("depth", ceil_div(own.length, step), [&](const Expr &n) {
            code.run(barrier());
            const Expr d = code.let("d", n * step + thread % step);
            code.loop("load", edge / rows_of_thread, [&](const Expr &pass) {
                const Expr r = code.let("r", pass * rows_of_thread + thread / step);
                const Expr to = code.let("to", square(0) + r * shared_row + thread % step * 4);
                code.run(store_shared_u32(to, load_bits(own, at.first_row + r, at.num_rows, d)));
                code.run(store_shared_u32(to + shared_square, load_bits(other, first + r, other_len(), d)));
            });
            code.run(barrier());
            const Expr x = code.let("x", square(0) + row * shared_row),
                       y = code.let("y", square(1) + column * shared_row);
            code.loop("element", step / 8, [&](const Expr &group) {
                for (int e = 0; e < 8; e++) {
                    const Expr offset = group * 32 + 4 * e;
                    Expr of_y[scores_of_thread];
                    for (int b = 0; b < scores_of_thread; b++) of_y[b] = number(y + (16 * b * shared_row + offset));
                    for (int a = 0; a < rows_of_thread; a++) {
                        const Expr of_x = number(x + (a * shared_row + offset));
                        for (int b = 0; b < scores_of_thread; b++) {
                            const int i = a * scores_of_thread + b;
                            code.set(result, i, fma(of_x, of_y[b], result[i]));
                        }
                    }
                }
            });
        });
    }

    Expr number(const Expr &address) { return code.let("number", reinterpret<float>(load_shared_u32(address))); }

    // From products to weights and gradients of scores, in the squares after the first two.
    void change(const BackwardHead &of_logits, const Expr &first) {
        const Expr keys = in.side == backward_keys;
        for (int a = 0; a < rows_of_thread; a++) {
            for (int b = 0; b < scores_of_thread; b++) {
                const Expr own = at.first_row + row + a, other = first + column + 16 * b;
                const Expr i = code.let("i", select(keys, other, own)), j = code.let("j", select(keys, own, other));
                const Expr stat = stats + bytes_of(min(i, in.stat_rows - 1), backward_stat_bytes);
                const Expr lse = code.let("lse", load_f32(stat)),
                           delta = code.let("delta", load_f32(stat + cast<uint64_t>(4)));
                const int n = a * scores_of_thread + b;
                const LogitGradients g = logit.gradients(of_logits, i, j, scores[n], weight_grads[n], lse, delta);
                const Expr to = square(2) + (row + a) * shared_row + (column + 16 * b) * 4;
                code.run(store_shared_u32(to, reinterpret<uint32_t>(g.weight)));
                code.run(store_shared_u32(to + shared_square, reinterpret<uint32_t>(g.score)));
            }
        }
    }

    // sums += the factors of square 2 + `square` times the columns of Y. Hidden, a row may hold anything.
    void add(const BackwardBlock::Rows &other, const Expr &first, int of_scores, const Registers &result) {
        code.run(barrier());
        const Expr d = code.let("d", first_column + thread % width);
        code.loop("load", edge * width / backward_tile_threads, [&](const Expr &pass) {
            const Expr r = code.let("r", pass * (backward_tile_threads / width) + thread / width);
            code.run(store_shared_u32(wide_rows() + r * (4 * width) + thread % width * 4,
                                      load_bits(other, first + r, other_len(), d)));
        });
        code.run(barrier());
        const Expr factors = code.let("factors", square(2 + of_scores) + row * shared_row),
                   values = code.let("values", wide_rows() + column * 4);
        code.loop("other", edge / 4, [&](const Expr &group) {
            for (int e = 0; e < 4; e++) {
                Expr value[results_of_thread];
                for (int b = 0; b < results_of_thread; b++) {
                    value[b] = number(values + group * (16 * width) + (4 * width * e + 64 * b));
                }
                for (int a = 0; a < rows_of_thread; a++) {
                    const Expr factor = number(factors + group * 16 + (a * shared_row + 4 * e)), none = is_zero(factor);
                    for (int b = 0; b < results_of_thread; b++) {
                        const int i = a * results_of_thread + b;
                        code.set(result, i, select(none, result[i], fma(factor, value[b], result[i])));
                    }
                }
            }
        });
    }

    void store(const BackwardBlock::Rows &to, const Registers &result, const Expr &factor) {
        code.when(to.exists, [&] {
            for (int a = 0; a < rows_of_thread; a++) {
                const Expr r = code.let("r", at.first_row + row + a);
                code.when(r < at.stored_rows, [&] {
                    const Expr of_row = code.let("of_row", to.row(r));
                    for (int b = 0; b < results_of_thread; b++) {
                        const Expr d = first_column + column + 16 * b;
                        // Rows after the last one met others all the same, as zeros.
                        const Expr x = select(r < at.num_rows, result[a * results_of_thread + b] * factor, 0.f);
                        code.when(d < to.length,
                                  [&] { elements.store(of_row + bytes_of(d, elements.size()), {code.let("x", x)}); });
                    }
                });
            }
        });
    }
};

}  // namespace

int backward_tile_shared_bytes() { return 4 * shared_square + shared_wide; }

Module backward_tiles_module(const std::string &name, ElementType type, const Target &target) {
    return TilesProgram(name, type).module(target);
}

}  // namespace heed::cuda
