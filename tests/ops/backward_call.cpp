#include "tests/ops/backward_call.h"

#include <algorithm>

#include "heed/ops.h"
#include "runtime/reference/element.h"
#include "tests/support/device.h"

namespace heed_test {

BackwardCall::BackwardCall(const Attention &a, const CallOptions &options, const std::vector<float> &dout)
    : forward(a, options), gradients(), a_(a), options_(options), given_dout_(dout), storage_(lay_out(a, options)) {
    gradients.struct_size = sizeof(gradients);
}

heed_tensor BackwardCall::make(GuardedBuffer *buffer, int64_t span, heed_dtype dtype) const {
    *buffer = GuardedBuffer(static_cast<size_t>(span * element_bytes(dtype)), options_.flush);
    return {buffer->data(), span, dtype};
}

heed_status BackwardCall::prepare() {
    if (const heed_status status = forward.run()) return status;
    const heed_problem &p = forward.problem;
    const Extents out = q_extents(a_.head_dim_v), q = q_extents(a_.head_dim), k = kv_extents(a_.head_dim),
                  v = kv_extents(a_.head_dim_v);
    const Strides out_strides(out, p.out_layout);
    gradients.dout = make(&dout_, span_of(out, out_strides), a_.dtype);
    scatter(given_dout_, storage_.q, out, out_strides, a_.dtype, gradients.dout.data);
    gradients.dq = make(&dq_, span_of(q, Strides(q, p.q_layout)), a_.dtype);
    gradients.dk = make(&dk_, span_of(k, Strides(k, p.k_layout)), a_.dtype);
    gradients.dv = make(&dv_, span_of(v, Strides(v, p.v_layout)), a_.dtype);
    if (a_.bias.used) gradients.dbias = make(&dbias_, static_cast<int64_t>(a_.bias.data.size()), a_.bias_dtype);
    if (!a_.sink.empty()) gradients.dsink = make(&dsink_, a_.num_heads, HEED_F32);
    workspace_ = GuardedBuffer(heed_attention_backward_workspace_bytes(forward.plan()), options_.flush);
    return HEED_OK;
}

heed_status BackwardCall::backward() {
    heed_args args = forward.args;
    args.workspace = workspace_.data();
    args.workspace_bytes = workspace_.bytes();
    if (test_device() == HEED_CPU) return heed_attention_backward(forward.plan(), &args, &gradients);

    DeviceMirror mirror;
    heed_gradients on_device = gradients;
    for (heed_tensor *tensor : {&on_device.dq, &on_device.dk, &on_device.dv, &on_device.dbias, &on_device.dsink}) {
        if (tensor->data == nullptr) continue;
        mirror.add(tensor->data, static_cast<size_t>(tensor->size * element_bytes(tensor->dtype)), true);
        tensor->data = mirror.on_device(tensor->data);
    }
    mirror.add(gradients.dout.data, dout_.bytes(), false);
    on_device.dout.data = mirror.on_device(gradients.dout.data);
    mirror.add(workspace_.data(), workspace_.bytes(), true);
    const auto run = [&](heed_args own) {
        own.workspace = mirror.on_device(workspace_.data());
        own.workspace_bytes = workspace_.bytes();
        return heed_attention_backward(forward.plan(), &own, &on_device);
    };
    return forward.run_on_device(run, &mirror);
}

GradientInputs BackwardCall::inputs() const {
    const std::vector<float> out = forward.out(), lse = forward.lse();
    GradientInputs in;
    in.dout.assign(given_dout_.begin(), given_dout_.end());
    in.out.assign(out.begin(), out.end());
    in.lse.assign(lse.begin(), lse.end());
    return in;
}

BackwardResult BackwardCall::result() const {
    const heed_problem &p = forward.problem;
    const Extents q = q_extents(a_.head_dim), k = kv_extents(a_.head_dim), v = kv_extents(a_.head_dim_v);
    BackwardResult r;
    r.dq = gather(storage_.q, q, Strides(q, p.q_layout), a_.dtype, dq_.data());
    r.dk = gather(storage_.kv, k, Strides(k, p.k_layout), a_.dtype, dk_.data());
    r.dv = gather(storage_.kv, v, Strides(v, p.v_layout), a_.dtype, dv_.data());
    for (int64_t n = 0; n < gradients.dbias.size; n++) r.dbias.push_back(load(dbias_.data(), n, a_.bias_dtype));
    for (int64_t n = 0; n < gradients.dsink.size; n++) r.dsink.push_back(load(dsink_.data(), n, HEED_F32));
    return r;
}

bool BackwardCall::slack_intact() const {
    const GuardedBuffer *const buffers[] = {&dq_, &dk_, &dv_, &dbias_, &dsink_, &workspace_};
    return std::all_of(std::begin(buffers), std::end(buffers),
                       [](const GuardedBuffer *buffer) { return buffer->bytes() == 0 || buffer->slack_intact(); });
}

bool BackwardCall::outputs_untouched() const {
    const GuardedBuffer *const buffers[] = {&dq_, &dk_, &dv_, &dbias_, &dsink_};
    return std::all_of(std::begin(buffers), std::end(buffers), [](const GuardedBuffer *buffer) {
        const auto *bytes = static_cast<const unsigned char *>(buffer->data());
        return std::all_of(bytes, bytes + buffer->bytes(), [](unsigned char byte) { return byte == 0xff; });
    });
}

}  // namespace heed_test
