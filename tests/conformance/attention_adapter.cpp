#include "tests/conformance/attention_adapter.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/reference/invalid_input.h"

namespace heed_conformance {
namespace {

using heed_reference::Case;
using heed_reference::ElementType;
using heed_reference::InvalidInput;

// ONNX does the softmax in softmax_precision, or the inputs' type; fp32 keeps the tolerance of each.
const std::set<std::string> attributes = {"is_causal",        "scale",
                                          "softcap",          "q_num_heads",
                                          "kv_num_heads",     "qk_matmul_output_mode",
                                          "left_window_size", "right_window_size",
                                          "softmax_precision"};
const std::set<std::string> inputs = {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"};

// The bytes of an element that hides a key.
std::vector<unsigned char> hiding_element(ElementType type) {
    std::vector<unsigned char> bytes(heed_reference::element_bytes(type), 0);
    const float infinity = -std::numeric_limits<float>::infinity();
    const uint16_t half_infinity = type == ElementType::f16 ? 0xfc00 : 0xff80;
    if (type == ElementType::f32) std::memcpy(bytes.data(), &infinity, sizeof(infinity));
    if (type == ElementType::f16 || type == ElementType::bf16) {
        std::memcpy(bytes.data(), &half_infinity, sizeof(half_infinity));
    }
    return bytes;
}

// Four axes, ones in front; keys beyond a short last axis are hidden.
Array expand_mask(const Array &mask, int64_t kv_len) {
    if (mask.shape.empty() || mask.shape.size() > 4) {
        throw InvalidInput("attn_mask has shape " + heed_reference::shape_text(mask.shape));
    }
    std::vector<int64_t> shape(4 - mask.shape.size(), 1);
    shape.insert(shape.end(), mask.shape.begin(), mask.shape.end());
    const int64_t len = shape[3];
    shape[3] = std::max(len, kv_len);
    Array expanded = heed_reference::make_array(mask.type, shape);
    const std::vector<unsigned char> hidden = hiding_element(mask.type);
    const auto bytes = static_cast<int64_t>(hidden.size());
    for (int64_t i = 0; i < expanded.size(); i++) {
        const int64_t row = i / shape[3], j = i % shape[3];
        const unsigned char *from = j < len ? &mask.data[(row * len + j) * bytes] : hidden.data();
        std::memcpy(&expanded.data[i * bytes], from, bytes);
    }
    return expanded;
}

// [batch, heads, past + new, dim] of a past in that order and new tokens in the order `axes`, "bhsd" or "bshd".
Array join_past(const Array &past, const Array &tokens, const std::string &axes) {
    const bool heads_outside = axes == "bhsd";
    const int64_t batch = tokens.shape[0], dim = tokens.shape[3];
    const int64_t heads = tokens.shape[heads_outside ? 1 : 2], new_len = tokens.shape[heads_outside ? 2 : 1];
    if (past.type != tokens.type || past.shape.size() != 4 ||
        past.shape != std::vector<int64_t>{batch, heads, past.shape[2], dim}) {
        throw InvalidInput("the past has shape " + heed_reference::shape_text(past.shape) + ", the new tokens " +
                           heed_reference::shape_text(tokens.shape));
    }
    const int64_t past_len = past.shape[2],
                  bytes = dim * static_cast<int64_t>(heed_reference::element_bytes(past.type));
    Array joined = heed_reference::make_array(past.type, {batch, heads, past_len + new_len, dim});
    unsigned char *to = joined.data.data();
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t h = 0; h < heads; h++) {
            std::memcpy(to, &past.data[(b * heads + h) * past_len * bytes], past_len * bytes);
            to += past_len * bytes;
            for (int64_t s = 0; s < new_len; s++, to += bytes) {
                const int64_t row = heads_outside ? (b * heads + h) * new_len + s : (b * new_len + s) * heads + h;
                std::memcpy(to, &tokens.data[row * bytes], bytes);
            }
        }
    }
    return joined;
}

// As it is where nothing is past; else joined, in `axes`.
Array with_past(const OnnxCase &onnx, const std::string &input, const std::string &past, std::string *axes) {
    const Array &array = onnx.input(input);
    Array tokens = split_heads(array, onnx.integer("kv_num_heads", 0));
    *axes = axes_of(array);
    if (const Array *found = onnx.find_input(past)) {
        tokens = join_past(*found, tokens, *axes);
        *axes = "bhsd";
    }
    return tokens;
}

// The positions of the queries, and how many keys there are.
void set_positions(const OnnxCase &onnx, Case &c) {
    const Array *past = onnx.find_input("past_key"), *lens = onnx.find_input("nonpad_kv_seqlen");
    if (past == nullptr && lens == nullptr) return;
    const Array &q = c.arrays.at("q");
    const int64_t batch = q.shape[0], q_len = q.shape[c.layouts.q.find('s')];
    c.problem.position = HEED_EXPLICIT;
    if (lens != nullptr) c.arrays["kv_lens"] = heed_reference::to_int32(*lens, "nonpad_kv_seqlen");
    Array offsets = heed_reference::make_array(ElementType::i32, {batch});
    for (int64_t b = 0; b < batch; b++) {
        const int64_t offset = past != nullptr ? past->shape[2] : c.arrays.at("kv_lens").as<int32_t>()[b] - q_len;
        offsets.as<int32_t>()[b] = static_cast<int32_t>(offset);
    }
    c.arrays["q_offsets"] = offsets;
}

}  // namespace

AttentionCase adapt_attention(const OnnxCase &onnx) {
    onnx.expect_only(inputs, attributes);
    AttentionCase adapted;
    Case &c = adapted.call;
    heed_problem &p = c.problem;
    heed_problem_init(&p);
    const Array &q = onnx.input("Q");
    p.dtype = p.kv_dtype = dtype_of(q);
    p.causal = onnx.integer("is_causal", 0) != 0;
    p.window_left = onnx.integer("left_window_size", -1);
    p.window_right = onnx.integer("right_window_size", -1);
    p.scale = static_cast<float>(onnx.attribute("scale", std::numeric_limits<double>::quiet_NaN()));
    p.softcap = static_cast<float>(onnx.attribute("softcap", 0));

    const int32_t num_heads = onnx.integer("q_num_heads", 0);
    c.arrays["q"] = split_heads(q, num_heads);
    c.layouts.q = c.layouts.out = axes_of(q);
    c.arrays["k"] = with_past(onnx, "K", "past_key", &c.layouts.k);
    c.arrays["v"] = with_past(onnx, "V", "past_value", &c.layouts.v);
    set_positions(onnx, c);
    if (const Array *mask = onnx.find_input("attn_mask")) {
        const int64_t kv_len = c.arrays["k"].shape[c.layouts.k.find('s')];
        c.arrays[mask->type == ElementType::boolean ? "mask" : "bias"] = expand_mask(*mask, kv_len);
    }
    heed_reference::complete_case(c);

    adapted.outputs = onnx.outputs;
    adapted.outputs.at("Y") = split_heads(onnx.outputs.at("Y"), num_heads);
    // From ONNX 1.23 on the modes count in the order of computation, as Heed's do.
    adapted.probs_mode = static_cast<heed_probs_mode>(onnx.integer("qk_matmul_output_mode", 0));
    return adapted;
}

}  // namespace heed_conformance
