// heed.rope, heed.merge_states and heed.linear: operations of ops.h on arrays.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <nanobind/stl/vector.h>

#include "runtime/python/array.h"
#include "runtime/python/bindings.h"
#include "runtime/python/errors.h"
#include "runtime/python/execution.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

void rope(nb::handle x, nb::handle cos, nb::handle sin, nb::handle positions, nb::handle out, bool interleaved,
          uint64_t stream) {
    const Array from = import_array("x", x, Access::read), to = import_array("out", out, Access::write);
    const Array c = import_array("cos", cos, Access::read), s = import_array("sin", sin, Access::read);
    from.check_rank(4, "[batch, len, num_heads, head_dim]");
    to.check_shape({from.shape, from.shape + 4}, "x's");
    to.check_dtype(from.tensor.dtype);
    Array places;
    if (positions.is_none()) {
        c.check_rank(3, "[batch, len, rotary_dim / 2]");
        c.check_shape({from.shape[0], from.shape[1], c.shape[2]}, "[batch, len, rotary_dim / 2]");
    } else {
        c.check_rank(2, "[max_position, rotary_dim / 2]");
        places = import_array("positions", positions, Access::read);
        places.check_shape({from.shape[0], from.shape[1]}, "[batch, len]");
        places.check_packed(HEED_I32);
        places.check_on(HEED_CPU);
    }
    s.check_shape({c.shape, c.shape + c.rank}, "cos's");
    for (const Array *table : {&c, &s}) {
        table->check_packed(HEED_F32);
        table->check_device(from);
    }
    to.check_device(from);
    heed_rope_args args = {};
    args.struct_size = sizeof(args);
    args.dtype = from.tensor.dtype;
    args.batch = from.extent(0);
    args.len = from.extent(1);
    args.num_heads = from.extent(2);
    args.head_dim = from.extent(3);
    args.x = from.tensor;
    args.out = to.tensor;
    args.x_layout = layout_of(from);
    args.out_layout = layout_of(to);
    args.tables.rotary_dim = static_cast<int32_t>(std::min<int64_t>(2 * c.shape[c.rank - 1], INT32_MAX - 1));
    args.tables.interleaved = interleaved;
    args.tables.max_position = positions.is_none() ? 0 : c.extent(0);
    args.tables.cos = c.tensor;
    args.tables.sin = s.tensor;
    args.tables.positions = static_cast<const int32_t *>(places.tensor.data);
    args.execution = execution_on(from, stream);
    const nb::gil_scoped_release unlocked;
    check(heed_rope(&args));
}

bool same_strides(const heed_layout &a, const heed_layout &b) {
    return std::equal(std::begin(a.stride), std::end(a.stride), std::begin(b.stride));
}

void merge_states(const std::vector<nb::object> &outs, const std::vector<nb::object> &lses, nb::handle sink,
                  nb::handle out, nb::handle lse, uint64_t stream) {
    if (outs.empty() || outs.size() != lses.size()) {
        refuse("there are %zu outs and %zu lses; there must be as many of both, 1 or more", outs.size(), lses.size());
    }
    const Array to = import_array("out", out, Access::write);
    to.check_rank(4, "[batch, q_len, num_heads, head_dim_v]");
    const std::vector<int64_t> lse_shape = {to.shape[0], to.shape[2], to.shape[1]};
    const auto import_lse = [&](const std::string &name, nb::handle object, Access access) {
        Array array = import_array(name, object, access);
        array.check_shape(lse_shape, "[batch, num_heads, q_len]");
        array.check_packed(HEED_F32);
        array.check_device(to);
        return array;
    };
    heed_merge_args args = {};
    std::vector<Array> arrays;
    std::vector<heed_tensor> states, logarithms;
    for (size_t n = 0; n < outs.size(); n++) {
        const std::string index = "[" + std::to_string(n) + "]";
        const Array state = import_array("outs" + index, outs[n], Access::read);
        state.check_shape({to.shape, to.shape + 4}, "out's");
        state.check_dtype(to.tensor.dtype);
        state.check_device(to);
        const heed_layout layout = layout_of(state);
        if (n == 0) args.outs_layout = layout;
        if (!same_strides(layout, args.outs_layout)) {
            refuse("outs%s has the strides %s; they must be those of outs[0], %s", index.c_str(),
                   shape_text(layout.stride, 4).c_str(), shape_text(args.outs_layout.stride, 4).c_str());
        }
        arrays.push_back(state);
        arrays.push_back(import_lse("lses" + index, lses[n], Access::read));
        states.push_back(state.tensor);
        logarithms.push_back(arrays.back().tensor);
    }
    if (!sink.is_none()) {
        arrays.push_back(import_array("sink", sink, Access::read));
        arrays.back().check_shape({to.shape[2]}, "[num_heads]");
        arrays.back().check_packed(HEED_F32);
        arrays.back().check_device(to);
        args.sink = static_cast<const float *>(arrays.back().tensor.data);
    }
    if (!lse.is_none()) {
        arrays.push_back(import_lse("lse", lse, Access::write));
        args.lse = arrays.back().tensor;
    }
    args.struct_size = sizeof(args);
    args.dtype = to.tensor.dtype;
    args.batch = to.extent(0);
    args.q_len = to.extent(1);
    args.num_heads = to.extent(2);
    args.head_dim_v = to.extent(3);
    args.num_states = static_cast<int32_t>(outs.size());
    args.outs = states.data();
    args.lses = logarithms.data();
    args.out_layout = layout_of(to);
    args.out = to.tensor;
    args.execution = execution_on(to, stream);
    const nb::gil_scoped_release unlocked;
    check(heed_merge_states(&args));
}

