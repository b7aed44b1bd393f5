// RotaryEmbedding by heed_rope.
#include "runtime/reference/invalid_input.h"
#include "tests/conformance/report.h"

namespace heed_conformance {
namespace {

// For packed `axes`, in the documented order: batch, token, head, dim.
heed_layout layout_of(const Array &array, const std::string &axes) {
    heed_layout layout = {};
    int64_t stride = 1;
    for (size_t i = 4; i-- > 0; stride *= array.shape[i]) {
        layout.stride[std::string("bshd").find(axes[i])] = stride;
    }
    return layout;
}

heed_tensor view_of(const Array &array) {
    return {const_cast<unsigned char *>(array.data.data()), array.size(), dtype_of(array)};
}

}  // namespace

Outcome run_rotary(const OnnxCase &onnx, const Options &) {
    onnx.expect_only({"X", "cos_cache", "sin_cache", "position_ids"},
                     {"interleaved", "rotary_embedding_dim", "num_heads"});
    const int32_t num_heads = onnx.integer("num_heads", 0);
    const Array x = split_heads(onnx.input("X"), num_heads);
    const std::string axes = axes_of(onnx.input("X"));
    const auto extent = [&](char axis) { return static_cast<int32_t>(x.shape[axes.find(axis)]); };
    const Array &cos = onnx.input("cos_cache"), &sin = onnx.input("sin_cache");
    Array out = make_nan(x, x.shape), positions;

    heed_rope_args args = {};
    args.struct_size = sizeof(args);
    args.dtype = dtype_of(x);
    args.batch = extent('b');
    args.len = extent('s');
    args.num_heads = extent('h');
    args.head_dim = extent('d');
    args.x = view_of(x);
    args.out = view_of(out);
    args.x_layout = args.out_layout = layout_of(x, axes);
    const int32_t rotary_dim = onnx.integer("rotary_embedding_dim", 0);
    args.tables.rotary_dim = rotary_dim == 0 ? args.head_dim : rotary_dim;
    args.tables.interleaved = onnx.integer("interleaved", 0) != 0;
    args.tables.cos = view_of(cos);
    args.tables.sin = view_of(sin);
    if (const Array *ids = onnx.find_input("position_ids")) {
        positions = heed_reference::to_int32(*ids, "position_ids");
        args.tables.positions = positions.as<int32_t>();
        args.tables.max_position = static_cast<int32_t>(cos.shape[0]);
    }

    Outcome outcome;
    if (heed_rope(&args) != HEED_OK) {
        outcome.faults.push_back({"", heed_last_error()});
        return outcome;
    }
    const std::string wrong = compare(onnx, "Y", out, split_heads(onnx.outputs.at("Y"), num_heads), &outcome.worst);
    if (!wrong.empty()) outcome.faults.push_back({"", wrong});
    return outcome;
}

}  // namespace heed_conformance
