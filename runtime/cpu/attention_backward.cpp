// heed_attention_backward on the CPU: the workspace and the order of the steps.
#include "cpu/attention_backward.h"

#include <algorithm>

#include "cpu/backward_rows.h"
#include "cpu/cpu_backend.h"
#include "heuristics.h"
#include "kernel_call.h"
#include "ops/gradient_checks.h"
#include "ops/op_rows.h"
#include "scratch.h"
#include "status.h"
#include "workspace.h"

namespace heed {
namespace {

// Tasks that a problem is cut into by ranges of keys, where it has fewer heads of keys.
constexpr int64_t wanted_tasks = 8;

// Whether several logits share an element of the bias.
bool shares_bias(const heed_problem &p, const ProblemViews &views) {
    const View view = dbias_view(p, views);
    return !std::equal(view.extent, view.extent + 4, views.bias.extent);
}

bool is_bias_shared_along(const BackwardCall &call, int axis) {
    const View &bias = call.plan.views.bias;
    return call.gradients.dbias.data != nullptr && bias.extent[axis] > 1 && bias.stride[axis] == 0;
}

// Rows of a head, of all sequences: whole blocks, and at most one that is not full for each.
Size rows_of_head(const heed_problem &p, int32_t block) {
    if (p.q_storage == HEED_Q_VARLEN) return Size{p.total_q} + int64_t{p.batch} * block;
    return Size{p.batch} * round_up(p.max_q_len, block);
}

heed_status read_sequences(const BackwardCall &call, double *pairs) {
    const heed_problem &p = call.plan.problem;
    const int32_t block = call.layout.tile->rows;
    BackwardSequence *const sequences = call.at<BackwardSequence>(call.layout.sequences);
    SequenceReader reader(p, call.args);
    heed_status status = reader.start();
    int64_t first_row = 0;
    for (int32_t b = 0; !status && b < p.batch; b++) {
        Sequence place;
        status = reader.next(&place);
        if (status) break;
        const int64_t num_rows = round_up(place.q_len, block);
        sequences[b] = {place, visible_range(p, place), first_row, num_rows};
        first_row += num_rows;
        *pairs += static_cast<double>(place.q_len) * place.kv_len * p.num_heads;
    }
    return status ? status : reader.finish();
}

// Zeros for the keys of no block: behind kv_len.
void clear_keys(const BackwardCall &call, const heed_tensor &tensor, const View &view) {
    const heed_problem &p = call.plan.problem;
    if (tensor.data == nullptr || p.kv_storage == HEED_KV_VARLEN) return;
    const int64_t bytes = dtype_bytes(p.dtype);
    for (int64_t b = 0; b < view.extent[0]; b++) {
        for (int64_t j = call.sequence(b).place.kv_len; j < view.extent[1]; j++) {
            for (int64_t g = 0; g < view.extent[2]; g++) {
                const int64_t index = b * view.stride[0] + j * view.stride[1] + g * view.stride[2];
                char *const row = static_cast<char *>(tensor.data) + index * bytes;
                std::fill(row, row + view.extent[3] * bytes, char{0});
            }
        }
    }
}

// The tasks in classes: those of a class share elements of dbias and run one after the other.
class TaskClasses {
public:
    explicit TaskClasses(const BackwardCall &call)
        : call_(call), extent_{call.plan.problem.batch, call.plan.problem.num_kv_heads, call.layout.num_ranges},
          shared_{is_bias_shared_along(call, 0), is_bias_shared_along(call, 1), is_bias_shared_along(call, 3)} {}

    int64_t count() const { return classes(0) * classes(1) * classes(2); }

    // Calls run(sequence, kv head, range) -> int for the tasks of a class.
    template <typename Run>
    int for_each(int64_t index, const Run &run) const {
        const int64_t first[3] = {index / (classes(1) * classes(2)), index / classes(2) % classes(1),
                                  index % classes(2)};
        for (int64_t b = first[0]; b < end(first, 0); b++) {
            for (int64_t g = first[1]; g < end(first, 1); g++) {
                for (int64_t r = first[2]; r < end(first, 2); r++) {
                    const int code = run(call_.sequence(b), static_cast<int32_t>(g), static_cast<int32_t>(r));
                    if (code != 0) return code;
                }
            }
        }
        return 0;
    }

private:
    const BackwardCall &call_;
    const int64_t extent_[3];
    const bool shared_[3];

