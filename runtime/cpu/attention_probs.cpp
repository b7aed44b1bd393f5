// heed_attention_probs on the CPU. Keys are packed once for each head of keys and values, as floats, or as pairs of
// bf16 where kernels have dot products of them; then blocks of queries take their products with all of them
// (attention_scores, at the speed of dense layers), and their softmax (attention_probs) while the products are in the
// L2 cache; with_out also the products of the probabilities with the values, packed likewise.
#include <algorithm>

#include "runtime/backends.h"
#include "runtime/cpu.h"
#include "runtime/cpu/probs_block.h"
#include "runtime/ops/op_run.h"

namespace heed {
namespace {

// Tiles of a block of rows: more of them share the call of a kernel, some 1 us, and a panel of keys in the L1 cache.
// While products stay in L2, and each thread has several blocks. Of short rows there are more.
constexpr int64_t most_tiles = 4, short_floats = 16384, product_floats = 65536, blocks_per_thread = 4;
// Heads of keys that each thread has at least where it packs them itself; where some have one more than others.
constexpr int64_t own_heads = 4, own_heads_of_some = 16;

// What the rows of each head see.
heed_status resolve(HostProbs *call) {
    const heed_problem &p = call->plan.problem;
    Kernel whole_heads = {};
    whole_heads.phase = Phase::prefill;
    whole_heads.row_block = 1 << 30;
    Workload work;
    const int64_t most = max_tasks(p, whole_heads);
    if (most < 0)
        return fail(HEED_UNSUPPORTED, "max_q_len is %d; heed_attention_probs serves less than 2^30", p.max_q_len);
    heed_status status = call->tasks.allocate(probs_name, most * num_task_fields);
    if (!status) status = call->task_of_head.allocate(probs_name, call->num_heads());
    if (!status) status = resolve_tasks(p, call->plan.views, whole_heads, call->args, {call->tasks.data()}, &work);
    if (status) return status;
    for (int64_t head = 0; head < call->num_heads(); head++) call->task_of_head[head] = -1;
    for (int64_t n = 0; n < work.num_tasks; n++) {
        const int32_t *task = &call->tasks[n * num_task_fields];
        call->task_of_head[int64_t{task[task_sequence]} * p.num_heads + task[task_head]] = n * num_task_fields;
    }
    return HEED_OK;
}

heed_status find_kernels(HostProbs *call) {
    const heed_problem &p = call->plan.problem;
    if (const heed_status status = find_op_kernel(Op::attention_probs, p.dtype, p.dtype, &call->kernel)) return status;
    const heed_status status = find_op_kernel(Op::attention_scores, HEED_F32, HEED_F32, &call->value_products);
    if (status) return status;
    const bool may_pair = p.dtype == HEED_BF16 && p.kv_dtype == HEED_BF16;
    if (may_pair) find_op_kernel(Op::attention_scores, HEED_BF16, HEED_BF16, &call->products);
    const bool in_dots = call->products != nullptr && call->products->target == KernelTarget(Isa::avx512bf16);
    if (call->products == nullptr || (in_dots && has_slow_bf16_dots())) call->products = call->value_products;
    // (The rows of a tile are below 2^31 floats.)
    const bool in_tiles = call->in_pairs() && p.max_kv_len < most_tile_stride;
    if (in_tiles) call->whole_tiles = find_whole_tiles(*call->products);
    call->packs_queries = find_linear_rows(*call->products, p.dtype);
    if (call->with_out && call->in_pairs() && call->out.dtype == HEED_BF16) call->value_products = call->products;
    call->packs_weights = find_linear_rows(*call->value_products, call->value_products->dtype);
    call->in_place = find_in_place(*call->value_products, call->value_products->dtype);
    if (call->packs_queries != nullptr) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "this program's kernel library has no kernel of linear_rows for %s",
                dtype_name(p.dtype));
}

int64_t num_blocks(const HostProbs &call) {
    return call.num_heads() * ((int64_t{call.plan.problem.max_q_len} + call.rows() - 1) / call.rows());
}

int32_t tiles_of_block(const HostProbs &call, int32_t threads) {
    const heed_problem &p = call.plan.problem;
    const int64_t rows = call.tile_rows(), floats = rows * p.max_kv_len;
    const int64_t tiles = std::min({std::max(most_tiles, short_floats / floats), product_floats / floats,
                                    num_blocks(call) / (threads * blocks_per_thread), (p.max_q_len + rows - 1) / rows});
    return narrow(std::max<int64_t>(tiles, 1));
}

// Whether a task has all rows that read a head's keys, and packs these: no thread waits for keys of others.
bool packs_in_tasks(const HostProbs &call, int64_t kv_heads, int32_t threads) {
    const int64_t least = (kv_heads % threads == 0 ? own_heads : own_heads_of_some) * threads;
    return call.packs_once() && kv_heads >= least;
}

heed_status run_probs(HostProbs *call) {
    const heed_problem &p = call->plan.problem;
    heed_execution execution = {};
    execution.num_threads = call->args.num_threads == 0 ? p.max_threads : call->args.num_threads;
    execution.pool = call->args.pool;
    int64_t columns = call->num_panels() * call->products->columns;
    if (call->with_out) columns = std::max(columns, call->value_panels() * call->value_products->columns);
    heed_status status = call->no_bias.allocate(probs_name, columns);
    if (status) return status;
    std::fill_n(call->no_bias.data(), columns, 0.f);
    const int64_t kv_heads = int64_t{p.batch} * p.num_kv_heads;
    if (call->packs_once())
        status = call->keys.allocate(probs_name, kv_heads * call->num_panels() * call->panel_floats());
    if (!status && call->with_out) status = pack_values(call, execution);
    if (status) return status;
    // (Arithmetic in terms of bytes: a core computes some 8 operations while it moves one.)
    const int32_t of_logit = p.head_dim + 32 + (call->with_out ? p.head_dim_v : 0);
    const double flops = 2.0 * static_cast<double>(call->num_heads()) * p.max_q_len * p.max_kv_len * of_logit;
    const int32_t threads = op_threads(&execution, flops / 8);
    call->tiles = tiles_of_block(*call, threads);
    const int64_t floats = ProbsScratch(*call).floats;
    if ((status = call->scratch.allocate(probs_name, threads * floats))) return status;
    const auto block = [&](int64_t index, int32_t item, char(&message)[512]) {
        return run_probs_block(call, index, call->scratch.data() + item * floats, message);
    };
    if (packs_in_tasks(*call, kv_heads, threads)) {
        const int64_t blocks = num_blocks(*call) / kv_heads;
        const auto head = [&](int64_t index, int32_t item, char(&message)[512]) {
            for (int64_t panel = 0; panel < call->num_panels(); panel++) pack_panel_of(call, index, panel);
            int code = 0;
            for (int64_t n = 0; n < blocks && code == 0; n++) code = block(index * blocks + n, item, message);
            return code;
        };
        return run_op(probs_name, &execution, threads, kv_heads, head);
    }
    if (call->packs_once()) status = pack_keys(call, execution);
    return status ? status : run_op(probs_name, &execution, threads, num_blocks(*call), block);
}

}  // namespace

heed_status CpuBackend::add_probs_workspace(const heed_plan &, const heed_args &, MemoryRanges *) const {
    return HEED_OK;
}

bool CpuBackend::multiplies_probs(const ProbsCall &checked) const {
    HostProbs call = {checked};
    return !find_kernels(&call) && call.value_products != nullptr && call.packs_weights != nullptr &&
           call.repays_values() && call.plan.problem.dropout_p == 0;
}

heed_status CpuBackend::attention_probs(const ProbsCall &checked) const {
    HostProbs call = {checked};
    if (call.with_out) {
        heed_execution execution = {};
        execution.workspace = call.args.workspace;
        execution.workspace_bytes = call.args.workspace_bytes;
        call.memory = OpMemory(execution);
    }
    heed_status status = resolve(&call);
    if (!status) status = find_kernels(&call);
    return status ? status : run_probs(&call);
}

}  // namespace heed
