#include <algorithm>
#include <cinttypes>
#include <climits>
#include <initializer_list>
#include <iterator>

#include "runtime/backends.h"
#include "runtime/cuda/call.h"
#include "runtime/cuda/op_kernels.h"
#include "runtime/cuda/op_session.h"
#include "runtime/cuda/sequence_table.h"
#include "runtime/kernel_call.h"
#include "runtime/ops/gradient_checks.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/status.h"
#include "runtime/view.h"
#include "runtime/workspace.h"

namespace heed {
namespace {

// A launch numbers its rows, and its blocks, with 32 bits.
constexpr int64_t max_rows = int64_t{1} << 30;
constexpr int32_t row_block = 64;  // blocks of rows of any kernel divide it

// The score function that a kernel has for a problem.
const char *score_mod_of(Op op, const heed_problem &p) { return may_have_score_mod(op, true) ? p.score_mod : ""; }

// Offsets in bytes, each a multiple of 128; in front of them the table of sequences.
struct CudaBackwardLayout {
    int32_t stat_rows;
    int64_t stats, total;
};

class Backward {
public:
    Backward(const heed_plan &plan, const heed_args &args, const heed_gradients &gradients,
             const CudaBackwardLayout &layout)
        : plan_(plan), p_(plan.problem), args_(args), gradients_(gradients), layout_(layout),
          call_(make_cuda_call(plan, args)) {}

    heed_status run() {
        heed_status status = check_sequences(plan_, args_);
        if (!status && gradients_.dbias.data != nullptr) status = check_bias();
        heed_execution execution = {};
        execution.stream = args_.stream;
        if (!status)
            status = session_.open(execution, Op::attention_backward, p_.dtype, p_.dtype, INT_MAX, p_.score_mod);
        if (!status) status = put_sequences(plan_, args_, &session_.launches());
        const bool has_queries = p_.batch > 0 && p_.max_q_len > 0, has_keys = p_.batch > 0 && p_.max_kv_len > 0;
        if (!status && has_queries) status = launch_stats();
        if (!status && has_keys && (gradients_.dk.data != nullptr || gradients_.dv.data != nullptr)) {
            status = launch_sums(backward_keys);
        }
        if (!status && has_queries && gradients_.dq.data != nullptr) {
            status = launch_sums(backward_queries);
        }
        if (!status && gradients_.dbias.data != nullptr && plan_.views.bias.span > 0) {
            status = launch_bias();
        }
        if (!status && gradients_.dsink.data != nullptr) status = launch_sinks();
        return status;
    }

private:
    const heed_plan &plan_;
    const heed_problem &p_;
    const heed_args &args_;
    const heed_gradients &gradients_;
    const CudaBackwardLayout &layout_;
    const KernelCall call_;
    cuda::OpSession session_;

    // A launch numbers the elements of dbias with 32 bits.
    heed_status check_bias() const {
        const View view = dbias_view(p_, plan_.views);
        Size elements = {1};
        for (const int64_t extent : view.extent) elements = elements * extent;
        if (elements.at_most(max_int32)) return HEED_OK;
        return fail(HEED_UNSUPPORTED,
                    "dbias of [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "] counts more than 2^31-1 elements; "
                    "%s on CUDA serves no more",
                    view.extent[0], view.extent[1], view.extent[2], view.extent[3], backward_function);
    }

    uint64_t stats() const { return cuda::address_of(static_cast<char *>(args_.workspace) + layout_.stats); }

    template <typename Arguments>
    heed_status launch_rows(Op op, const Arguments &arguments) {
        const OpKernel *kernel = nullptr;
        const heed_status status = session_.find(op, p_.dtype, p_.dtype, &kernel, score_mod_of(op, p_));
        return status ? status : cuda::launch_op(*kernel, arguments, session_.launches());
    }

