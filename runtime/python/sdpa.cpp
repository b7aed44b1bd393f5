// torch.nn.functional.scaled_dot_product_attention, and the attention of transformers, on dense tensors of the CPU
// without Python on the way.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "generators/contract/fields.h"
#include "runtime/python/attention.h"
#include "runtime/python/bindings.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

PyObject *interned(const char *text) { return PyUnicode_InternFromString(text); }

// What PyTorch has, looked up once; it lives as long as the process.
struct Torch {
    nb::handle empty_like, boolean, dispatch_keys, autocasts, forward_ad;
    PyObject *const raw_repr = interned("raw_repr"), *const dtype = interned("dtype"),
                    *const current_level = interned("_current_level");

    Torch() {
        const nb::module_ torch = nb::module_::import_("torch");
        empty_like = torch.attr("empty_like").inc_ref();
        boolean = torch.attr("bool").inc_ref();
        dispatch_keys = torch.attr("_C").attr("_dispatch_tls_local_include_set").inc_ref();
        autocasts = torch.attr("_C").attr("_is_any_autocast_enabled").inc_ref();
        forward_ad = torch.attr("autograd").attr("forward_ad").attr("__dict__").inc_ref();
    }

    uint64_t keys() const {
        const auto set = nb::steal(PyObject_CallNoArgs(dispatch_keys.ptr()));
        return PyLong_AsUnsignedLongLong(nb::steal(PyObject_CallMethodNoArgs(set.ptr(), raw_repr)).ptr());
    }

    // Whether PyTorch casts inputs, or carries tangents beside them.
    bool has_modes() const {
        if (!nb::steal(PyObject_CallNoArgs(autocasts.ptr())).is(nb::handle(Py_False))) return true;
        PyObject *const level = PyDict_GetItemWithError(forward_ad.ptr(), current_level);
        return level == nullptr || PyLong_AsLong(level) >= 0;
    }

    bool is_boolean(nb::handle tensor) const { return nb::steal(PyObject_GetAttr(tensor.ptr(), dtype)).is(boolean); }

    // For the result. Both arrays are [batch, len, heads, head_dim].
    nb::object empty(nb::handle query, const Array &q, const Array &v) const {
        if (q.shape[3] == v.shape[3]) return empty_like(query);
        return query.attr("new_empty")(nb::make_tuple(q.shape[0], q.shape[2], q.shape[1], v.shape[3]));
    }
};

const Torch &torch() {
    static const Torch functions;
    return functions;
}

// What torch._C._dispatch_tls_local_include_set() has without and within torch.inference_mode() when no mode (tracing,
// vmap, fake tensors) is between a call and its kernel.
uint64_t plain_keys = 0, inference_keys = 0;

bool runs_directly() {
    const uint64_t keys = torch().keys();
    return (keys == plain_keys || keys == inference_keys) && !torch().has_modes();
}

// The keys that the queries of a mask of transformers see: `count` from `first` on, within kv_lens and the window. What
// is empty is not given.
struct KeyRun {
    int64_t batch, kv_len;  // of the mask
    int64_t first, count;
    bool causal;
    int32_t window_left, window_right;
    std::vector<int32_t> q_offsets, kv_lens;
};

struct Inputs {
    nb::handle query, key, value;
    bool grouped;
    std::optional<float> scale;
};

// Adds q, k, v and out; None where they need copies or broadcasts.
nb::object add_inputs(AttentionCall *call, const Inputs &inputs, const KeyRun *run) {
    call->settings().heads_first = call->settings().out_heads_first = true;
    const Array &q = call->add("q", inputs.query);
    Array *const parts[] = {&call->add("k", inputs.key), &call->add("v", inputs.value)};
    const Array &k = *parts[0], &v = *parts[1];
    if (!q.torch || !k.torch || !v.torch || (!inputs.grouped && k.shape[2] != q.shape[2])) return nb::none();
    nb::object out = torch().empty(inputs.query, q, v);
    call->add("out", out);
    if (inputs.scale) call->settings().problem.scale = *inputs.scale;
    if (run == nullptr) return out;
    for (Array *array : parts) {
        const bool fits = q.shape[0] == run->batch && array->shape[1] == run->kv_len;
        if (!fits || array->tensor.dtype != q.tensor.dtype) return nb::none();
        array->keep(1, run->first, run->count);
    }
    return out;
}

// The result of compute(call), or None for calls that need copies, broadcasts, recording or a refusal: those go by
// Python.
template <typename Compute>
nb::object result_of(const Compute &compute) {
    if (!runs_directly()) return nb::none();
    try {
        AttentionCall call(6);
        nb::object out = compute(&call);
        if (out.is_none()) return out;
        call.settle();
        run_attention(&call, 0, nb::none());
        return out;
    } catch (const Error &) {
    } catch (const nb::python_error &) {  // of PyTorch's: no DLPack of nested tensors, no memory
    }
    return nb::none();
}

nb::object sdpa(nb::handle query, nb::handle key, nb::handle value, nb::handle mask, bool causal,
                std::optional<float> scale, bool grouped) {
    if (causal && !mask.is_none()) return nb::none();
    return result_of([&](AttentionCall *call) {
        nb::object out = add_inputs(call, {query, key, value, grouped, scale}, nullptr);
        if (out.is_none()) return out;
        if (!mask.is_none()) {
            const Array &given = call->add(torch().is_boolean(mask) ? "mask" : "bias", mask);
            if (!given.torch || given.rank < 2) return nb::object(nb::none());
        }
        call->settings().problem.causal = causal;
        return out;
    });
}

nb::object attend_run(nb::handle query, nb::handle key, nb::handle value, const KeyRun &run, const nb::dict &fields) {
    return result_of([&](AttentionCall *call) {
        call->set(fields);
        nb::object out = add_inputs(call, {query, key, value, true, std::nullopt}, &run);
        if (out.is_none()) return out;
        if (!run.q_offsets.empty()) call->add_lengths("q_offsets", run.q_offsets);
        if (!run.kv_lens.empty()) call->add_lengths("kv_lens", run.kv_lens);
        heed_problem &p = call->settings().problem;
        p.causal = run.causal;
        p.window_left = run.window_left;
        p.window_right = run.window_right;
        return out;
    });
}

}  // namespace

void bind_sdpa(nb::module_ &module) {
    module.attr("MAX_HEAD_DIM") = max_head_dim;
    module.def(
        "set_plain_keys",
        [](uint64_t plain, uint64_t inference) {
            plain_keys = plain;
            inference_keys = inference;
        },
        nb::arg("plain"), nb::arg("inference"));
    nb::class_<KeyRun>(module, "KeyRun")
        .def(nb::init<int64_t, int64_t, int64_t, int64_t, bool, int32_t, int32_t, std::vector<int32_t>,
                      std::vector<int32_t>>(),
             nb::arg("batch"), nb::arg("kv_len"), nb::arg("first"), nb::arg("count"), nb::arg("causal"),
             nb::arg("window_left"), nb::arg("window_right"), nb::arg("q_offsets"), nb::arg("kv_lens"));
    module.def("sdpa", sdpa, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("mask").none(),
               nb::arg("causal"), nb::arg("scale").none(), nb::arg("grouped"));
    module.def("attend_run", attend_run, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("run"),
               nb::arg("fields"));
}

}  // namespace heed::python
