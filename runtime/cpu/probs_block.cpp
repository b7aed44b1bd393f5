// Blocks of rows of heed_attention_probs.
#include "runtime/cpu/probs_block.h"

#include <algorithm>
#include <limits>

#include "runtime/cpu.h"
#include "runtime/kernel_call.h"

namespace heed {
namespace {

struct ScoreExtents {
    int32_t width, rows;
};

// Rows of a mask or bias, from (sequence, head, row) on; one element with strides 0 where there is none.
KernelBuffer score_rows(bool used, const heed_tensor &tensor, heed_dtype dtype, const View &view, const void *dummy,
                        const int64_t (&at)[3], const ScoreExtents &n) {
    if (!used) return {const_cast<void *>(dummy), dtype, 2, {n.width, n.rows}, {0, 0}};
    const int64_t index = at[0] * view.stride[0] + at[1] * view.stride[1] + at[2] * view.stride[2];
    return {
        bytes_at(tensor, dtype, index), dtype, 2, {n.width, n.rows}, {narrow(view.stride[3]), narrow(view.stride[2])}};
}

void set_scores(const HostProbs &call, const int32_t *task, int32_t first, const ScoreExtents &n,
                AttentionProbsArguments *arguments) {
    static const float zero = 0;
    const heed_problem &p = call.plan.problem;
    const ProblemViews &views = call.plan.views;
    const int64_t h = task[task_head], at[3] = {task[task_sequence], h, first};
    const bool is_16 = bias_form(p) == bias_of_dtype;
    AttentionProbsArguments &a = *arguments;
    a.mask = score_rows(p.has_mask, call.args.mask, HEED_U8, views.mask, &zero, at, n);
    a.bias = score_rows(p.has_bias && !is_16, call.args.bias, HEED_F32, views.bias, &zero, at, n);
    a.bias_16 = score_rows(is_16, call.args.bias, HEED_F16, views.bias, &zero, at, n);
    a.kv_len = task[task_kv_len];
    a.first_row = first;
    a.visible_begin = task[task_visible_begin];
    a.visible_end = task[task_visible_end];
    a.position_offset = task[task_position_offset];
    a.mode = call.mode;
    set_values(LogitValues(p), &a);
    set_head_values(p, call.args, h, &a);
    a.sink = p.has_sink ? call.args.sink[h] : -std::numeric_limits<float>::infinity();
}

// A row of the result from key `first` on, of which no query sees any, or which varlen queries do not have.
void fill_row(const HostProbs &call, char *row, int64_t first, bool exists) {
    const bool hidden = exists && call.mode == HEED_PROBS_MASKED;
    const int64_t end = call.plan.problem.max_kv_len;
    if (call.out.dtype == HEED_F32) {
        auto *const floats = reinterpret_cast<float *>(row);
        const float rest = hidden ? -std::numeric_limits<float>::infinity() : 0;
        std::fill(floats + first, floats + end, rest);
    } else {
        auto *const halves = reinterpret_cast<uint16_t *>(row);
        const uint16_t minus_infinity = call.out.dtype == HEED_F16 ? 0xfc00 : 0xff80;
        std::fill(halves + first, halves + end, hidden ? minus_infinity : uint16_t{0});
    }
}

// The keys before the last one that one of `count` rows sees, or that there is where all count.
int32_t end_of_keys(const HostProbs &call, const int32_t *task, int32_t first, int32_t count) {
    const int64_t last_end = int64_t{first} + count - 1 + task[task_visible_end];
    const bool hides = call.mode >= HEED_PROBS_MASKED;
    return narrow(hides ? std::clamp<int64_t>(last_end, 0, task[task_kv_len]) : task[task_kv_len]);
}

// A block of rows of one head, all of which exist.
class RowBlock {
public:
    RowBlock(HostProbs *call, int64_t head, int32_t first, int32_t count, float *scratch)
        : call_(*call), p_(call->plan.problem), head_(head), task_(call->task_of(head)), first_(first), count_(count),
          end_(end_of_keys(*call, task_, first, count)), at_(*call), scratch_(scratch) {}

