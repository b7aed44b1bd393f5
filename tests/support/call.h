// Runs an Attention through the public C API: layouts, guarded memory, plan, workspace, execute.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/reference/cuda_device.h"
#include "runtime/reference/forced_kernel.h"
#include "tests/support/guard.h"
#include "tests/support/make_attention.h"
#include "tests/support/storage.h"

namespace heed_test {

// Strides of [batch, len, heads, head_dim]; of paged tensors these are page and place in the page.
enum class Layout {
    bshd,
    bhsd,
    sbhd,
    padded,  // bshd with gaps after every head, position and sequence
    packed   // bshd by the all-zero default of heed_layout
};

// With `garbage`, dimensions of extent 1 get strides that mean nothing.
heed_layout make_layout(Layout layout, const std::vector<int64_t> &extents, bool garbage = false);

struct CallOptions {
    std::string kernel;  // "": the plan's own choice
    Layout q = Layout::packed, k = Layout::packed, v = Layout::packed, out = Layout::packed;
    bool garbage_strides = false;
    bool fused_qkv = false;  // q, k and v are views of one [batch, len, num_heads + 2 * num_kv_heads, head_dim]; dense
                             // with contiguous, or varlen with varlen
    heed_q_storage q_storage = HEED_Q_DENSE;
    heed_kv_storage kv_storage = HEED_KV_CONTIGUOUS;
    int32_t page_size = 16;
    uint64_t page_seed = 1;     // of the order of the pages
    bool share_pages = false;   // pages of equal keys and values are one page
    int32_t spare_columns = 1;  // of the page table, after the longest sequence that fits
    Flush flush = Flush::rear;
    int32_t offset = 0;  // elements between the buffers' starts and the tensors'
    bool want_lse = true;
    int32_t num_threads = 1;
    int32_t num_splits = 0;
    bool batch_invariant = false;
    const heed_parallel_for *pool = nullptr;

    CallOptions &with_kernel(const std::string &name);
    CallOptions &with_layout(Layout layout);  // of all four
    CallOptions &with_flush(Flush side);
    CallOptions &with_threads(int32_t threads);
    CallOptions &with_storage(heed_q_storage q_storage, heed_kv_storage kv_storage);
    CallOptions &with_pages(int32_t size);  // paged keys
};

using heed_reference::ForcedKernel;

struct PlanDeleter {
    void operator()(heed_plan *plan) const { heed_plan_destroy(plan); }
};
using Plan = std::unique_ptr<heed_plan, PlanDeleter>;

// One problem made ready: edit `problem`, prepare(), edit `args`, execute() as often as wanted.
// `a` must outlive it. Gaps and slack hold NaN, outputs hold NaN before the first execute, the workspace is poisoned.
// On CUDA (test_device) each execute copies all tensors to the device, waits, and copies what was written back: `args`
// and the results are host memory on every device.
class Call {
public:
    Call(const Attention &a, const CallOptions &options);

    heed_problem problem;
    heed_args args;
    int32_t device_status = 0;  // with metadata_on_device: as each execute finds and leaves it

    // Creates the plan and fills the buffers.
    heed_status prepare();
    heed_status execute();
    heed_status execute(const heed_plan *plan);                          // another plan of the same problem
    heed_status run();                                                   // prepare and execute
    void forget_out();                                                   // NaN where the results of an execute are
    heed_status probs(heed_probs_mode mode, const heed_tensor &result);  // packed

    const heed_plan *plan() const { return plan_.get(); }
    std::string kernel() const { return heed_plan_kernel_name(plan_.get()); }

    // Packed [batch, q_len, num_heads, head_dim_v] and [batch, num_heads, q_len] (empty when not wanted), whatever the
    // storage; 0 in rows that do not exist.
    std::vector<float> out() const;
    std::vector<float> lse() const;

    // Whether everything around and between the elements of out, lse and the workspace is untouched; and whether out
    // and lse themselves are, as after a failed call.
    bool canaries_intact() const;
    bool outputs_untouched() const;

    // On CUDA: run(args) with copies of this call's tensors on the device, which come back with those of `also`.
    heed_status run_on_device(const std::function<heed_status(const heed_args &)> &run, DeviceMirror *also = nullptr);

private:
    Extents q_extents(int32_t head_dim) const;
    Extents kv_extents(int32_t head_dim) const;
    Extents lse_extents() const;
    void make_inputs();
    void make_keys(const std::vector<float> &rows, const Extents &extents, const Strides &strides, heed_tensor *tensor,
                   heed_tensor *scales, GuardedBuffer *buffer, GuardedBuffer *scale_buffer);
    void make_fused_views();
    void make_metadata();
    void make_outputs();
    heed_tensor tensor_in(GuardedBuffer *buffer, int64_t span, heed_dtype dtype);

    const Attention &a_;
    CallOptions options_;
    Storage storage_;
    Plan plan_;
    bool device_guards_intact_ = true;
    GuardedBuffer q_, k_, v_, k_scale_, v_scale_, out_, lse_, mask_, bias_, workspace_;
    std::vector<GuardedBuffer> metadata_, head_arrays_;
};

// The problem as the API sees it, with layouts and switches of the options.
heed_problem make_problem(const Attention &a, const CallOptions &options);

}  // namespace heed_test
