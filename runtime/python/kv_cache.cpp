// Appends to and copies inside caches that are arrays.
#include <vector>

#include <nanobind/stl/vector.h>

#include "runtime/python/array.h"
#include "runtime/python/bindings.h"
#include "runtime/python/errors.h"
#include "runtime/python/execution.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

// What the arrays of a cache say: k, v, kv_lens and, as used, k_scale, v_scale, page_table.
class CacheArrays {
public:
    explicit CacheArrays(const nb::dict &arrays)
        : k_(import_array("k", arrays["k"], Access::write)), v_(import_array("v", arrays["v"], Access::write)),
          kv_lens_(import_array("kv_lens", arrays["kv_lens"], Access::write)) {
        k_.check_rank(4, "[.., .., num_kv_heads, head_dim]");
        v_.check_shape({k_.shape[0], k_.shape[1], k_.shape[2], v_.shape[3]}, "k's except for the last axis");
        v_.check_dtype(k_.tensor.dtype);
        v_.check_device(k_);
        kv_lens_.check_rank(1, "[batch]");
        view_.dtype = k_.tensor.dtype;
        view_.batch = kv_lens_.extent(0);
        view_.num_kv_heads = k_.extent(2);
        view_.head_dim = k_.extent(3);
        view_.head_dim_v = v_.extent(3);
        view_.k = k_.tensor;
        view_.v = v_.tensor;
        view_.k_layout = layout_of(k_);
        view_.v_layout = layout_of(v_);
        view_.kv_lens = lengths_of(kv_lens_, view_.batch);
        if (view_.dtype == HEED_I8) set_scales(arrays);
        arrays.contains("page_table") ? set_pages(arrays["page_table"]) : set_contiguous();
    }

    const heed_kv_view &view() const { return view_; }
    const Array &k() const { return k_; }

private:
    void set_scales(const nb::dict &arrays) {
        k_scale_ = import_array("k_scale", arrays["k_scale"], Access::write);
        v_scale_ = import_array("v_scale", arrays["v_scale"], Access::write);
        for (const Array *scale : {&k_scale_, &v_scale_}) {
            scale->check_shape({k_.shape[0], k_.shape[1], k_.shape[2]}, "k's without the last axis");
            scale->check_packed(HEED_F32);
            scale->check_device(k_);
        }
        view_.k_scale = k_scale_.tensor;
        view_.v_scale = v_scale_.tensor;
    }

    void set_pages(nb::handle table) {
        page_table_ = import_array("page_table", table, Access::read);
        page_table_.check_shape({view_.batch, page_table_.shape[1]}, "[batch, max_pages_per_seq]");
        page_table_.check_packed(HEED_I32);
        page_table_.check_on(HEED_CPU);
        view_.storage = HEED_KV_PAGED;
        view_.num_pages = k_.extent(0);
        view_.page_size = k_.extent(1);
        view_.max_pages_per_seq = page_table_.extent(1);
        view_.page_table = static_cast<const int32_t *>(page_table_.tensor.data);
    }

    void set_contiguous() {
        k_.check_shape({view_.batch, k_.shape[1], k_.shape[2], k_.shape[3]},
                       "[batch, capacity, num_kv_heads, head_dim]");
        view_.storage = HEED_KV_CONTIGUOUS;
        view_.capacity = k_.extent(1);
    }

    Array k_, v_, kv_lens_, k_scale_, v_scale_, page_table_;
    heed_kv_view view_ = {};
};

void kv_append(const nb::dict &arrays, nb::handle k_new, nb::handle v_new, const std::vector<int32_t> &new_lens,
               uint64_t stream) {
    const CacheArrays cache(arrays);
    const heed_kv_view &view = cache.view();
    const Array k = import_array("k_new", k_new, Access::read), v = import_array("v_new", v_new, Access::read);
    k.check_rank(4, "[batch, new_len, num_kv_heads, head_dim]");
    k.check_shape({view.batch, k.shape[1], view.num_kv_heads, view.head_dim},
                  "[batch, new_len, num_kv_heads, head_dim]");
    v.check_shape({view.batch, k.shape[1], view.num_kv_heads, view.head_dim_v},
                  "[batch, new_len, num_kv_heads, head_dim_v]");
    if (view.dtype != HEED_I8) k.check_dtype(view.dtype);
    v.check_dtype(k.tensor.dtype);
    k.check_device(cache.k());
    v.check_device(cache.k());
    heed_kv_append_args args = {};
    args.struct_size = sizeof(args);
    args.dtype = k.tensor.dtype;
    args.new_len = k.extent(1);
    args.new_lens = new_lens.data();
    args.k_new = k.tensor;
    args.v_new = v.tensor;
    args.k_new_layout = layout_of(k);
    args.v_new_layout = layout_of(v);
    args.cache = view;
    args.execution = execution_on(cache.k(), stream);
    const nb::gil_scoped_release unlocked;
    check(heed_kv_append(&args));
}

// One range: heed_kv_copy's from, to, begin and count.
void kv_copy(const nb::dict &arrays, int32_t from, int32_t to, int32_t begin, int32_t count, uint64_t stream) {
    const CacheArrays cache(arrays);
    const heed_kv_range range = {from, to, begin, count};
    const heed_execution execution = execution_on(cache.k(), stream);
    const nb::gil_scoped_release unlocked;
    check(heed_kv_copy(&cache.view(), &range, 1, &execution));
}

}  // namespace

void bind_kv_cache(nb::module_ &module) {
    module.def("kv_append", kv_append, nb::arg("arrays"), nb::arg("k_new"), nb::arg("v_new"), nb::arg("new_lens"),
               nb::arg("stream") = 0);
    module.def("kv_copy", kv_copy, nb::arg("arrays"), nb::arg("from_"), nb::arg("to"), nb::arg("begin"),
               nb::arg("count"), nb::arg("stream") = 0);
}

}  // namespace heed::python
