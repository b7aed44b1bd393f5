// The functions that the header promises and this version has no kernels for.
#include <cstring>
#include <limits>

#include "status.h"

namespace {

heed_status not_built(const char *function) {
    return heed::fail(HEED_UNSUPPORTED, "%s is not built yet in Heed %s", function, heed_version());
}

}  // namespace

extern "C" {

heed_status heed_attention_probs(const heed_plan *, const heed_args *, heed_probs_mode, const heed_tensor *,
                                 const heed_layout *) {
    return not_built("heed_attention_probs");
}

heed_status heed_linear_pack(heed_dtype, int32_t, int32_t, const heed_tensor *, int64_t, const heed_tensor *,
                             heed_linear_weights **weights) {
    if (weights != nullptr) *weights = nullptr;
    return not_built("heed_linear_pack");
}

void heed_linear_weights_destroy(heed_linear_weights *) {}

heed_status heed_linear(const heed_linear_weights *, const heed_linear_args *) { return not_built("heed_linear"); }

size_t heed_attention_backward_workspace_bytes(const heed_plan *) { return 0; }

heed_status heed_attention_backward(const heed_plan *, const heed_args *, const heed_gradients *) {
    return not_built("heed_attention_backward");
}

heed_status heed_layer_config_init(heed_layer_config *config) {
    if (config == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_layer_config_init: config is NULL");
    std::memset(config, 0, sizeof(*config));
    config->struct_size = sizeof(*config);
    config->scale = std::numeric_limits<float>::quiet_NaN();
    config->window_left = -1;
    config->window_right = -1;
    config->position = HEED_BOTTOM_RIGHT;
    config->qk_norm_epsilon = 1e-5f;
    return HEED_OK;
}

heed_status heed_layer_create(const heed_layer_config *, const heed_layer_weights *, heed_layer **layer) {
    if (layer != nullptr) *layer = nullptr;
    return not_built("heed_layer_create");
}

void heed_layer_destroy(heed_layer *) {}

size_t heed_layer_workspace_bytes(const heed_layer *) { return 0; }

heed_status heed_cache_create(const heed_layer *, const heed_cache_config *, heed_cache **cache) {
    if (cache != nullptr) *cache = nullptr;
    return not_built("heed_cache_create");
}

void heed_cache_destroy(heed_cache *) {}

heed_status heed_cache_reset(heed_cache *) { return not_built("heed_cache_reset"); }

heed_status heed_cache_truncate(heed_cache *, int32_t, int32_t) { return not_built("heed_cache_truncate"); }

heed_status heed_cache_fork(heed_cache *, int32_t, int32_t) { return not_built("heed_cache_fork"); }

heed_status heed_cache_view(const heed_cache *, heed_kv_view *) { return not_built("heed_cache_view"); }

heed_status heed_layer_prepare(const heed_layer *, heed_cache *, int32_t, int32_t, const heed_tensor *, const int32_t *,
                               const heed_execution *) {
    return not_built("heed_layer_prepare");
}

heed_status heed_layer_forward(const heed_layer *, const heed_layer_args *) { return not_built("heed_layer_forward"); }

heed_status heed_layer_backward(const heed_layer *, const heed_layer_args *, const heed_layer_gradients *) {
    return not_built("heed_layer_backward");
}

heed_status heed_weights_open(const char *, heed_weights_file **file) {
    if (file != nullptr) *file = nullptr;
    return not_built("heed_weights_open");
}

void heed_weights_close(heed_weights_file *) {}

heed_status heed_weights_find(const heed_weights_file *, const char *, heed_tensor *, int64_t[8], int32_t *) {
    return not_built("heed_weights_find");
}

heed_status heed_mha_to_gqa(int32_t, int32_t, int32_t, int32_t, const heed_tensor *, const heed_tensor *) {
    return not_built("heed_mha_to_gqa");
}

heed_status heed_gqa_to_mha(int32_t, int32_t, int32_t, int32_t, const heed_tensor *, const heed_tensor *) {
    return not_built("heed_gqa_to_mha");
}

}  // extern "C"
