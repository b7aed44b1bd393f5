#include "generators/attention/kernel.h"

namespace heed {

using namespace Halide;

namespace {

template <typename Buffer>
void dense_rows(Buffer buffer, int row_length) {
    if (row_length > 0) {
        buffer.dim(0).set_bounds(0, row_length);
    }
    for (int i = 0; i < buffer.dimensions(); i++) {
        buffer.dim(i).set_min(0);
    }
}

// May be broadcast along any axis, so no stride is fixed.
void any_strides(ImageParam param) {
    param.dim(0).set_stride(Expr());
    for (int i = 0; i < param.dimensions(); i++) {
        param.dim(i).set_min(0);
    }
}

}  // namespace

AttentionArguments::AttentionArguments(const AttentionConfig &cfg) : types{cfg.dtype, cfg.kv_dtype} {
    for (size_t n = 0; n < cfg.score_mod.buffers.size(); n++) {
        score_buffers.emplace_back(Int(32), 1, "score_buffer_" + std::to_string(n));
        score_buffers.back().dim(0).set_min(0);
    }
}

ScoreBuffers AttentionArguments::own_score_buffers(const std::vector<ScoreElement> &elements) const {
    std::vector<ScoreBuffers::Buffer> buffers;
    for (size_t n = 0; n < score_buffers.size(); n++) {
        const ImageParam words = score_buffers[n];
        buffers.push_back({[words](const Expr &index) { return words(index); }, words.dim(0).extent(), elements[n]});
    }
    return ScoreBuffers(buffers);
}

AttentionKernel::AttentionKernel(const AttentionConfig &cfg) : AttentionArguments(cfg), config(cfg), stages(cfg) {
    build_attention(config, inputs(), stages);
    state_buffer_contract();
}

AttentionInputs AttentionKernel::inputs() const {
    AttentionInputs in;
#define HEED_SET_INPUT(name, type) in.name = name;
    HEED_ATTENTION(HEED_IGNORE, HEED_SET_INPUT, HEED_IGNORE)
#undef HEED_SET_INPUT
#define HEED_SET_INPUT(name, ...) in.name = name;
    HEED_HEAD_INPUTS(HEED_SET_INPUT)
#undef HEED_SET_INPUT
    in.score_buffers = own_score_buffers(config.score_mod.buffers);
    in.q = q;
    in.mask = mask;
    in.bias = bias;
    in.bias_16 = bias_16;
    in.sink = sink;
    in.tasks = tasks;
    in.key_blocks = key_blocks;
    in.swept_tasks = swept_tasks;
    in.k = {k, k_scale, config.kv_dtype};
    in.v = {v, v_scale, config.kv_dtype};
    in.page_table = {page_table, page_table.dim(0).extent(), page_size_of(page_size), k.dim(3).extent()};
    in.paged = page_size > 0;
    in.mask_stride = mask.dim(0).stride();
    in.bias_stride = bias.dim(0).stride();
    in.bias_16_stride = bias_16.dim(0).stride();
    in.num_tasks = tasks.dim(1).extent();
    in.num_key_blocks = key_blocks.dim(1).extent();
    in.num_swept = swept_tasks.dim(0).extent();
    in.num_heads = q.dim(1).extent();
    in.q_capacity = q.dim(2).extent();
    in.q_batch = q.dim(3).extent();
    in.num_kv_heads = k.dim(1).extent();
    in.num_slots = k.dim(2).extent();
    in.num_kv_pages = k.dim(3).extent();
    in.num_v_slots = v.dim(2).extent();
    in.num_v_pages = v.dim(3).extent();
    in.head_dim = q.dim(0).extent();
    in.head_dim_v = v.dim(0).extent();
    return in;
}

void AttentionKernel::state_buffer_contract() {
    std::vector<OutputImageParam> outputs = stages.out.output_buffers();
    OutputImageParam out = outputs[0], lse = outputs[1];
    dense_rows(q, config.head_dim);
    dense_rows(k, config.head_dim);
    dense_rows(v, config.head_dim_v);
    dense_rows(k_scale, 0);
    dense_rows(v_scale, 0);
    dense_rows(out, config.head_dim_v);
    lse.dim(0).set_stride(0);
#define HEED_LISTED(name, ...) , name
    const std::vector<ImageParam> per_head = { sink HEED_HEAD_INPUTS(HEED_LISTED) };
#undef HEED_LISTED
    for (const ImageParam &param : {mask, bias, bias_16}) any_strides(param);
    for (ImageParam param : per_head) {
        param.dim(0).set_extent(q.dim(1).extent());
        any_strides(param);
    }
    tasks.dim(0).set_bounds(0, num_task_fields);
    tasks.dim(1).set_min(0);
    key_blocks.dim(0).set_min(0);
    key_blocks.dim(1).set_min(0);
    swept_tasks.dim(0).set_min(0);
    page_table.dim(0).set_min(0);
    page_table.dim(1).set_min(0);

    // One extent per meaning.
    page_table.dim(1).set_extent(batch);
    for (ImageParam param : {mask, bias, bias_16}) {
        param.dim(0).set_extent(max_kv_len);
        param.dim(1).set_extent(max_q_len);
        param.dim(2).set_extent(q.dim(1).extent());
        param.dim(3).set_extent(batch);
    }
    for (int i = 1; i < 4; i++) {
        // A copy of k alone, for a thread's head, has other slots and pages.
        if (i == 1 || config.packs_k() || !config.packs_kv()) v.dim(i).set_extent(k.dim(i).extent());
        k_scale.dim(i - 1).set_extent(k.dim(i).extent());
        v_scale.dim(i - 1).set_extent(k.dim(i).extent());
        out.dim(i).set_min(0).set_extent(q.dim(i).extent());
    }
}

std::vector<Argument> AttentionArguments::arguments() const {
    std::vector<Argument> list;
    HEED_ATTENTION(HEED_ADD_ARGUMENT, HEED_ADD_ARGUMENT, HEED_IGNORE)
    list.insert(list.end(), score_buffers.begin(), score_buffers.end());
    return list;
}

std::vector<OutputType> AttentionArguments::output_types() const {
    std::vector<OutputType> list;
    HEED_ATTENTION(HEED_IGNORE, HEED_IGNORE, HEED_ADD_OUTPUT)
    return list;
}

Pipeline AttentionKernel::pipeline() const { return Pipeline(stages.out); }

}  // namespace heed
