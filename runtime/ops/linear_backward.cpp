// heed_linear_backward: checks of the caller's arguments, and the order of the steps.
#include <algorithm>
#include <cinttypes>

#include "runtime/float_environment.h"
#include "runtime/ops/steps.h"
#include "runtime/ranges.h"
#include "runtime/scratch.h"

namespace heed {
namespace {

constexpr const char *function = "heed_linear_backward";

constexpr std::initializer_list<Op> linear_gradient_ops = {Op::add, Op::column_sums, Op::linear, Op::transpose};

heed_status check_fields(const heed_linear_backward_args &a) {
    heed_status status = check_execution(&a.execution);
    if (!status) status = check_float_dtype("dtype", a.dtype);
    if (!status) status = check_int("num_rows", a.num_rows, 0, INT32_MAX);
    if (!status) status = check_int("dim_in", a.dim_in, 1, INT32_MAX);
    return status ? status : check_int("dim_out", a.dim_out, 1, INT32_MAX);
}

// The bytes of what is added to the caller's tensors once it is whole; after it, where that is of the workspace,
// StepRun::scratch.
int64_t dweight_bytes(const heed_linear_backward_args &a) {
    const int64_t elements = a.dweight.data == nullptr ? 0 : int64_t{a.dim_out} * a.dim_in;
    int64_t bytes = 0;
    const bool fits = checked_mul(elements, dtype_bytes(dtype_of_sum(a.dweight, a.dtype)), &bytes) &&
                      checked_add(bytes, scratch_alignment - 1, &bytes);
    return (fits ? bytes : INT64_MAX) / scratch_alignment * scratch_alignment;
}

// False beyond 2^63-1 bytes.
bool find_workspace(const heed_linear_backward_args &a, int64_t *bytes) {
    const Backend &backend = backend_of(a.execution.device);
    const int64_t elements = backend.linear_gradient_scratch({a.num_rows, a.dim_in, a.dim_out}),
                  sums = backend.column_sums_scratch(a.num_rows, a.dim_out) * int64_t{sizeof(float)};
    int64_t products = 0;
    if (!checked_mul(elements, dtype_bytes(a.dtype), &products) ||
        !checked_add(backend.workspace_share(dweight_bytes(a)), std::max(products, sums) + scratch_alignment - 1,
                     bytes)) {
        return false;
    }
    *bytes = *bytes / scratch_alignment * scratch_alignment;
    return true;
}

heed_status check_workspace(const heed_linear_backward_args &a, MemoryRanges *ranges) {
    const heed_execution &e = a.execution;
    int64_t needed = 0;
    if (!find_workspace(a, &needed)) {
        return fail(HEED_UNSUPPORTED, "the workspace of %s is beyond 2^63-1 bytes", function);
    }
    if (needed == 0) return HEED_OK;
    if (e.workspace_bytes < static_cast<size_t>(needed)) {
        return fail(HEED_WORKSPACE_TOO_SMALL, "execution.workspace_bytes is %zu; %s needs %" PRId64 " on CUDA",
                    e.workspace_bytes, function, needed);
    }
    return ranges->add("execution.workspace", e.workspace, needed / scratch_alignment, scratch_alignment,
                       Access::write);
}

heed_status check_memory(const heed_linear_backward_args &a) {
    const int64_t inputs = int64_t{a.num_rows} * a.dim_in, outputs = int64_t{a.num_rows} * a.dim_out;
    const int64_t weights = int64_t{a.dim_out} * a.dim_in;
    MemoryRanges ranges;
    heed_status status = HEED_OK;
    const auto add = [&](const char *name, const heed_tensor &tensor, heed_dtype dtype, int64_t span, Access access) {
        if (!status) status = ranges.add(name, tensor, dtype, span, access);
    };
    const auto add_sum = [&](const char *name, const heed_tensor &tensor, int64_t span) {
        if (tensor.data != nullptr) add(name, tensor, dtype_of_sum(tensor, a.dtype), span, Access::write);
    };
    if (a.dx.data != nullptr) add("dx", a.dx, a.dtype, inputs, Access::write);
    add_sum("dweight", a.dweight, weights);
    add_sum("dbias", a.dbias, a.dim_out);
    if (a.dx.data != nullptr) add("weight", a.weight, a.dtype, weights, Access::read);
    if (a.dweight.data != nullptr) add("x", a.x, a.dtype, inputs, Access::read);
    add("dy", a.dy, a.dtype, outputs, Access::read);
    return status || a.num_rows == 0 ? status : check_workspace(a, &ranges);
}

// What may fail for want of memory comes first.
heed_status linear_backward(const heed_linear_backward_args &a) {
    StepRun run = {function, a.dtype, a.execution};
    const Backend &backend = run.backend();
    const LinearRows size = {a.num_rows, a.dim_in, a.dim_out};
    const int64_t bytes = dweight_bytes(a);
    HeapArray<char> heap;
    char *dweight = nullptr;
    heed_status status = backend.take_temporary({function, a.execution, 0, bytes}, bytes, &heap, &dweight);
    run.scratch = dweight + backend.workspace_share(bytes);
    const heed_tensor sums = {dweight, int64_t{a.dim_out} * a.dim_in, dtype_of_sum(a.dweight, a.dtype)};
    if (!status && a.dweight.data != nullptr) {
        status = backend.weight_gradient(run, size, a.dy.data, a.x.data, sums.data, sums.dtype);
    }
    if (!status && a.dx.data != nullptr) {
        const WeightSource weight = WeightSource::row_major(a.weight.data, a.dim_in, a.dim_out, a.dim_in);
        status = backend.input_gradient(run, size, a.dy.data, weight, a.dx.data);
    }
    if (!status && a.dweight.data != nullptr) {
        status = backend.add_elements(run, sums, a.dweight.data, sums.dtype);
    }
    if (status || a.dbias.data == nullptr) return status;
    return backend.add_column_sums(run, a.dy.data, {a.num_rows, a.dim_out, 0, a.dim_out}, a.dbias.data,
                                   dtype_of_sum(a.dbias, a.dtype));
}

}  // namespace
}  // namespace heed

extern "C" {

size_t heed_linear_backward_workspace_bytes(const heed_linear_backward_args *args) {
    const heed::DefaultFloatEnvironment environment;
    int64_t bytes = 0;
    if (args == nullptr || heed::check_fields(*args) || !heed::find_workspace(*args, &bytes)) return 0;
    return static_cast<size_t>(bytes);
}

heed_status heed_linear_backward(const heed_linear_backward_args *args) {
    const heed::DefaultFloatEnvironment environment;
    heed_status status = heed::check_given("heed_linear_backward", "args", "heed_linear_backward_args", args);
    if (status) return status;
    const heed_linear_backward_args a = *args;
    status = heed::check_fields(a);
    if (!status) status = heed::backend_of(a.execution.device).check_launches(heed::linear_gradient_ops, a.dtype);
    if (!status) status = heed::check_memory(a);
    return status || a.num_rows == 0 ? status : heed::linear_backward(a);
}

}  // extern "C"
