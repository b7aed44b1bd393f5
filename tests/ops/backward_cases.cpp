#include "tests/ops/backward_cases.h"

#include "runtime/reference/element.h"
#include "tests/support/table_kernels.h"

namespace heed_test {
namespace {

void causal(Attention *a) { a->causal = true; }
void bottom_right(Attention *a) {
    a->causal = true;
    a->position = HEED_BOTTOM_RIGHT;
}
void explicit_positions(Attention *a) {
    a->causal = true;
    a->position = HEED_EXPLICIT;
    a->q_offsets.assign(static_cast<size_t>(a->batch), 2);
    a->q_offsets[0] = -1;
}
void negative_scale(Attention *a) {
    a->causal = true;
    a->scale = -0.3f;
}
void scale_of_zero(Attention *a) {
    a->causal = true;
    a->scale = 0;
}
void window(Attention *a) {
    a->window_left = 2;
    a->window_right = 1;
}
void lengths(Attention *a) {
    a->kv_lens.assign(static_cast<size_t>(a->batch), a->kv_len - 1);
    a->kv_lens[0] = a->kv_len / 2;
}
void mask(Attention *a) {
    Rng rng(5);
    add_mask(a, {0, 1, 0, 0}, 0.7, &rng);
}
template <int batch, int head, int row, int key>  // 1: the bias does not move along it
void bias(Attention *a) {
    Rng rng(6);
    add_bias(a, {batch, head, row, key}, &rng);
}
void temperature(Attention *a) {
    for (int32_t h = 0; h < a->num_heads; h++) a->temperature.push_back(0.5f + static_cast<float>(h));
    a->temperature_growth = 0.25f;
    a->temperature_interval = 2;
    a->temperature_shift = 1;
}
void capped_temperature(Attention *a) {
    temperature(a);
    a->softcap = 1.5f;
    a->scale = -0.3f;
}
void softcap(Attention *a) { a->softcap = 1.5f; }
void sinks(Attention *a) {
    for (int32_t h = 0; h < a->num_heads; h++) a->sink.push_back(0.5f - static_cast<float>(h));
}
template <bool symmetric>
void alibi(Attention *a) {
    std::vector<float> slopes;
    for (int32_t h = 0; h < a->num_heads; h++) slopes.push_back(0.25f / static_cast<float>(h + 1));
    add_alibi(a, slopes, symmetric);
}
void dropout(Attention *a) {
    a->dropout_p = 0.3f;
    a->dropout_seed = 0x123456789abcdef0;
    a->dropout_offset = 3;
}
void all_at_once(Attention *a) {
    bottom_right(a);
    mask(a);
    bias<1, 0, 0, 0>(a);
    softcap(a);
    sinks(a);
    alibi<true>(a);
    dropout(a);
    lengths(a);
    a->scale = -0.3f;
}

}  // namespace

const std::vector<BackwardCase> &backward_cases() {
    static const std::vector<BackwardCase> cases = {{"plain", [](Attention *) {}},
                                                    {"causal", causal},
                                                    {"bottom_right", bottom_right},
                                                    {"explicit", explicit_positions},
                                                    {"window", window},
                                                    {"lengths", lengths},
                                                    {"negative_scale", negative_scale},
                                                    {"scale_of_zero", scale_of_zero},
                                                    {"mask", mask},
                                                    {"bias", bias<0, 0, 0, 0>},
                                                    {"bias_of_heads", bias<1, 0, 0, 0>},
                                                    {"bias_of_keys", bias<0, 1, 1, 0>},
                                                    {"bias_of_rows", bias<1, 1, 0, 1>},
                                                    {"softcap", softcap},
                                                    {"sinks", sinks},
                                                    {"alibi", alibi<false>},
                                                    {"symmetric_alibi", alibi<true>},
                                                    {"dropout", dropout},
                                                    {"all", all_at_once},
                                                    {"temperature", temperature, false},
                                                    {"capped_temperature", capped_temperature, false}};
    return cases;
}

Attention backward_attention(const Shape &shape, const std::string &name, heed_dtype dtype) {
    Attention a = make_attention(shape, Data::normal, 11, dtype);
    a.bias_dtype = HEED_F32;
    for (const BackwardCase &c : backward_cases()) {
        if (c.name == name) c.apply(&a);
    }
    hold_in_types(&a);
    return a;
}

std::vector<float> random_dout(const Attention &a, uint64_t seed) {
    Rng rng(seed);
    std::vector<float> dout(static_cast<size_t>(a.num_outputs()));
    for (float &x : dout) x = round_to(a.dtype, rng.normal());
    return dout;
}

}  // namespace heed_test