    heed_status launch_stats() {
        cuda::BackwardStatsArguments arguments;
        arguments.batch = p_.batch;
        arguments.num_heads = p_.num_heads;
        arguments.head_dim = p_.head_dim_v;
        arguments.max_q_len = p_.max_q_len;
        arguments.stat_rows = layout_.stat_rows;
        set_rows(call_, &arguments);
        arguments.dout = cuda::address_of(gradients_.dout.data);
        arguments.tasks = call_.uniform != 0 ? 0 : cuda::address_of(call_.tasks.data);
        arguments.stats = stats();
        arguments.named = cuda::named(args_.workspace);
        return launch_rows(Op::attention_backward_stats, arguments);
    }

    template <typename Arguments>
    void set_logits(Arguments *arguments) {
        set_scores(p_, call_, arguments);
        set_values(DropoutValues(p_, args_), arguments);
        arguments->batch = p_.batch;
        arguments->uniform_q_len = p_.max_q_len;
        arguments->head_dim_v = p_.head_dim_v;
        arguments->stat_rows = layout_.stat_rows;
        arguments->tasks = call_.uniform != 0 ? 0 : cuda::address_of(call_.tasks.data);
        arguments->v = cuda::address_of(call_.v.data);
        arguments->v_batch = cuda::stride_of(call_.v, 3);
        arguments->v_token = cuda::stride_of(call_.v, 2);
        arguments->v_head = cuda::stride_of(call_.v, 1);
        arguments->dout = cuda::address_of(gradients_.dout.data);
        arguments->dout_batch = cuda::stride_of(call_.out, 3);
        arguments->dout_token = cuda::stride_of(call_.out, 2);
        arguments->dout_head = cuda::stride_of(call_.out, 1);
        set_score_buffers(arguments);
        arguments->stats = stats();
        arguments->named = cuda::named(args_.workspace);
    }

    template <typename Arguments>
    void set_score_buffers(Arguments *arguments) {
        uint64_t *const addresses[] = {&arguments->score_buffer_0, &arguments->score_buffer_1,
                                       &arguments->score_buffer_2, &arguments->score_buffer_3};
        int32_t *const sizes[] = {&arguments->score_size_0, &arguments->score_size_1, &arguments->score_size_2,
                                  &arguments->score_size_3};
        static_assert(std::size(addresses) == max_score_buffers, "an argument for each buffer");
        for (int n = 0; n < max_score_buffers; n++) {
            *addresses[n] = cuda::address_of(call_.score_buffers[n].data);
            *sizes[n] = call_.score_buffers[n].extent[0];
        }
    }

    heed_status launch_bias() {
        const View view = dbias_view(p_, plan_.views);
        cuda::BackwardBiasArguments arguments;
        set_logits(&arguments);
        arguments.dbias_batch = static_cast<int32_t>(view.extent[0]);
        arguments.dbias_heads = static_cast<int32_t>(view.extent[1]);
        arguments.dbias_rows = static_cast<int32_t>(view.extent[2]);
        arguments.dbias_keys = static_cast<int32_t>(view.extent[3]);
        arguments.dbias = cuda::address_of(gradients_.dbias.data);
        return launch_rows(Op::attention_backward_bias, arguments);
    }

    heed_status launch_sinks() {
        cuda::BackwardSinksArguments arguments;
        arguments.batch = p_.batch;
        arguments.num_heads = p_.num_heads;
        arguments.stat_rows = layout_.stat_rows;
        arguments.stats = stats();
        arguments.sink = cuda::address_of(call_.sink.data);
        arguments.dsink = cuda::address_of(gradients_.dsink.data);
        arguments.named = cuda::named(args_.workspace);
        return launch_rows(Op::attention_backward_sinks, arguments);
    }

