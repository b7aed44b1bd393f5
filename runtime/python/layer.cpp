#include "runtime/python/layer.h"

#include <cstddef>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "heed/fields.h"
#include "runtime/python/array.h"
#include "runtime/python/bindings.h"
#include "runtime/python/errors.h"
#include "runtime/python/execution.h"
#include "runtime/python/fields.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

// Does not compile when the lists lack a field of heed_layer_config.
[[maybe_unused]] void expect_every_field(const heed_layer_config &config) {
#define HEED_NAME(name, ...) , name
    [[maybe_unused]] const auto &[struct_size, dtype HEED_LAYER_FIELDS(HEED_NAME) HEED_LOGIT_FIELDS(HEED_NAME)] =
        config;
#undef HEED_NAME
}

#define HEED_IN_CONFIG(name, ...)                                                                                      \
    {#name, kind_of(decltype(heed_layer_config::name)()), offsetof(heed_layer_config, name)},
constexpr Field config_fields[] = {HEED_LAYER_FIELDS(HEED_IN_CONFIG) HEED_LOGIT_FIELDS(HEED_IN_CONFIG)};
#undef HEED_IN_CONFIG

constexpr Field cache_fields[] = {
    {"batch", Kind::int32, offsetof(heed_cache_config, batch)},
    {"capacity", Kind::int32, offsetof(heed_cache_config, capacity)},
    {"num_pages", Kind::int32, offsetof(heed_cache_config, num_pages)},
    {"page_size", Kind::int32, offsetof(heed_cache_config, page_size)},
};

LayerConfig make_config(const nb::dict &fields, const LayerWeightArrays &weights) {
    LayerConfig config;
    config.dtype = weights.dtype();
    set_fields(fields, config_fields, &config);
    return config;
}

class BoundLayer {
public:
    BoundLayer(const nb::dict &fields, const nb::dict &weights) : BoundLayer(fields, LayerWeightArrays(weights)) {}

    Cache make_cache(const nb::dict &fields, bool int8) const {
        CacheConfig config;
        config.dtype = int8 ? HEED_I8 : config_.dtype;
        set_fields(fields, cache_fields, &config);
        config.storage = config.page_size != 0 ? HEED_KV_PAGED : HEED_KV_CONTIGUOUS;
        return Cache(layer_, config);
    }

    void forward(const nb::dict &arrays, const nb::dict &fields, Cache *cache, uint64_t stream,
                 const nb::object &allocate) const {
        LayerCall call(arrays, fields, config_, cache);
        call.args().execution = execution_on(*call.find("x"), stream);
        const size_t more = config_.device == HEED_CUDA ? call.joined_mask_bytes(config_) : 0;
        const CallWorkspace workspace(config_.device, layer_.workspace_bytes() + more, call.find("workspace"),
                                      allocate);
        workspace.attach(call.args().execution);
        const nb::gil_scoped_release unlocked;
        layer_.forward(call.args());
    }

    // `arrays` and `fields` are forward's, without out; `gradients`: dy, and what is wanted of dx, dcontext, dbias and
    // of the weights by their names, all of which is summed into.
    void backward(const nb::dict &arrays, const nb::dict &fields, const nb::dict &gradients, uint64_t stream,
                  const nb::object &allocate) const {
        LayerCall call(arrays, fields, config_, nullptr);
        call.args().execution = execution_on(*call.find("x"), stream);
        const LayerGradientArrays wanted(gradients, call, config_);
        const size_t more = config_.device == HEED_CUDA ? call.joined_mask_bytes(config_) + wanted.dbias_bytes() : 0;
        const CallWorkspace workspace(config_.device, heed_layer_backward_workspace_bytes(layer_.get()) + more, nullptr,
                                      allocate);
        workspace.attach(call.args().execution);
        const nb::gil_scoped_release unlocked;
        check(heed_layer_backward(layer_.get(), &call.args(), &wanted.gradients()));
    }

    void prepare(Cache &cache, nb::handle context, nb::handle context_lens, nb::handle workspace, uint64_t stream,
                 const nb::object &allocate) const {
        const Array tokens = import_array("context", context, Access::read);
        tokens.check_rank(3, "[batch, context_len, dim_context]");
        tokens.check_shape({tokens.shape[0], tokens.shape[1], config_.dim_context},
                           "[batch, context_len, dim_context]");
        tokens.check_packed();
        tokens.check_on(config_.device);
        Array lens, given;
        if (!context_lens.is_none()) lens = import_array("context_lens", context_lens, Access::read);
        const int32_t *counts = context_lens.is_none() ? nullptr : lengths_of(lens, tokens.shape[0]);
        if (!workspace.is_none()) {
            given = import_array("workspace", workspace, Access::write);
            given.check_device(tokens);
        }
        heed_execution execution = execution_on(tokens, stream);
        const CallWorkspace scratch(config_.device, layer_.workspace_bytes(), workspace.is_none() ? nullptr : &given,
                                    allocate);
        scratch.attach(execution);
        const nb::gil_scoped_release unlocked;
        layer_.prepare(cache.get(), tokens.extent(0), tokens.extent(1), tokens.tensor, counts, execution);
    }

    const heed_layer_config &config() const { return config_; }

private:
    BoundLayer(const nb::dict &fields, const LayerWeightArrays &weights)
        : config_(make_config(fields, weights)), layer_(config_, weights.weights()) {
        if (config_.dim_context == 0) config_.dim_context = config_.dim_in;
        if (config_.dim_out == 0) config_.dim_out = config_.dim_in;
        if (config_.head_dim == 0) config_.head_dim = config_.dim_in / config_.num_heads;
        if (config_.head_dim_v == 0) config_.head_dim_v = config_.head_dim;
        weights.check_shapes(config_);
    }

    LayerConfig config_;
    Layer layer_;
};

}  // namespace

void bind_layer(nb::module_ &module) {
    nb::class_<StoredTensor>(module, "StoredTensor")
        .def_prop_ro("shape", [](const StoredTensor &stored) { return stored.tensor.shape; })
        .def_prop_ro("dtype", [](const StoredTensor &stored) { return dtype_name(stored.tensor.tensor.dtype); });
    module.def(
        "stored_tensors",
        [](const std::string &path, const std::vector<std::string> &names) {
            const auto file = std::make_shared<const WeightsFile>(path);
            std::vector<StoredTensor> result;
            for (const std::string &name : names) result.push_back({file, file->find(name)});
            return result;
        },
        nb::arg("path"), nb::arg("names"));
    nb::class_<BoundLayer>(module, "Layer")
        .def(nb::init<const nb::dict &, const nb::dict &>(), nb::arg("fields"), nb::arg("weights"))
        .def("make_cache", &BoundLayer::make_cache, nb::arg("fields"), nb::arg("int8"))
        .def("forward", &BoundLayer::forward, nb::arg("arrays"), nb::arg("fields"), nb::arg("cache").none(),
             nb::arg("stream") = 0, nb::arg("allocate") = nb::none())
        .def("backward", &BoundLayer::backward, nb::arg("arrays"), nb::arg("fields"), nb::arg("gradients"),
             nb::arg("stream") = 0, nb::arg("allocate") = nb::none())
        .def("prepare", &BoundLayer::prepare, nb::arg("cache"), nb::arg("context"), nb::arg("context_lens").none(),
             nb::arg("workspace").none(), nb::arg("stream") = 0, nb::arg("allocate") = nb::none())
        .def_prop_ro("dim_out", [](const BoundLayer &layer) { return layer.config().dim_out; });
}

}  // namespace heed::python
