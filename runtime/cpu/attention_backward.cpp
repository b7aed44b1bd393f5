// heed_attention_backward on the CPU: the workspace and the order of the steps.
#include "runtime/cpu/attention_backward.h"

#include <algorithm>

#include "runtime/backends.h"
#include "runtime/cpu/backward_keys.h"
#include "runtime/heuristics.h"
#include "runtime/kernel_call.h"
#include "runtime/ops/gradient_checks.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/scratch.h"
#include "runtime/status.h"
#include "runtime/workspace.h"

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
    const int32_t block = call.layout.tile->rows, keys = call.layout.tile->columns;
    BackwardSequence *const sequences = call.at<BackwardSequence>(call.layout.sequences);
    SequenceReader reader(p, call.args);
    heed_status status = reader.start();
    int64_t first_row = 0, first_key_block = 0;
    for (int32_t b = 0; !status && b < p.batch; b++) {
        Sequence place;
        status = reader.next(&place);
        if (status) break;
        const int64_t num_rows = round_up(place.q_len, block);
        sequences[b] = {place, visible_range(p, place), first_row, num_rows, first_key_block};
        first_row += num_rows;
        first_key_block += (place.kv_len + keys - 1) / keys;
        *pairs += static_cast<double>(place.q_len) * place.kv_len * p.num_heads;
    }
    return status ? status : reader.finish();
}

// Zeros for the keys of no block: after kv_len.
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

// Calls step(sequence, head, message) -> int for every head of queries.
template <typename Step>
heed_status run_heads(const BackwardCall &call, const heed_execution &execution, int32_t threads, const Step &step) {
    const heed_problem &p = call.plan.problem;
    const auto task = [&](int64_t index, int32_t, char(&message)[512]) {
        return step(call, call.sequence(index / p.num_heads), static_cast<int32_t>(index % p.num_heads), message);
    };
    return run_op(backward_function, &execution, threads, int64_t{p.batch} * p.num_heads, task);
}

// Calls step(call, sequence, head, message) -> int for the heads of queries of a task.
template <typename Step>
int run_group(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, char (&message)[512],
              const Step &step) {
    const int32_t group = call.plan.problem.num_heads / call.plan.problem.num_kv_heads;
    for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        if (const int code = step(call, sequence, h, message)) return code;
    }
    return 0;
}

// A task, with its rows where these are the thread's.
int run_task(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, char (&message)[512]) {
    const BackwardLayout &layout = call.layout;
    const bool has_rows = layout.rows_of_task > 0;
    void *const scratch = call.at<char>(layout.threads + call.thread * layout.scratch_bytes);
    int code = has_rows ? run_group(call, sequence, task.kv_head, message, pack_queries) : 0;
    if (code == 0) code = run_backward_keys(call, sequence, task, scratch, message);
    if (code == 0 && has_rows) code = run_group(call, sequence, task.kv_head, message, store_queries);
    return code;
}

heed_status run_keys(const BackwardCall &call, const heed_execution &execution, int32_t threads) {
    const TaskClasses classes(call);
    heed_status status = HEED_OK;
    for (int32_t step = 0; !status && step < call.layout.num_ranges; step++) {
        const auto keys = [&](int64_t index, int32_t item, char(&message)[512]) {
            BackwardCall own = call;
            own.thread = item;
            return classes.for_each(index, [&](const BackwardSequence &sequence, int32_t kv_head, int32_t range) {
                return run_task(own, sequence, {kv_head, range, step}, message);
            });
        };
        status = run_op(backward_function, &execution, threads, classes.count(), keys);
    }
    return status;
}

heed_status run(const BackwardCall &call, double pairs) {
    const heed_problem &p = call.plan.problem;
    const int32_t limit = call.args.num_threads == 0 ? p.max_threads : call.args.num_threads;
    const int32_t threads = choose_threads(2 * pairs * (3.0 * p.head_dim + 2.0 * p.head_dim_v), 0, limit);
    heed_execution execution = {};
    execution.pool = call.args.pool;
    const bool has_all_rows = call.layout.rows_of_task == 0;
    heed_status status = has_all_rows ? run_heads(call, execution, threads, pack_queries) : HEED_OK;
    if (status) return status;
    clear_keys(call, call.gradients.dk, call.plan.views.k);
    clear_keys(call, call.gradients.dv, call.plan.views.v);
    if (call.gradients.dbias.data != nullptr) clear_bias(call);
    status = run_keys(call, execution, threads);
    if (!status && has_all_rows) status = run_heads(call, execution, threads, store_queries);
    if (!status && call.gradients.dsink.data != nullptr) {
        const auto sinks = [&](int64_t head, int32_t, char(&message)[512]) {
            return store_sink(call, static_cast<int32_t>(head), message);
        };
        status = run_op(backward_function, &execution, 1, p.num_heads, sinks);
    }
    if (status || call.gradients.dbias.data == nullptr) return status;
    const auto bias = [&](int64_t, int32_t, char(&message)[512]) { return store_bias(call, message); };
    return run_op(backward_function, &execution, 1, 1, bias);
}