    int run(char (&message)[512]) {
        const int32_t width = whole_vectors();
        for (int32_t i = 0; i < count_; i++) fill_row(call_, out_row(i), width, true);
        if (end_ == 0) {
            if (call_.with_out) clear_output(call_, task_, first_, count_);
            return 0;
        }
        if (const int code = multiply(message)) return code;
        if (const int code = weigh(message)) return code;
        return call_.with_out ? multiply_values(call_, weighted(), message) : 0;
    }

private:
    HostProbs &call_;
    const heed_problem &p_;
    const int64_t head_;
    const int32_t *const task_;
    const int32_t first_, count_;
    const int32_t end_;  // of the keys that count
    const ProbsScratch at_;
    float *const scratch_;

    int32_t whole_vectors() const { return std::min(narrow(round_up(end_, linear_step_block)), p_.max_kv_len); }
    char *out_row(int32_t i) const {
        const int64_t *const stride = call_.probs.stride;
        const int64_t at =
            head_ / p_.num_heads * stride[0] + head_ % p_.num_heads * stride[1] + (int64_t{first_} + i) * stride[2];
        return bytes_at(call_.out, call_.out.dtype, at);
    }

    int multiply(char (&message)[512]) {
        KernelBuffer queries = {};
        if (const int code = find_queries(&queries, message)) return code;
        const int32_t columns = call_.products->columns;
        const int32_t panels = (end_ + columns - 1) / columns;
        if (call_.packs_once()) {
            return multiply_panels(queries, call_.panels_of(task_[task_sequence], task_[task_kv_head]), 0, panels,
                                   message);
        }
        for (int32_t panel = 0; panel < panels; panel += narrow(chunk_panels)) {
            const int32_t count = std::min(panels - panel, narrow(chunk_panels));
            float *const keys = scratch_ + at_.panels;
            for (int32_t n = 0; n < count; n++)
                pack_key_panel(call_, task_, panel + n, keys + n * call_.panel_floats());
            if (const int code = multiply_panels(queries, keys, panel, count, message)) return code;
        }
        return 0;
    }

    KernelBuffer query_tile() const {
        constexpr int32_t block = linear_step_block;
        const int32_t rows = call_.tile_rows(), steps = call_.steps(), tiles = (count_ + rows - 1) / rows;
        return packed_buffer(scratch_ + at_.queries, call_.step_dtype(), {block, rows, steps / block, tiles});
    }

    // Queries as the products read them.
    int find_queries(KernelBuffer *tiles, char (&message)[512]) const {
        const View &q = call_.plan.views.q;
        const int64_t at = task_[task_q_batch] * q.stride[0] + (int64_t{task_[task_first_q]} + first_) * q.stride[1] +
                           task_[task_head] * q.stride[2];
        LinearRowsArguments arguments;
        arguments.x = {
            bytes_at(call_.args.q, p_.dtype, at), p_.dtype, 2, {p_.head_dim, count_}, {1, narrow(q.stride[1])}};
        if (call_.whole_tiles != nullptr) *tiles = tiles_in_place(*call_.whole_tiles, arguments.x);
        if (tiles->data != nullptr) return 0;
        *tiles = arguments.tiles = query_tile();
        return call_op_kernel(*call_.packs_queries, arguments, message);
    }

