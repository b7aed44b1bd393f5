// heed.attention_backward, linear_backward and dropout_mask, and the pooling of heads.
#include <string>
#include <vector>

#include <nanobind/stl/string.h>

#include "runtime/python/attention.h"
#include "runtime/python/bindings.h"
#include "runtime/python/errors.h"
#include "runtime/python/execution.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

// Arrays of gradients by their names, which it keeps alive; those that are not there have data NULL.
class GradientArrays {
public:
    explicit GradientArrays(const nb::dict &given) : given_(given) { arrays_.reserve(given.size()); }

    // Like `of`, which may be NULL where the call has no such array.
    heed_tensor take(const char *name, const Array *of, Access access = Access::write) {
        if (!given_.contains(name)) return {};
        if (of == nullptr) refuse("%s is given; the call has nothing that it is the gradient of", name);
        arrays_.push_back(import_array(name, given_[name], access));
        arrays_.back().check_like(*of);
        return arrays_.back().tensor;
    }

private:
    const nb::dict &given_;
    std::vector<Array> arrays_;
};

// `arrays`, with out and lse, and `fields` are those of the attention; `gradients` has heed_gradients' dout and what of
// the others is wanted.
void attention_backward(const nb::dict &arrays, const nb::dict &fields, const nb::dict &gradients, uint64_t stream,
                        const nb::object &allocate) {
    AttentionCall call(arrays, fields);
    const CallArrays &given = call.given();
    if (given.out == nullptr || given.lse == nullptr) refuse("out or lse is missing; gradients are made from both");
    if (!gradients.contains("dout")) refuse("dout is missing");
    GradientArrays found(gradients);
    heed_gradients g = {};
    g.struct_size = sizeof(g);
    g.dout = found.take("dout", given.out, Access::read);
    g.dq = found.take("dq", given.q);
    g.dk = found.take("dk", given.k);
    g.dv = found.take("dv", given.v);
    g.dbias = found.take("dbias", given.bias);
    g.dsink = found.take("dsink", given.sink);
    const std::shared_ptr<const Plan> plan = find_plan(call.problem());
    const CallWorkspace workspace(call.problem().device, heed_attention_backward_workspace_bytes(plan->get()),
                                  given.workspace, allocate);
    workspace.attach(call.args());
    call.args().stream = reinterpret_cast<void *>(stream);
    const nb::gil_scoped_release unlocked;
    check(heed_attention_backward(plan->get(), &call.args(), &g));
}

// Packed arrays by the names of heed_linear_backward_args' tensors: dy, and x and weight as the wanted gradients need.
void linear_backward(const nb::dict &arrays, int32_t num_rows, int32_t dim_in, int32_t dim_out, uint64_t stream,
                     const nb::object &allocate) {
    heed_linear_backward_args args = {};
    args.struct_size = sizeof(args);
    args.num_rows = num_rows;
    args.dim_in = dim_in;
    args.dim_out = dim_out;
    const Array dy = import_array("dy", arrays["dy"], Access::read);
    args.dtype = dy.tensor.dtype;
    const struct {
        const char *name;
        heed_tensor heed_linear_backward_args::*tensor;
        Access access;
        bool may_be_f32;
    } parts[] = {{"dy", &heed_linear_backward_args::dy, Access::read, false},
                 {"x", &heed_linear_backward_args::x, Access::read, false},
                 {"weight", &heed_linear_backward_args::weight, Access::read, false},
                 {"dx", &heed_linear_backward_args::dx, Access::write, false},
                 {"dweight", &heed_linear_backward_args::dweight, Access::write, true},
                 {"dbias", &heed_linear_backward_args::dbias, Access::write, true}};
    std::vector<Array> kept;
    kept.reserve(std::size(parts));
    for (const auto &part : parts) {
        if (!arrays.contains(part.name)) continue;
        kept.push_back(import_array(part.name, arrays[part.name], part.access));
        const Array &array = kept.back();
        if (!part.may_be_f32 || array.tensor.dtype != HEED_F32) array.check_dtype(args.dtype);
        array.check_packed();
        array.check_device(dy);
        args.*part.tensor = array.tensor;
    }
    args.execution = execution_on(dy, stream);
    const CallWorkspace workspace(dy.device, heed_linear_backward_workspace_bytes(&args), nullptr, allocate);
    workspace.attach(args.execution);
    const nb::gil_scoped_release unlocked;
    check(heed_linear_backward(&args));
}

void dropout_mask(float dropout_p, uint64_t seed, uint64_t offset, nb::handle keep) {
    const Array array = import_array("out", keep, Access::write);
    array.check_rank(4, "[batch, num_heads, q_len, kv_len]");
    array.check_dtype(HEED_U8);
    array.check_on(HEED_CPU);
    Problem problem;
    problem.dropout_p = dropout_p;
    problem.batch = array.extent(0);
    problem.num_heads = problem.num_kv_heads = array.extent(1);
    problem.max_q_len = array.extent(2);
    problem.max_kv_len = array.extent(3);
    problem.head_dim = problem.head_dim_v = 1;  // of no meaning here
    const heed_layout layout = layout_of(array);
    const nb::gil_scoped_release unlocked;
    check(heed_dropout_mask(&problem, seed, offset, &array.tensor, &layout, nullptr));
}

// Both [heads * head_dim, dim]: heed_mha_to_gqa of `mha` into `gqa`, or the other way where `expands`.
void convert_heads(nb::handle mha, nb::handle gqa, int32_t num_heads, int32_t num_kv_heads, bool expands) {
    const Array many = import_array("weight", mha, expands ? Access::write : Access::read);
    const Array few = import_array("weight", gqa, expands ? Access::read : Access::write);
    for (const Array *array : {&many, &few}) {
        array->check_rank(2, "[heads * head_dim, dim]");
        array->check_packed();
        array->check_on(HEED_CPU);
    }
    const int32_t head_dim = num_heads > 0 ? many.extent(0) / num_heads : 0;
    const auto convert = expands ? heed_gqa_to_mha : heed_mha_to_gqa;
    const heed_tensor *const from = expands ? &few.tensor : &many.tensor, *const to =
                                                                              expands ? &many.tensor : &few.tensor;
    check(convert(num_heads, num_kv_heads, head_dim, many.extent(1), from, to));
}

}  // namespace

void bind_gradients(nb::module_ &module) {
    module.def("attention_backward", attention_backward, nb::arg("arrays"), nb::arg("fields"), nb::arg("gradients"),
               nb::arg("stream") = 0, nb::arg("allocate") = nb::none());
    module.def("linear_backward", linear_backward, nb::arg("arrays"), nb::arg("num_rows"), nb::arg("dim_in"),
               nb::arg("dim_out"), nb::arg("stream") = 0, nb::arg("allocate") = nb::none());
    module.def("dropout_mask", dropout_mask, nb::arg("dropout_p"), nb::arg("seed"), nb::arg("offset"), nb::arg("keep"));
    module.def("convert_heads", convert_heads, nb::arg("mha"), nb::arg("gqa"), nb::arg("num_heads"),
               nb::arg("num_kv_heads"), nb::arg("expands"));
}

}  // namespace heed::python
