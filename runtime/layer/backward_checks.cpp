// What a backward call must fulfil.
#include <cinttypes>

#include "runtime/layer/backward.h"
#include "runtime/ranges.h"
#include "runtime/scratch.h"

namespace heed {
namespace {

heed_status refuse(const char *name, const heed_tensor &tensor, const char *why) {
    if (tensor.data == nullptr) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s is not NULL; %s", name, why);
}

// Adds the gradients of weights that the layer has; the first failure stays.
class WeightChecks {
public:
    WeightChecks(const heed_layer &layer, MemoryRanges *ranges) : layer_(layer), ranges_(*ranges) {}

    heed_status status = HEED_OK;

    void expect(const char *name, const heed_tensor &tensor, int64_t elements) {
        if (status || tensor.data == nullptr) return;
        if (tensor.size != elements) {
            status = fail(HEED_INVALID_ARGUMENT, "%s has %" PRId64 " elements; the layer's weight has %" PRId64, name,
                          tensor.size, elements);
            return;
        }
        status = ranges_.add(name, tensor, dtype_of_sum(tensor, layer_.config.dtype), elements, Access::write);
    }
    void refuse(const char *name, const heed_tensor &tensor, const char *why) {
        if (!status) status = heed::refuse(name, tensor, why);
    }

    void add_projections(const heed_layer_weights &given) {
        for (const LayerWeight &w : projection_weights(layer_.config, given)) {
            if (w.has) expect(w.gradient_name, w.tensor, w.elements());
            if (!w.has) refuse(w.gradient_name, w.tensor, "the layer's weight_layout has no such weight");
        }
    }

    void add_others(const heed_layer_weights &w) {
        const heed_layer &l = layer_;
        const std::tuple<const char *, const heed_tensor &, const LayerFloats &> norms[] = {
            {"dweights.q_norm_weight", w.q_norm_weight, l.q_norm_weight},
            {"dweights.q_norm_bias", w.q_norm_bias, l.q_norm_bias},
            {"dweights.k_norm_weight", w.k_norm_weight, l.k_norm_weight},
            {"dweights.k_norm_bias", w.k_norm_bias, l.k_norm_bias},
        };
        for (const auto &[name, tensor, weight] : norms) {
            if (!weight.empty()) expect(name, tensor, weight.size);
            if (weight.empty()) refuse(name, tensor, "the layer's qk_norm is HEED_QK_NORM_NONE");
        }
        if (l.sink.empty()) refuse("dweights.sink", w.sink, "the layer has no sink");
        if (!status && w.sink.data != nullptr) {
            status = ranges_.add("dweights.sink", w.sink, HEED_F32, l.config.num_heads, Access::write);
        }
        const char *const none = "layers have no gradients of it";
#define HEED_REFUSE(name, ...) refuse("dweights." #name, w.name, none);
        HEED_LOGIT_ARRAYS(HEED_REFUSE)
#undef HEED_REFUSE
        refuse("dweights.rope_cos", w.rope_cos, none);
        refuse("dweights.rope_sin", w.rope_sin, none);
    }

private:
    const heed_layer &layer_;
    MemoryRanges &ranges_;
};

heed_status check_dbias(Backward *b, MemoryRanges *ranges) {
    const heed_layer_args &a = b->f.a;
    const heed_tensor &dbias = b->g.dbias;
    if (dbias.data == nullptr) return HEED_OK;
    if (a.bias.data == nullptr) return refuse("dbias", dbias, "the call has no bias");
    Shape shape = {{a.batch, b->config().num_heads, a.q_len, b->f.longest}};
    for (int n = 0; n < 4; n++) {
        if (a.bias_shape[n] == 1) shape.extent[n] = 1;
    }
    const heed_status status = make_view("dbias", shape, a.bias_layout, Access::write, &b->dbias);
    return status ? status : ranges->add("dbias", dbias, a.bias.dtype, b->dbias.span, Access::write);
}

// The gradients' memory, as far as it is of the workspace.
heed_status find_workspace(Backward *b) {
    const heed_layer &layer = b->f.layer;
    const heed_execution &execution = b->f.a.execution;
    int64_t needed = 0;
    b->f.gradient_bytes += b->f.backend().workspace_share(round_up(wants_of(*b).dbias_bytes, scratch_alignment));
    const int64_t more = b->f.gradient_bytes + b->f.sizes.combined;
    if (checked_add(static_cast<int64_t>(layer.workspace_bytes), more, &needed) &&
        static_cast<uint64_t>(needed) <= execution.workspace_bytes) {
        return HEED_OK;
    }
    return fail(HEED_WORKSPACE_TOO_SMALL,
                "execution.workspace_bytes is %zu; with dbias, and with mask, key_padding and bias together, "
                "heed_layer_backward needs %" PRId64,
                execution.workspace_bytes, needed);
}

}  // namespace

heed_dtype Backward::dweight_dtype() const {
    const heed_layer_weights &w = g.dweights;
    for (const heed_tensor &tensor : {w.wq, w.wk, w.wv, w.wqkv, w.wo}) {
        if (tensor.data != nullptr && tensor.dtype == HEED_F32) return HEED_F32;
    }
    return config().dtype;
}

GradientWants wants_of(const Backward &b) {
    const heed_layer_gradients &g = b.g;
    const heed_layer_weights &w = g.dweights;
    GradientWants wants;
    wants.dx = g.dx.data != nullptr;
    wants.dcontext = g.dcontext.data != nullptr;
    wants.dwo = w.wo.data != nullptr;
    wants.projections = w.wqkv.data != nullptr || w.wq.data != nullptr || w.wk.data != nullptr || w.wv.data != nullptr;
    wants.dweight_dtype = b.dweight_dtype();
    wants.dbias_bytes = b.dbias.span * dtype_bytes(b.f.a.bias.dtype);
    return wants;
}

heed_status check_gradients(Backward *b) {
    const Forward &f = b->f;
    const heed_layer_gradients &g = b->g;
    const heed_layer_config &c = f.config();
    const heed_layer_args &a = f.a;
    if (a.cache != nullptr) {
        return fail(HEED_UNSUPPORTED, "cache is not NULL; heed_layer_backward serves calls without a cache");
    }
    if (f.packed()) {
        return fail(HEED_UNSUPPORTED,
                    "cu_seqlens is not NULL; heed_layer_backward serves padded batches: it must be NULL");
    }
    heed_status status =
        check_struct_size("heed_layer_gradients.dweights", g.dweights.struct_size, sizeof(heed_layer_weights));
    if (!status && !c.cross) status = refuse("dcontext", g.dcontext, "a self attention layer attends to x");
    MemoryRanges ranges;
    const int64_t rows = int64_t{a.batch} * a.q_len;
    if (!status && g.dx.data != nullptr) status = ranges.add("dx", g.dx, c.dtype, rows * c.dim_in, Access::write);
    if (!status && g.dcontext.data != nullptr) {
        const int64_t elements = int64_t{a.batch} * a.context_len * c.dim_context;
        status = ranges.add("dcontext", g.dcontext, c.dtype, elements, Access::write);
    }
    if (!status) status = check_dbias(b, &ranges);
    if (!status) status = find_workspace(b);
    WeightChecks weights(f.layer, &ranges);
    weights.status = status;
    weights.add_projections(g.dweights);
    weights.add_others(g.dweights);
    status = weights.status;
    if (!status) status = ranges.add("dy", g.dy, c.dtype, rows * c.dim_out, Access::read);
    return status ? status : add_inputs(f, &ranges);
}

}  // namespace heed
