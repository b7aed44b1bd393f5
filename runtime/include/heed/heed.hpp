/// @file
/// A thin C++17 layer over heed.h: ownership and exceptions, nothing else. Every rule of heed.h holds.
#ifndef HEED_HEED_HPP
#define HEED_HEED_HPP

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "heed.h"

namespace heed {

/// A failed call: its status, and heed_last_error() as what().
class Error : public std::runtime_error {
public:
    Error(heed_status status, const std::string &sentence) : std::runtime_error(sentence), status_(status) {}

    heed_status status() const noexcept { return status_; }

private:
    heed_status status_;
};

/// Throws Error, unless the status is HEED_OK.
inline void check(heed_status status) {
    if (status != HEED_OK) throw Error(status, heed_last_error());
}

/// heed_problem with its defaults.
struct Problem : heed_problem {
    Problem() : heed_problem() { check(heed_problem_init(this)); }
};

/// heed_args with its defaults.
struct Args : heed_args {
    Args() : heed_args() { check(heed_args_init(this)); }
};

/// Views of `size` elements. Heed writes to out and lse only.
inline heed_tensor tensor(const float *data, size_t size) {
    return {const_cast<float *>(data), static_cast<int64_t>(size), HEED_F32};
}
/// The same for a mask.
inline heed_tensor tensor(const uint8_t *data, size_t size) {
    return {const_cast<uint8_t *>(data), static_cast<int64_t>(size), HEED_U8};
}
/// 16-bit patterns: `dtype` is HEED_F16 or HEED_BF16.
inline heed_tensor tensor(const uint16_t *data, size_t size, heed_dtype dtype) {
    return {const_cast<uint16_t *>(data), static_cast<int64_t>(size), dtype};
}

/// Memory for heed_args.workspace, aligned as it must be. One per running call.
class Workspace {
public:
    explicit Workspace(size_t bytes) : bytes_(bytes), data_(bytes == 0 ? nullptr : ::operator new(bytes, alignment)) {}

    void *data() const noexcept { return data_.get(); }
    size_t bytes() const noexcept { return bytes_; }
    void attach(heed_args &args) const noexcept {
        args.workspace = data();
        args.workspace_bytes = bytes_;
    }
    void attach(heed_execution &execution) const noexcept {
        execution.workspace = data();
        execution.workspace_bytes = bytes_;
    }

private:
    static constexpr std::align_val_t alignment{128};
    struct Free {
        void operator()(void *data) const noexcept { ::operator delete(data, alignment); }
    };
    size_t bytes_;
    std::unique_ptr<void, Free> data_;
};

namespace detail {

template <typename Handle, void (*destroy)(Handle *)>
struct Destroy {
    void operator()(Handle *handle) const noexcept { destroy(handle); }
};
template <typename Handle, void (*destroy)(Handle *)>
using Owned = std::unique_ptr<Handle, Destroy<Handle, destroy>>;

/// What `create` makes of the arguments, at its last one.
template <typename Handle, typename Create, typename... Arguments>
void make(Handle *owned, Create create, Arguments... arguments) {
    typename Handle::pointer made = nullptr;
    check(create(arguments..., &made));
    owned->reset(made);
}

template <typename Info>
std::vector<Info> all_infos(int32_t count, heed_status (*get_info)(int32_t, Info *)) {
    std::vector<Info> infos(static_cast<size_t>(count));
    for (size_t i = 0; i < infos.size(); i++) {
        infos[i].struct_size = sizeof(infos[i]);
        check(get_info(static_cast<int32_t>(i), &infos[i]));
    }
    return infos;
}

}  // namespace detail

/// A plan, owned. Movable; execute may run in many threads at once, each with its own workspace and outputs.
class Plan {
public:
    explicit Plan(const heed_problem &problem) { detail::make(&plan_, heed_plan_create, &problem); }

    void execute(const heed_args &args) const { check(heed_execute(plan_.get(), &args)); }
    size_t workspace_bytes() const noexcept { return heed_plan_workspace_bytes(plan_.get()); }
    Workspace make_workspace() const { return Workspace(workspace_bytes()); }
    std::string kernel_name() const { return heed_plan_kernel_name(plan_.get()); }
    std::string explain() const { return heed_plan_explain(plan_.get()); }
    int32_t num_splits() const noexcept { return heed_plan_num_splits(plan_.get()); }
    const heed_plan *get() const noexcept { return plan_.get(); }

private:
    detail::Owned<heed_plan, heed_plan_destroy> plan_;
};

// ---- Whole attention layers, see layer.h ------------------------------------------------------------------------

/// heed_layer_config with its defaults.
struct LayerConfig : heed_layer_config {
    LayerConfig() : heed_layer_config() { check(heed_layer_config_init(this)); }
};
/// heed_layer_weights without any weight.
struct LayerWeights : heed_layer_weights {
    LayerWeights() : heed_layer_weights() { struct_size = sizeof(heed_layer_weights); }
};
/// heed_layer_args, zeroed except its size; likewise CacheConfig.
struct LayerArgs : heed_layer_args {
    LayerArgs() : heed_layer_args() { struct_size = sizeof(heed_layer_args); }
};
/// heed_layer_gradients that ask for none; set dy and what is wanted.
struct LayerGradients : heed_layer_gradients {
    LayerGradients() : heed_layer_gradients() {
        struct_size = sizeof(heed_layer_gradients);
        dweights.struct_size = sizeof(heed_layer_weights);
    }
};
/// heed_cache_config, zeroed except its size.
struct CacheConfig : heed_cache_config {
    CacheConfig() : heed_cache_config() { struct_size = sizeof(heed_cache_config); }
};

/// Packed weights of a dense layer on the CPU, owned. `weight` [dim_out, dim_in], `bias` [dim_out] or data NULL.
class LinearWeights {
public:
    LinearWeights(int32_t dim_in, int32_t dim_out, const heed_tensor &weight, const heed_tensor &bias = {}) {
        const heed_tensor *const given = bias.data == nullptr ? nullptr : &bias;
        detail::make(&weights_, heed_linear_pack, weight.dtype, dim_in, dim_out, &weight, 0, given);
    }