// For bf16 in bf16, unless floats are faster.
heed_status find_tile(const heed_problem &p, const OpKernel **tile) {
    const auto find = [&](heed_dtype dtype, const OpKernel **kernel) {
        return find_scored_kernel(Op::attention_backward, dtype, p.score_mod, kernel);
    };
    if (p.dtype == HEED_BF16 && !find(HEED_BF16, tile)) {
        if (!floats_are_faster(**tile)) return HEED_OK;
        const OpKernel *floats = nullptr;
        if (!find(HEED_F32, &floats) && floats->target == KernelTarget(Isa::avx512)) *tile = floats;
        return HEED_OK;
    }
    return find(HEED_F32, tile);
}

heed_status find_kernels(const heed_problem &p, BackwardLayout *layout) {
    heed_status status = find_tile(p, &layout->tile);
    const auto find = [&](Op op, heed_dtype dtype, const OpKernel **kernel) {
        if (!status) status = find_op_kernel(op, dtype, dtype, kernel);
    };
    find(Op::attention_backward_stats, p.dtype, &layout->stats);
    if (!status) {
        find(layout->has_words() ? Op::attention_backward_words : Op::attention_backward_rows, p.dtype, &layout->rows);
        if (layout->has_words()) find(Op::attention_backward_repair, HEED_BF16, &layout->repair);
    }
    find(Op::attention_backward_store, p.dtype, &layout->store);
    if (p.has_bias) find(Op::attention_backward_bias, HEED_F32, &layout->bias);
    if (p.has_sink) find(Op::attention_backward_sinks, HEED_F32, &layout->sinks);
    return status;
}

// Kernels address the rows of a block in 32 bits.
heed_status check_strides(const ProblemViews &views) {
    for (const View *view : {&views.q, &views.k, &views.v, &views.out}) {
        if (view->stride[1] > max_int32 || view->extent[3] > max_int32) {
            return fail(HEED_UNSUPPORTED, "%s serves rows that are at most 2^31-1 elements apart", backward_function);
        }
    }
    return HEED_OK;
}

// UNSUPPORTED with a sentence where there is no kernel for the type.
heed_status find_layout(const heed_plan &plan, BackwardLayout *layout) {
    const heed_problem &p = plan.problem;
    *layout = BackwardLayout{};
    heed_status status = check_strides(plan.views);
    if (!status) status = find_kernels(p, layout);
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

    const int64_t row_blocks = (int64_t{p.max_q_len} + block - 1) / block;
    layout->blocks_per_segment = static_cast<int32_t>((row_blocks + layout->num_ranges - 1) / layout->num_ranges);

    const Size rows = rows_of_head(p, block) * p.num_heads;
    const Size of_task = Size{p.num_heads / p.num_kv_heads} * round_up(p.max_q_len, block);
    const bool has_all_rows = layout->num_ranges > 1 || !(of_task * p.max_threads).at_most(rows.value);
    const Size packed = has_all_rows ? rows : of_task * p.max_threads;
    layout->rows_of_task = has_all_rows ? 0 : of_task.value;
    Size elements = {1};
    const View dbias = dbias_view(p, plan.views);
    for (const int64_t extent : dbias.extent) elements = elements * extent;
    constexpr int64_t width = sizeof(float);
    Size total;
    layout->sequences = append_part(&total, Size{p.batch} * int64_t{sizeof(BackwardSequence)});
    layout->q = append_part(&total, packed * layout->head_dim * width);
    layout->dout = append_part(&total, packed * layout->head_dim_v * width);
    layout->lse = append_part(&total, rows * width);
    layout->delta = append_part(&total, rows * width);
    layout->nonfinite = append_part(&total, Size{packed.value / block + 1});
    layout->dq = append_part(&total, packed * layout->head_dim * width);
    const Size key_rows = Size{layout->num_ranges > 1 ? blocks : 0} * keys * p.batch * p.num_kv_heads;
    layout->keys = append_part(&total, key_rows * (layout->head_dim + layout->head_dim_v) * width);
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
