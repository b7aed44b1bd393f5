#include "generators/ops/attention_addresses.h"

#include "generators/ops/device_score_buffers.h"

namespace heed {

using namespace Halide;

namespace {

Expr stride_bytes(const OutputImageParam &buffer, int dimension) {
    const int bytes = buffer.type().bytes();
    return cast<uint64_t>(cast<int64_t>(buffer.dim(dimension).stride()) * bytes);
}

// (d, head, token, batch), or (head, token, batch).
AttentionAddresses::Tensor tensor(const OutputImageParam &buffer) {
    const int head = buffer.dimensions() - 3;
    return {address_of(buffer), stride_bytes(buffer, head), stride_bytes(buffer, head + 1),
            stride_bytes(buffer, head + 2)};
}

}  // namespace

AttentionAddresses::AttentionAddresses(const AttentionConfig &config)
    : config(config), args(config), types(args.types) {
    const bool any = config.any_head_dim();
    q = tensor(args.q);
    k = tensor(args.k);
    v = tensor(args.v);
    k_scale = tensor(args.k_scale);
    v_scale = tensor(args.v_scale);
    states = tensor(args.states);
    num_heads = args.q.dim(1).extent();
    num_kv_heads = args.k.dim(1).extent();
    head_dim = any ? args.q.dim(0).extent() : Expr(config.head_dim);
    head_dim_v = any ? args.v.dim(0).extent() : Expr(config.head_dim_v);
    uniform_q_len = max_q_len = args.max_q_len;
    max_kv_len = args.max_kv_len;
    visible_begin = args.visible_begin;
    visible_end = args.visible_end;
    position_offset = args.position_offset;
    page_size = args.page_size;
    table_pages = args.page_table.dim(0).extent();
    num_pages = args.k.dim(3).extent();
#define HEED_SET_VALUE(name, type) name = args.name;
    HEED_LOGIT_VALUES(HEED_SET_VALUE)
#undef HEED_SET_VALUE
    if (!config.has_mask) mask_form = no_mask;
    if (!config.has_bias) bias_form = no_bias;
    const Expr none = cast<uint64_t>(0);
    tasks = select(args.uniform != 0, none, address_of(args.tasks));
    page_table = address_of(args.page_table);
    page_table_row = stride_bytes(args.page_table, 1);
    sink = address_of(args.sink);
    sink_head = stride_bytes(args.sink, 0);
    alibi_slopes = address_of(args.alibi_slopes);
    slope_head = stride_bytes(args.alibi_slopes, 0);
    device_status = args.device_status;
    mask = address_of(args.mask);
    mask_key = stride_bytes(args.mask, 0);
    mask_row = stride_bytes(args.mask, 1);
    mask_head = stride_bytes(args.mask, 2);
    mask_batch = stride_bytes(args.mask, 3);
    const Expr is_16 = bias_form == bias_of_dtype;
    const auto of_bias = [&](int dimension) {
        return select(is_16, stride_bytes(args.bias_16, dimension), stride_bytes(args.bias, dimension));
    };
    bias = select(is_16, address_of(args.bias_16), address_of(args.bias));
    bias_key = of_bias(0);
    bias_row = of_bias(1);
    bias_head = of_bias(2);
    bias_batch = of_bias(3);

    std::vector<ScoreWords> words;
    for (const ImageParam &buffer : args.score_buffers) words.push_back({address_of(buffer), buffer.dim(0).extent()});
    score_buffers = device_score_buffers(words, config.score_mod, down);
}

void AttentionAddresses::set_outputs(Func outputs) {
    std::vector<OutputImageParam> buffers = outputs.output_buffers();
    out = tensor(buffers[0]);
    lse = tensor(buffers[1]);
    for (OutputImageParam &buffer : buffers) buffer.dim(0).set_stride(Expr());
#define HEED_ANY_STRIDE(name, ...) args.name.dim(0).set_stride(Expr());
    HEED_ATTENTION(HEED_ANY_STRIDE, HEED_IGNORE, HEED_IGNORE)
#undef HEED_ANY_STRIDE
    for (ImageParam &buffer : args.score_buffers) buffer.dim(0).set_stride(Expr());
}

}  // namespace heed