    void run(const heed_linear_args &args) const { check(heed_linear(weights_.get(), &args)); }
    const heed_linear_weights *get() const noexcept { return weights_.get(); }

private:
    detail::Owned<heed_linear_weights, heed_linear_weights_destroy> weights_;
};

/// A layer, owned. Movable; forward may run in many threads at once, each with its own workspace, cache and outputs.
class Layer {
public:
    Layer(const heed_layer_config &config, const heed_layer_weights &weights) {
        detail::make(&layer_, heed_layer_create, &config, &weights);
    }

    void forward(const heed_layer_args &args) const { check(heed_layer_forward(layer_.get(), &args)); }
    void backward(const heed_layer_args &args, const heed_layer_gradients &gradients) const {
        check(heed_layer_backward(layer_.get(), &args, &gradients));
    }
    /// Cross attention: context [batch, context_len, dim_context] into the cache; context_lens [batch] or NULL.
    void prepare(heed_cache *cache, int32_t batch, int32_t context_len, const heed_tensor &context,
                 const int32_t *context_lens, const heed_execution &execution) const {
        check(heed_layer_prepare(layer_.get(), cache, batch, context_len, &context, context_lens, &execution));
    }
    /// CPU. On CUDA the caller takes so many bytes of device memory.
    Workspace make_workspace() const { return Workspace(workspace_bytes()); }
    size_t workspace_bytes() const noexcept { return heed_layer_workspace_bytes(layer_.get()); }
    size_t backward_workspace_bytes() const noexcept { return heed_layer_backward_workspace_bytes(layer_.get()); }
    const heed_layer *get() const noexcept { return layer_.get(); }

private:
    detail::Owned<heed_layer, heed_layer_destroy> layer_;
};

/// A cache for layers like `layer`, owned. One call at a time.
class Cache {
public:
    Cache(const Layer &layer, const heed_cache_config &config) {
        detail::make(&cache_, heed_cache_create, layer.get(), &config);
    }

    void reset() { check(heed_cache_reset(cache_.get())); }
    void truncate(int32_t sequence, int32_t kv_len) { check(heed_cache_truncate(cache_.get(), sequence, kv_len)); }
    void fork(int32_t from, int32_t to) { check(heed_cache_fork(cache_.get(), from, to)); }
    // Keys and values of the layouts of `from`, of each sequence its first new_lens[b] tokens.
    void append(const heed_kv_view &from, int32_t new_len, const int32_t *new_lens, const heed_execution &execution) {
        check(heed_cache_append(cache_.get(), new_len, new_lens, &from.k, &from.k_layout, &from.v, &from.v_layout,
                                &execution));
    }
    heed_kv_view view() const {
        heed_kv_view view = {};
        check(heed_cache_view(cache_.get(), &view));
        return view;
    }
    heed_cache *get() const noexcept { return cache_.get(); }

private:
    detail::Owned<heed_cache, heed_cache_destroy> cache_;
};

/// A safetensors file, mapped read-only while the object lives.
class WeightsFile {
public:
    explicit WeightsFile(const std::string &path) { detail::make(&file_, heed_weights_open, path.c_str()); }

    /// A tensor of the file, alive as long as this object.
    struct Tensor {
        heed_tensor tensor;
        std::vector<int64_t> shape;
    };
    Tensor find(const std::string &name) const {
        Tensor found = {};
        int64_t shape[8] = {};
        int32_t rank = 0;
        check(heed_weights_find(file_.get(), name.c_str(), &found.tensor, shape, &rank));
        found.shape.assign(shape, shape + rank);
        return found;
    }

private:
    detail::Owned<heed_weights_file, heed_weights_close> file_;
};

/// Every kernel of the table.
inline std::vector<heed_kernel_info> kernels() { return detail::all_infos(heed_kernel_count(), heed_kernel_get_info); }

/// The kernels of operations.
inline std::vector<heed_op_info> operations() { return detail::all_infos(heed_op_count(), heed_op_get_info); }

}  // namespace heed

#endif
