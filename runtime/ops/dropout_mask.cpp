// heed_dropout_mask.
#include <algorithm>
#include <cstring>

#include "runtime/dropout.h"
#include "runtime/float_environment.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/ops/op_run.h"
#include "runtime/ops/rows.h"
#include "runtime/ranges.h"
#include "runtime/validate.h"

namespace heed {
namespace {

// Elements of a block: some 10 us of Philox.
constexpr int64_t block_elements = 16 << 10;

struct MaskCall {
    heed_problem problem;
    View keep;
    const OpKernel *kernel = nullptr;
    uint64_t seed, offset, threshold;
    int32_t rows_per_block, columns_per_block;
    int64_t row_blocks, column_blocks;  // of one head
};

void plan_blocks(MaskCall *call) {
    const int64_t columns = call->problem.max_kv_len, rows = call->problem.max_q_len;
    call->columns_per_block = static_cast<int32_t>(std::min(columns, block_elements));
    call->rows_per_block = static_cast<int32_t>(std::clamp<int64_t>(block_elements / columns, 1, rows));
    if (call->keep.stride[2] > INT32_MAX) call->rows_per_block = 1;
    call->column_blocks = (columns + call->columns_per_block - 1) / call->columns_per_block;
    call->row_blocks = (rows + call->rows_per_block - 1) / call->rows_per_block;
}

int run_block(const MaskCall &call, uint8_t *keep, int64_t index, char (&message)[512]) {
    const heed_problem &p = call.problem;
    const int64_t j = index % call.column_blocks * call.columns_per_block;
    const int64_t line = index / call.column_blocks;
    const int64_t i = line % call.row_blocks * call.rows_per_block, head = line / call.row_blocks;
    const int64_t b = head / p.num_heads, h = head % p.num_heads;
    const View &v = call.keep;
    const auto columns = static_cast<int32_t>(std::min<int64_t>(call.columns_per_block, p.max_kv_len - j));
    const auto rows = static_cast<int32_t>(std::min<int64_t>(call.rows_per_block, p.max_q_len - i));
    DropoutMaskArguments arguments;
    arguments.seed = call.seed;
    arguments.offset = call.offset;
    // 64 bits hold it: the mask's span is at least the number of its elements.
    arguments.first = static_cast<uint64_t>((head * p.max_q_len + i) * p.max_kv_len + j);
    arguments.row_length = static_cast<uint64_t>(p.max_kv_len);
    arguments.threshold = call.threshold;
    arguments.keep = {keep + b * v.stride[0] + h * v.stride[1] + i * v.stride[2] + j,
                      HEED_U8,
                      2,
                      {columns, rows},
                      {1, rows > 1 ? static_cast<int32_t>(v.stride[2]) : 0}};
    return call_op_kernel(*call.kernel, arguments, message);
}

heed_status check_mask_call(const heed_problem *problem, const heed_tensor *keep, const heed_layout *layout,
                            const heed_execution *execution, MaskCall *call) {
    ProblemViews views;
    heed_status status = check_problem(problem, &call->problem, &views);
    if (!status) status = check_execution(execution);
    if (!status) status = backend_of(execution).check_serves_host_memory("heed_dropout_mask");
    if (status) return status;
    if (keep == nullptr) return fail(HEED_INVALID_ARGUMENT, "heed_dropout_mask: keep is NULL");
    const heed_problem &p = call->problem;
    const heed_layout packed = {};
    status = make_view("keep", {{p.batch, p.num_heads, p.max_q_len, p.max_kv_len}},
                       layout == nullptr ? packed : *layout, Access::write, &call->keep);
    MemoryRanges ranges;
    return status ? status : ranges.add("keep", *keep, HEED_U8, call->keep.span, Access::write);
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_dropout_mask(const heed_problem *problem, uint64_t seed, uint64_t offset,
                                         const heed_tensor *keep, const heed_layout *keep_layout,
                                         const heed_execution *execution) {
    const heed::DefaultFloatEnvironment environment;
    heed::MaskCall call;
    heed_status status = heed::check_mask_call(problem, keep, keep_layout, execution, &call);
    if (status || call.keep.span == 0) return status;
    status = heed::find_op_kernel(heed::Op::dropout_mask, HEED_U8, HEED_U8, &call.kernel);
    if (status) return status;
    call.seed = seed;
    call.offset = offset;
    call.threshold = heed::dropout_threshold(call.problem.dropout_p);
    heed::plan_blocks(&call);
    auto *const data = static_cast<uint8_t *>(keep->data);
    const auto block = [&](int64_t index, int32_t, char(&message)[512]) {
        return heed::run_block(call, data, index, message);
    };
    const heed_problem &p = call.problem;
    const int64_t num_blocks = int64_t{p.batch} * p.num_heads * call.row_blocks * call.column_blocks;
    // An element costs about what sixteen moved bytes cost.
    const double bytes = 16.0 * p.batch * p.num_heads * p.max_q_len * p.max_kv_len;
    return heed::run_op("heed_dropout_mask", execution, heed::op_threads(execution, bytes), num_blocks, block);
}