    // With panels [panel, panel + count) of the keys, which are at `keys`.
    int multiply_panels(const KernelBuffer &queries, float *keys, int32_t panel, int32_t count, char (&message)[512]) {
        const int32_t columns = call_.products->columns, steps = call_.steps(), first = panel * columns;
        const KernelBuffer panels = packed_buffer(keys, call_.step_dtype(), {columns, steps, count});
        float *const out = scratch_ + at_.products + first;
        if (call_.whole_tiles != nullptr)
            return multiply_tiles(*call_.whole_tiles, queries, panels, out, call_.product_pitch(), message);
        LinearArguments arguments;
        arguments.x = queries;
        arguments.weight = panels;
        arguments.before = {call_.no_bias.data(),
                            HEED_F32,
                            4,
                            {columns, call_.tile_rows(), count, arguments.x.extent[3]},
                            {1, 0, 0, 0}};
        arguments.bias = packed_buffer(call_.no_bias.data(), HEED_F32, {count * columns});
        arguments.clip = no_clip;
        const int32_t width = std::min(count * columns, end_ - first);
        arguments.out = {out, HEED_F32, 2, {width, count_}, {1, call_.product_pitch()}};
        return call_op_kernel(*call_.products, arguments, message);
    }

    int weigh(char (&message)[512]) {
        const int32_t width = whole_vectors(), pitch = p_.max_kv_len;
        AttentionProbsArguments arguments;
        set_scores(call_, task_, first_, {width, count_}, &arguments);
        const int32_t blocks = narrow(round_up(width, probs_block));
        arguments.products = {scratch_ + at_.products, HEED_F32, 2, {blocks, count_}, {1, call_.product_pitch()}};
        arguments.scores = {scratch_ + at_.scores, HEED_F32, 2, {width, call_.has_odd_keys ? count_ : 0}, {1, pitch}};
        // f32 kernels do not look at probs_16.
        const bool is_f32 = call_.out.dtype == HEED_F32, in_floats = is_f32 || !call_.lines_are_out();
        arguments.probs = {lines(), HEED_F32, 2, {width, in_floats ? count_ : 0}, {1, line_stride()}};
        arguments.probs_16 = {
            out_row(0), p_.dtype, 2, {width, is_f32 ? 0 : count_}, {1, narrow(call_.probs.stride[2])}};
        return call_op_kernel(*call_.kernel, arguments, message, {scratch_ + at_.kernel, at_.kernel_bytes});
    }

    // Probabilities that values are multiplied with.
    void *lines() const { return call_.lines_are_out() ? out_row(0) : static_cast<void *>(scratch_ + at_.lines); }
    int32_t line_stride() const { return call_.lines_are_out() ? narrow(call_.probs.stride[2]) : p_.max_kv_len; }

    WeightedRows weighted() const {
        const heed_dtype dtype = call_.values_in_pairs() ? HEED_BF16 : HEED_F32;
        WeightedRows rows = {task_, first_, count_, end_, whole_vectors(), dtype};
        rows.lines = lines();
        rows.line_stride = line_stride();
        rows.scores = scratch_ + at_.scores;
        rows.score_stride = p_.max_kv_len;
        rows.tiles = scratch_ + at_.tiles;
        rows.sums = scratch_ + at_.sums;
        return rows;
    }
};

}  // namespace

int run_probs_block(HostProbs *call, int64_t index, float *scratch, char (&message)[512]) {
    const heed_problem &p = call->plan.problem;
    const int64_t blocks = (int64_t{p.max_q_len} + call->rows() - 1) / call->rows(), head = index / blocks;
    const int32_t first = narrow(index % blocks * call->rows()), end = std::min(first + call->rows(), p.max_q_len);
    const int32_t *const task = call->task_of(head);
    const int32_t len = task == nullptr ? 0 : task[task_q_len], exist = std::clamp(len, first, end);
    const bool has_keys = task != nullptr && task[task_kv_len] > 0;
    const int64_t *const stride = call->probs.stride;
    for (int32_t i = has_keys ? exist : first; i < end; i++) {
        const int64_t at = head / p.num_heads * stride[0] + head % p.num_heads * stride[1] + i * stride[2];
        fill_row(*call, bytes_at(call->out, call->out.dtype, at), 0, i < exist);
    }
    if (!has_keys && call->with_out && exist > first) clear_output(*call, task, first, exist - first);
    if (!has_keys || exist == first) return 0;
    return RowBlock(call, head, first, exist - first, scratch).run(message);
}

}  // namespace heed
