// heed.LayerCache: a layer's keys and values, appended from and read as arrays.
#include <nanobind/stl/vector.h>

#include "runtime/python/array.h"
#include "runtime/python/bindings.h"
#include "runtime/python/errors.h"
#include "runtime/python/execution.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

std::vector<int32_t> kv_lens(const Cache &cache) {
    const heed_kv_view view = cache.view();
    return {view.kv_lens, view.kv_lens + view.batch};
}

// Into a cache of the layer's type or int8.
void append(Cache &cache, nb::handle k_new, nb::handle v_new, const std::vector<int32_t> &new_lens, uint64_t stream) {
    const heed_kv_view view = cache.view();
    const Array k = import_array("k", k_new, Access::read), v = import_array("v", v_new, Access::read);
    k.check_rank(4, "[batch, len, num_kv_heads, head_dim]");
    k.check_shape({view.batch, k.shape[1], view.num_kv_heads, view.head_dim}, "[batch, len, num_kv_heads, head_dim]");
    v.check_shape({view.batch, k.shape[1], view.num_kv_heads, view.head_dim_v},
                  "[batch, len, num_kv_heads, head_dim_v]");
    if (new_lens.size() != static_cast<size_t>(view.batch)) {
        refuse("there are %zu lengths; there must be %d, one for each sequence", new_lens.size(), view.batch);
    }
    v.check_device(k);
    const heed_layout k_layout = layout_of(k), v_layout = layout_of(v);
    const heed_execution execution = execution_on(k, stream);
    const nb::gil_scoped_release unlocked;
    check(heed_cache_append(cache.get(), k.extent(1), new_lens.data(), &k.tensor, &k_layout, &v.tensor, &v_layout,
                            &execution));
}

nb::dlpack::dtype element_of(heed_dtype dtype, bool bits) {
    using Code = nb::dlpack::dtype_code;
    const auto type = [](Code code, uint8_t width) { return nb::dlpack::dtype{static_cast<uint8_t>(code), width, 1}; };
    if (dtype == HEED_I8) return type(Code::Int, 8);
    if (dtype == HEED_F32) return type(Code::Float, 32);
    if (dtype == HEED_F16) return type(Code::Float, 16);
    return type(bits ? Code::UInt : Code::Bfloat, 16);
}

// The cache's memory as arrays that speak DLPack, valid until the cache changes: k, v [batch or num_pages, len,
// num_kv_heads, .]; of int8 k_scale, v_scale; of pages page_table. `bits`: bfloat16 as uint16, for NumPy.
// `cuda_device`: -1 for the CPU.
nb::dict memory(nb::handle self, bool bits, int32_t cuda_device) {
    const heed_kv_view view = nb::cast<const Cache &>(self).view();
    const bool paged = view.storage == HEED_KV_PAGED;
    const auto blocks = static_cast<size_t>(paged ? view.num_pages : view.batch);
    const auto len = static_cast<size_t>(paged ? view.page_size : view.capacity);
    const auto heads = static_cast<size_t>(view.num_kv_heads);
    const int32_t device = cuda_device < 0 ? nb::device::cpu::value : nb::device::cuda::value;
    const auto array = [&](const heed_tensor &tensor, std::vector<size_t> shape, std::vector<int64_t> strides) {
        return nb::cast(nb::ndarray<nb::array_api>(tensor.data, shape.size(), shape.data(), self, strides.data(),
                                                   element_of(tensor.dtype, bits), device, std::max(cuda_device, 0)));
    };
    const auto elements = [&](const heed_tensor &tensor, const heed_layout &layout, int32_t dim) {
        return array(tensor, {blocks, len, heads, static_cast<size_t>(dim)}, {layout.stride, layout.stride + max_rank});
    };
    nb::dict result;
    result["k"] = elements(view.k, view.k_layout, view.head_dim);
    result["v"] = elements(view.v, view.v_layout, view.head_dim_v);
    if (view.dtype == HEED_I8) {
        const auto row = static_cast<int64_t>(heads);
        const std::vector<int64_t> strides = {static_cast<int64_t>(len) * row, row, 1};
        result["k_scale"] = array(view.k_scale, {blocks, len, heads}, strides);
        result["v_scale"] = array(view.v_scale, {blocks, len, heads}, strides);
    }
    if (paged) {
        const size_t shape[] = {static_cast<size_t>(view.batch), static_cast<size_t>(view.max_pages_per_seq)};
        result["page_table"] = nb::cast(nb::ndarray<nb::numpy, const int32_t>(view.page_table, 2, shape, self));
    }
    return result;
}

}  // namespace

void bind_layer_cache(nb::module_ &module) {
    nb::class_<Cache>(module, "LayerCache")
        .def_prop_ro("kv_lens", kv_lens)
        .def("append", append, nb::arg("k"), nb::arg("v"), nb::arg("new_lens"), nb::arg("stream") = 0)
        .def("memory", memory, nb::arg("bits"), nb::arg("cuda_device"))
        .def("reset", &Cache::reset)
        .def("truncate", &Cache::truncate, nb::arg("sequence"), nb::arg("kv_len"))
        .def("fork", &Cache::fork, nb::arg("from_"), nb::arg("to"));
}

}  // namespace heed::python
