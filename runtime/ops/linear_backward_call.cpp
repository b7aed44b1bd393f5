// heed_linear_backward: checks of the caller's arguments, and the order of the steps.
#include "ops/linear_backward.h"
#include "ranges.h"

namespace heed {
namespace {

constexpr const char *function = "heed_linear_backward";

heed_dtype dtype_of_sum(const heed_tensor &tensor, heed_dtype dtype) {
    return tensor.dtype == HEED_F32 ? HEED_F32 : dtype;
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
    return status;
}

// What may fail for want of memory comes first.
heed_status linear_backward(const heed_linear_backward_args &a) {
    const GradientRun run = {function, a.dtype, a.execution};
    const LinearRows size = {a.num_rows, a.dim_in, a.dim_out};
    HeapArray<char> dweight;
    heed_status status = HEED_OK;
    if (a.dweight.data != nullptr) {
        status = dweight.allocate(function, int64_t{a.dim_out} * a.dim_in * dtype_bytes(a.dtype));
        if (!status) status = linear_weight_gradient(run, size, a.dy.data, a.x.data, dweight.data());
    }
    if (!status && a.dx.data != nullptr) {
        const WeightSource weight = WeightSource::row_major(a.weight.data, a.dim_in, a.dim_out, a.dim_in);
        status = linear_input_gradient(run, size, a.dy.data, weight, a.dx.data);
    }
    if (!status && a.dweight.data != nullptr) {
        status = add_elements(run, dweight.data(), int64_t{a.dim_out} * a.dim_in, a.dweight.data,
                              dtype_of_sum(a.dweight, a.dtype));
    }
    if (status || a.dbias.data == nullptr) return status;
    return add_column_sums(run, a.dy.data, {a.num_rows, a.dim_out, 0, a.dim_out}, a.dbias.data,
                           dtype_of_sum(a.dbias, a.dtype));
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_linear_backward(const heed_linear_backward_args *args) {
    if (args == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_linear_backward: args is NULL");
    heed_status status =
        heed::check_struct_size("heed_linear_backward_args", args->struct_size, sizeof(heed_linear_backward_args));
    if (status) return status;
    const heed_linear_backward_args a = *args;
    status = heed::check_execution(&a.execution);
    if (!status) status = heed::refuse_cuda(heed::function, &a.execution);
    if (!status) status = heed::check_float_dtype("dtype", a.dtype);
    if (!status) status = heed::check_int("num_rows", a.num_rows, 0, INT32_MAX);
    if (!status) status = heed::check_int("dim_in", a.dim_in, 1, INT32_MAX);
    if (!status) status = heed::check_int("dim_out", a.dim_out, 1, INT32_MAX);
    if (!status) status = heed::check_memory(a);
    return status || a.num_rows == 0 ? status : heed::linear_backward(a);
}