// Packed on the CPU; on CUDA the arrays themselves.
class LinearWeights {
public:
    LinearWeights(nb::handle weight, nb::handle bias) : weight_(import_array("weight", weight, Access::read)) {
        weight_.check_rank(2, "[dim_out, dim_in]");
        const heed_layout layout = layout_of(weight_);
        if (layout.stride[3] != 1) {
            refuse("the last axis of weight has the stride %lld; it must be 1",
                   static_cast<long long>(layout.stride[3]));
        }
        if (!bias.is_none()) {
            bias_ = import_array("bias", bias, Access::read);
            bias_.check_shape({weight_.shape[0]}, "[dim_out]");
            bias_.check_packed(weight_.tensor.dtype);
            bias_.check_device(weight_);
        }
        const auto make = weight_.device == HEED_CUDA ? heed_linear_on_device : heed_linear_pack;
        detail::make(&packed_, make, dtype(), dim_in(), dim_out(), &weight_.tensor, layout.stride[2],
                     bias.is_none() ? nullptr : &bias_.tensor);
        if (weight_.device == HEED_CPU) weight_.source = bias_.source = {};
    }

    heed_dtype dtype() const { return weight_.tensor.dtype; }
    int32_t dim_in() const { return weight_.extent(1); }
    int32_t dim_out() const { return weight_.extent(0); }

    void multiply(nb::handle x, nb::handle out, uint64_t stream) const {
        const Array from = import_array("x", x, Access::read), to = import_array("out", out, Access::write);
        if (from.rank != 2) from.check_rank(3, "[batch, len, dim_in], or 2, [len, dim_in]");
        from.check_shape(from.shape_with_last(dim_in()), "[.., dim_in]");
        from.check_dtype(dtype());
        from.check_device(weight_);
        to.check_shape(from.shape_with_last(dim_out()), "x's except for the last axis, which is dim_out");
        to.check_dtype(dtype());
        to.check_device(weight_);
        heed_linear_out piece = {};
        piece.num_heads = 1;
        piece.head_dim = dim_out();
        piece.out = to.tensor;
        piece.layout = layout_of_rows(to);
        heed_linear_args args = {};
        args.struct_size = sizeof(args);
        args.batch = from.rank == 3 ? from.extent(0) : 1;
        args.len = from.extent(from.rank - 2);
        args.x = from.tensor;
        args.x_layout = layout_of_rows(from);
        args.num_outs = 1;
        args.outs = &piece;
        args.execution = execution_on(from, stream);
        const nb::gil_scoped_release unlocked;
        check(heed_linear(packed_.get(), &args));
    }

private:
    // For [batch, len, 1, columns].
    static heed_layout layout_of_rows(const Array &array) {
        const heed_layout layout = layout_of(array);  // [1, batch or 1, len, columns]
        return {{layout.stride[1], layout.stride[2], 0, layout.stride[3]}};
    }

    Array weight_, bias_;
    detail::Owned<heed_linear_weights, heed_linear_weights_destroy> packed_;
};

}  // namespace

void bind_ops(nb::module_ &module) {
    module.def("rope", rope, nb::arg("x"), nb::arg("cos"), nb::arg("sin"), nb::arg("positions").none(), nb::arg("out"),
               nb::arg("interleaved"), nb::arg("stream") = 0);
    module.def("merge_states", merge_states, nb::arg("outs"), nb::arg("lses"), nb::arg("sink").none(), nb::arg("out"),
               nb::arg("lse").none(), nb::arg("stream") = 0);
    nb::class_<LinearWeights>(module, "LinearWeights")
        .def(nb::init<nb::handle, nb::handle>(), nb::arg("weight"), nb::arg("bias") = nb::none())
        .def("multiply", &LinearWeights::multiply, nb::arg("x"), nb::arg("out"), nb::arg("stream") = 0)
        .def_prop_ro("dim_in", &LinearWeights::dim_in)
        .def_prop_ro("dim_out", &LinearWeights::dim_out);
}

}  // namespace heed::python
