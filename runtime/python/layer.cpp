#include "layer.h"

#include <cstddef>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "bindings.h"
#include "errors.h"
#include "execution.h"
#include "fields.h"
#include "heed/fields.h"

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

constexpr Field call_fields[] = {
    {"training", Kind::boolean, offsetof(heed_layer_args, training)},
    {"dropout_seed", Kind::uint64, offsetof(heed_layer_args, dropout_seed)},
    {"dropout_offset", Kind::uint64, offsetof(heed_layer_args, dropout_offset)},
};

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

// Arrays of one forward, by name, and where they go.
class LayerCall {
public:
    LayerCall(const nb::dict &arrays, const nb::dict &fields, const heed_layer_config &config) {
        set_fields(fields, call_fields, &args_);
        for (const auto [key, value] : arrays) {
            const auto name = nb::cast<std::string>(key);
            const bool written = name == "out" || name == "probs" || name == "workspace";
            arrays_.push_back(import_array(name, value, written ? Access::write : Access::read));
        }
        const Array &x = *find("x"), &y = *find("out");
        x.check_on(config.device);
        for (const Array &array : arrays_) {
            if (array.name != "q_lens" && array.name != "kv_lens") array.check_device(x);
        }
        x.check_rank(3, "[batch, q_len, dim_in]");
        x.check_shape({x.shape[0], x.shape[1], config.dim_in}, "[batch, q_len, dim_in]");
        x.check_dtype(config.dtype);
        y.check_shape({x.shape[0], x.shape[1], config.dim_out}, "[batch, q_len, dim_out]");
        args_.batch = x.extent(0);
        args_.q_len = x.extent(1);
        for (const char *name : {"x", "out", "memory", "key_padding", "probs"}) {
            if (find(name) != nullptr) find(name)->check_packed();
        }
        args_.x = x.tensor;
        args_.y = y.tensor;
        if (const Array *memory = find("memory")) set_memory(*memory, config);
        if (const Array *padding = find("key_padding")) args_.key_padding = padding->tensor;
        if (const Array *probs = find("probs")) args_.probs = probs->tensor;
        if (const Array *lens = find("q_lens")) args_.q_lens = lengths_of(*lens, args_.batch);
        if (const Array *lens = find("kv_lens")) args_.kv_lens = lengths_of(*lens, args_.batch);
        if (const Array *mask = find("mask")) {
            broadcast_layout(*mask, args_.mask_shape, &args_.mask_layout);
            args_.mask = mask->tensor;
        }
        if (const Array *bias = find("bias")) {
            broadcast_layout(*bias, args_.bias_shape, &args_.bias_layout);
            args_.bias = bias->tensor;
        }
    }

    LayerArgs &args() { return args_; }

    const Array *find(const std::string &name) const {
        for (const Array &array : arrays_) {
            if (array.name == name) return &array;
        }
        return nullptr;
    }

    // What a call on CUDA needs beside the layer's, see heed_layer_args.
    size_t joined_mask_bytes(const heed_layer_config &config) const {
        const Array *padding = find("key_padding");
        if (find("mask") == nullptr || find("bias") == nullptr || padding == nullptr) return 0;
        const int64_t heads = args_.mask_shape[1] == 1 ? 1 : config.num_heads;
        const int64_t rows = args_.mask_shape[2] == 1 ? 1 : args_.q_len;
        const int64_t keys = padding->rank == 0 ? 0 : padding->shape[padding->rank - 1];
        return static_cast<size_t>((args_.batch * heads * rows * keys + 127) / 128 * 128);
    }

private:
    void set_memory(const Array &memory, const heed_layer_config &config) {
        memory.check_rank(3, "[batch, memory_len, dim_memory]");
        memory.check_shape({args_.batch, memory.shape[1], config.dim_memory}, "[batch, memory_len, dim_memory]");
        args_.memory_len = memory.extent(1);
        args_.memory = memory.tensor;
    }

    LayerArgs args_;
    std::vector<Array> arrays_;
};

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
        LayerCall call(arrays, fields, config_);
        call.args().cache = cache == nullptr ? nullptr : cache->get();
        call.args().execution = execution_on(*call.find("x"), stream);
        const size_t more = config_.device == HEED_CUDA ? call.joined_mask_bytes(config_) : 0;
        const CallWorkspace workspace(config_.device, layer_.workspace_bytes() + more, call.find("workspace"),
                                      allocate);
        workspace.attach(call.args().execution);
        const nb::gil_scoped_release unlocked;
        layer_.forward(call.args());
    }

    void prepare(Cache &cache, nb::handle memory, nb::handle memory_lens, nb::handle workspace, uint64_t stream,
                 const nb::object &allocate) const {
        const Array tokens = import_array("memory", memory, Access::read);
        tokens.check_rank(3, "[batch, memory_len, dim_memory]");
        tokens.check_shape({tokens.shape[0], tokens.shape[1], config_.dim_memory}, "[batch, memory_len, dim_memory]");
        tokens.check_packed();
        tokens.check_on(config_.device);
        Array lens, given;
        if (!memory_lens.is_none()) lens = import_array("memory_lens", memory_lens, Access::read);
        const int32_t *counts = memory_lens.is_none() ? nullptr : lengths_of(lens, tokens.shape[0]);
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
        if (config_.dim_memory == 0) config_.dim_memory = config_.dim_in;
        if (config_.dim_out == 0) config_.dim_out = config_.dim_in;
        if (config_.head_dim == 0) config_.head_dim = config_.dim_in / config_.num_heads;
        if (config_.head_dim_v == 0) config_.head_dim_v = config_.head_dim;
        weights.check_shapes(config_);
    }

    LayerConfig config_;
    Layer layer_;
};

std::vector<int32_t> kv_lens(const Cache &cache) {
    const heed_kv_view view = cache.view();
    return {view.kv_lens, view.kv_lens + view.batch};
}

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
    nb::class_<Cache>(module, "LayerCache")
        .def_prop_ro("kv_lens", kv_lens)
        .def("reset", &Cache::reset)
        .def("truncate", &Cache::truncate, nb::arg("sequence"), nb::arg("kv_len"))
        .def("fork", &Cache::fork, nb::arg("from_"), nb::arg("to"));
    nb::class_<BoundLayer>(module, "Layer")
        .def(nb::init<const nb::dict &, const nb::dict &>(), nb::arg("fields"), nb::arg("weights"))
        .def("make_cache", &BoundLayer::make_cache, nb::arg("fields"), nb::arg("int8"))
        .def("forward", &BoundLayer::forward, nb::arg("arrays"), nb::arg("fields"), nb::arg("cache").none(),
             nb::arg("stream") = 0, nb::arg("allocate") = nb::none())
        .def("prepare", &BoundLayer::prepare, nb::arg("cache"), nb::arg("memory"), nb::arg("memory_lens").none(),
             nb::arg("workspace").none(), nb::arg("stream") = 0, nb::arg("allocate") = nb::none())
        .def_prop_ro("dim_out", [](const BoundLayer &layer) { return layer.config().dim_out; });
}

}  // namespace heed::python