    int64_t classes(int n) const { return shared_[n] ? 1 : extent_[n]; }
    int64_t end(const int64_t (&first)[3], int n) const { return shared_[n] ? extent_[n] : first[n] + 1; }
};

heed_status run(const BackwardCall &call, double pairs) {
    const heed_problem &p = call.plan.problem;
    const int32_t limit = call.args.num_threads == 0 ? p.max_threads : call.args.num_threads;
    const int32_t threads = choose_threads(2 * pairs * (3.0 * p.head_dim + 2.0 * p.head_dim_v), limit);
    heed_execution execution = {};
    execution.pool = call.args.pool;
    const int64_t num_heads = int64_t{p.batch} * p.num_heads;
    const auto pack = [&](int64_t index, int32_t, char(&)[512]) {
        pack_queries(call, call.sequence(index / p.num_heads), static_cast<int32_t>(index % p.num_heads));
        return 0;
    };
    heed_status status = run_op(backward_function, &execution, threads, num_heads, pack);
    if (status) return status;
    clear_keys(call, call.gradients.dk, call.plan.views.k);
    clear_keys(call, call.gradients.dv, call.plan.views.v);
    if (call.gradients.dbias.data != nullptr) clear_bias(call);

    const TaskClasses classes(call);
    const auto keys = [&](int64_t index, int32_t item, char(&message)[512]) {
        void *const scratch = call.at<char>(call.layout.threads + item * call.layout.scratch_bytes);
        return classes.for_each(index, [&](const BackwardSequence &sequence, int32_t kv_head, int32_t range) {
            return run_backward_keys(call, sequence, kv_head, range, scratch, message);
        });
    };
    status = run_op(backward_function, &execution, threads, classes.count(), keys);
    if (status) return status;
    const auto store = [&](int64_t index, int32_t, char(&)[512]) {
        store_queries(call, call.sequence(index / p.num_heads), static_cast<int32_t>(index % p.num_heads));
        return 0;
    };
    status = run_op(backward_function, &execution, threads, num_heads, store);
    if (status) return status;
    store_sinks(call);
    if (call.gradients.dbias.data != nullptr) store_bias(call);
    return HEED_OK;
}

// UNSUPPORTED with a sentence where there is no row for the type.
heed_status find_layout(const heed_plan &plan, BackwardLayout *layout) {
    const heed_problem &p = plan.problem;
    *layout = BackwardLayout{};
    heed_status status = HEED_OK;
    if (p.dtype != HEED_BF16 || find_op_row(Op::attention_backward, HEED_BF16, HEED_BF16, &layout->tile)) {
        status = find_op_row(Op::attention_backward, HEED_F32, HEED_F32, &layout->tile);
    }
    if (status) return status;
    const int32_t block = layout->tile->rows, keys = layout->tile->columns;
    layout->head_dim = static_cast<int32_t>(round_up(p.head_dim, backward_chunk));
    layout->head_dim_v = static_cast<int32_t>(round_up(p.head_dim_v, backward_chunk));
    layout->sums_bias = p.has_bias && shares_bias(p, plan.views);
    const int64_t tasks = std::max<int64_t>(1, int64_t{p.num_kv_heads} * (p.batch_invariant ? 1 : p.batch));
    const int64_t blocks = (int64_t{p.max_kv_len} + keys - 1) / keys;
    const int64_t ranges = std::clamp<int64_t>(wanted_tasks / tasks, 1, std::max<int64_t>(1, blocks));
    layout->blocks_per_range = static_cast<int32_t>((blocks + ranges - 1) / ranges);
    layout->num_ranges = static_cast<int32_t>(
        layout->blocks_per_range == 0 ? 1 : (blocks + layout->blocks_per_range - 1) / layout->blocks_per_range);

    const Size rows = rows_of_head(p, block) * p.num_heads;
    Size elements = {1};
    const View dbias = dbias_view(p, plan.views);
    for (const int64_t extent : dbias.extent) elements = elements * extent;
    constexpr int64_t width = sizeof(float);
    Size total;
    layout->num_rows = rows.value;
    layout->sequences = append_part(&total, Size{p.batch} * int64_t{sizeof(BackwardSequence)});
    layout->q = append_part(&total, rows * layout->head_dim * width);
    layout->dout = append_part(&total, rows * layout->head_dim_v * width);
    layout->lse = append_part(&total, rows * width);
    layout->delta = append_part(&total, rows * width);
    layout->special = append_part(&total, Size{rows.value / block + 1});
    layout->dq = append_part(&total, rows * layout->head_dim * width * layout->num_ranges);
    layout->dsink = append_part(&total, Size{p.batch} * p.num_heads * int64_t{sizeof(double)});
    layout->dbias = append_part(&total, layout->sums_bias ? elements * width : Size{});
    layout->scratch_bytes = round_up(backward_scratch_bytes(p, *layout), scratch_alignment);
    layout->threads = append_part(&total, Size{p.max_threads} * layout->scratch_bytes);
    layout->total = total.value;
    if (total.fits) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "the workspace of %s is beyond 2^63-1 bytes", backward_function);
}

}  // namespace

heed_status CpuBackend::backward_workspace(const heed_plan &plan, int64_t *bytes) const {
    BackwardLayout layout;
    const heed_status status = find_layout(plan, &layout);
    *bytes = layout.total;
    return status;
}

heed_status CpuBackend::attention_backward(const heed_plan &plan, const heed_args &args,
                                           const heed_gradients &gradients) const {
    BackwardLayout layout;
    if (const heed_status status = find_layout(plan, &layout)) return status;
    const BackwardCall call = {plan, args, gradients, layout};
    double pairs = 0;
    const heed_status status = read_sequences(call, &pairs);
    return status ? status : run(call, pairs);
}

int64_t CpuBackend::most_backward_bytes(const heed_problem &) const { return 0; }

}  // namespace heed