    // On tensor cores where there is a kernel for them: the plain one, unless something changes logits.
    heed_status launch_sums(BackwardSide side) {
        const bool keys = side == backward_keys;
        cuda::BackwardSumsArguments arguments;
        set_logits(&arguments);
        arguments.all_keys = p_.kv_storage == HEED_KV_CONTIGUOUS;
        arguments.dq = keys ? 0 : cuda::address_of(gradients_.dq.data);
        arguments.dk = keys ? cuda::address_of(gradients_.dk.data) : 0;
        arguments.dv = keys ? cuda::address_of(gradients_.dv.data) : 0;
        const auto find = [&](Op op) {
            return find_backward_cores(op, p_.dtype, std::max(p_.head_dim, p_.head_dim_v), session_.capability(),
                                       score_mod_of(op, p_));
        };
        const OpKernel *cores = nullptr;
        if (features_of(p_) == 0 && p_.score_mod[0] == '\0') {
            cores = find(keys ? Op::attention_backward_keys_plain : Op::attention_backward_queries_plain);
        }
        if (cores == nullptr) cores = find(keys ? Op::attention_backward_keys : Op::attention_backward_queries);
        if (cores != nullptr) return cuda::launch_op(*cores, arguments, session_.launches());
        return launch_rows(Op::attention_backward, arguments);
    }
};

// Rows of all heads of a side, in whole blocks.
heed_status check_rows(const heed_problem &p, const char *heads_name, int32_t heads, const char *len_name,
                       int32_t len) {
    int64_t rows = 0;
    if (checked_mul(int64_t{p.batch} * heads, round_up(len, row_block), &rows) && rows <= max_rows) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "batch * %s * %s is %d * %d * %d; %s on CUDA serves up to 2^30", heads_name, len_name,
                p.batch, heads, len, backward_function);
}

// Without queries a plan has no kernel whose limits it checks, and yet dk and dv are written.
heed_status check_strides(const char *name, const View &view) {
    for (int n = 0; n < 4; n++) {
        if (view.stride[n] > max_int32) {
            return fail(HEED_UNSUPPORTED, "%s_layout.stride[%d] is %" PRId64 "; %s on CUDA serves up to 2^31-1", name,
                        n, view.stride[n], backward_function);
        }
    }
    return HEED_OK;
}

// False when 64 bits do not hold them.
bool append_parts(const heed_problem &p, int64_t table_rows, CudaBackwardLayout *layout) {
    Size total;
    append_part(&total, Size{table_rows} * num_sequence_fields * int64_t{sizeof(int32_t)});
    const int64_t stat_rows = round_up(p.max_q_len, row_block);
    layout->stat_rows = static_cast<int32_t>(stat_rows);
    const Size rows = Size{p.batch} * p.num_heads * stat_rows;
    layout->stats = append_part(&total, rows * backward_stat_bytes);
    layout->total = total.value;
    return total.fits;
}

// NO_DEVICE without kernels, UNSUPPORTED without those of a score function and beyond what a launch can number.
heed_status find_layout(const heed_plan &plan, CudaBackwardLayout *layout) {
    const heed_problem &p = plan.problem;
    *layout = CudaBackwardLayout{};
    heed_status status = check_rows(p, "num_heads", p.num_heads, "max_q_len", p.max_q_len);
    if (!status) status = check_rows(p, "num_kv_heads", p.num_kv_heads, "max_kv_len", p.max_kv_len);
    if (!status) status = check_strides("k", plan.views.k);
    if (!status) status = check_strides("v", plan.views.v);
    for (const Op op : {Op::attention_backward, Op::attention_backward_bias, Op::attention_backward_sinks,
                        Op::attention_backward_stats}) {
        const OpKernel *kernel = nullptr;
        if (op == Op::attention_backward_bias && !p.has_bias) continue;
        if (!status) status = best_cuda_op_kernel(op, p.dtype, p.dtype, INT_MAX, &kernel, score_mod_of(op, p));
    }
    if (!status) append_parts(p, is_uniform(p) ? 0 : p.batch, layout);
    return status;
}

}  // namespace

heed_status CudaBackend::backward_workspace(const heed_plan &plan, int64_t *bytes) const {
    CudaBackwardLayout layout;
    const heed_status status = find_layout(plan, &layout);
    *bytes = layout.total;
    return status;
}

heed_status CudaBackend::attention_backward(const heed_plan &plan, const heed_args &args,
                                            const heed_gradients &gradients) const {
    CudaBackwardLayout layout;
    const heed_status status = find_layout(plan, &layout);
    return status ? status : Backward(plan, args, gradients, layout).run();
}

int64_t CudaBackend::most_backward_bytes(const heed_problem &largest) const {
    CudaBackwardLayout layout = {};
    return append_parts(largest, largest.batch, &layout) ? layout.total : -1;
}

}  // namespace heed
