#include "bench/demo/train/model.h"

#include <algorithm>
#include <string>

#include "bench/demo/write_floats.h"

namespace heed_train {
namespace {

void add(const std::vector<float> &from, std::vector<float> *to) {
    for (size_t i = 0; i < from.size(); i++) (*to)[i] += from[i];
}

size_t elements(int32_t a, int32_t b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

float deviation(int32_t dim_in) { return 1 / std::sqrt(static_cast<float>(dim_in)); }

}  // namespace

Model::Block::Block(const Sizes &s, int32_t num_kv_heads, std::mt19937_64 *random)
    : attention_norm(s.width), mlp_norm(s.width), wq(elements(s.width, s.width), deviation(s.width), false, random),
      wk(elements(s.width / s.num_heads * num_kv_heads, s.width), deviation(s.width), false, random),
      wv(elements(s.width / s.num_heads * num_kv_heads, s.width), deviation(s.width), false, random),
      wo(elements(s.width, s.width), deviation(s.width), false, random), up(s.width, 4 * s.width, random),
      down(4 * s.width, s.width, random) {}

Model::Model(const Sizes &sizes, int32_t num_symbols, int32_t num_kv_heads, uint64_t seed)
    : sizes_(sizes), num_kv_heads_(num_kv_heads), random_(seed),
      embedding_(elements(num_symbols, sizes.width), 1, false, &random_), final_norm_(sizes.width),
      to_logits_(sizes.width, num_symbols, &random_), workspace_(0) {
    for (int32_t n = 0; n < sizes.num_layers; n++) blocks_.emplace_back(sizes, num_kv_heads, &random_);
    const int32_t pairs = sizes.width / sizes.num_heads / 2;
    for (int32_t position = 0; position < sizes.context; position++) {
        for (int32_t n = 0; n < pairs; n++) {
            const double angle = position * std::pow(10000.0, -static_cast<double>(n) / pairs);
            cos_.push_back(static_cast<float>(std::cos(angle)));
            sin_.push_back(static_cast<float>(std::sin(angle)));
        }
    }
    execution_.num_threads = sizes.threads;
}

heed::LayerConfig Model::layer_config() const {
    heed::LayerConfig config;
    config.dim_in = sizes_.width;
    config.num_heads = sizes_.num_heads;
    config.num_kv_heads = num_kv_heads_;
    config.causal = true;
    config.dropout_p = sizes_.dropout;
    config.rotary_dim = sizes_.width / sizes_.num_heads;
    config.max_position = config.max_q_len = sizes_.context;
    config.max_batch = sizes_.batch;
    config.max_threads = sizes_.threads;
    return config;
}

heed_layer_args Model::layer_args(const Block &block, int32_t count, bool training) const {
    heed::LayerArgs args;
    args.batch = count;
    args.q_len = sizes_.context;
    args.x = heed::tensor(block.attention_in.data(), block.attention_in.size());
    args.training = training;
    args.dropout_seed = static_cast<uint64_t>(step_);
    args.dropout_offset = static_cast<uint64_t>(&block - blocks_.data());
    args.execution = execution_;
    workspace_.attach(args.execution);
    return args;
}

void Model::attend(Block *block, int32_t count, bool training) {
    block->before_attention = stream_;
    block->attention_norm.forward(stream_, &block->attention_in);
    heed::LayerWeights weights;
    weights.wq = block->wq.tensor();
    weights.wk = block->wk.tensor();
    weights.wv = block->wv.tensor();
    weights.wo = block->wo.tensor();
    weights.rope_cos = heed::tensor(cos_.data(), cos_.size());
    weights.rope_sin = heed::tensor(sin_.data(), sin_.size());
    block->layer = std::make_unique<heed::Layer>(layer_config(), weights);
    if (workspace_.bytes() == 0) workspace_ = block->layer->make_workspace();
    scratch_.resize(stream_.size());
    heed_layer_args args = layer_args(*block, count, training);
    args.y = heed::tensor(scratch_.data(), scratch_.size());
    block->layer->forward(args);
    add(scratch_, &stream_);
}

void Model::mlp(Block *block) {
    block->before_mlp = stream_;
    block->mlp_norm.forward(stream_, &block->mlp_in);
    block->up.forward(block->mlp_in, &block->hidden, execution_);
    block->active.resize(block->hidden.size());
    for (size_t i = 0; i < block->hidden.size(); i++) {
        const float positive = std::max(block->hidden[i], 0.0f);
        block->active[i] = positive * positive;
    }
    block->down.forward(block->active, &scratch_, execution_);
    add(scratch_, &stream_);
}

void Model::forward(const std::vector<int32_t> &inputs, bool training) {
    const auto width = static_cast<size_t>(sizes_.width);
    stream_.resize(inputs.size() * width);
    for (size_t i = 0; i < inputs.size(); i++) {
        std::copy_n(embedding_.values.begin() + static_cast<std::ptrdiff_t>(elements(inputs[i], sizes_.width)), width,
                    stream_.begin() + static_cast<std::ptrdiff_t>(i * width));
    }
    const auto count = static_cast<int32_t>(inputs.size()) / sizes_.context;
    for (Block &block : blocks_) {
        attend(&block, count, training);
        mlp(&block);
    }
    final_norm_.forward(stream_, &normal_);
    to_logits_.forward(normal_, &logits_, execution_);
}

// gradient_ is that of the stream after the MLP, then that before it.
void Model::mlp_gradients(Block *block) {
    std::vector<float> of_active, of_input;
    block->down.backward(block->active, gradient_, &of_active, execution_);
    for (size_t i = 0; i < of_active.size(); i++) of_active[i] *= 2 * std::max(block->hidden[i], 0.0f);
    block->up.backward(block->mlp_in, of_active, &of_input, execution_);
    block->mlp_norm.backward(block->before_mlp, of_input, &gradient_);
}

void Model::attention_gradients(Block *block, int32_t count, bool training) {
    std::vector<float> of_input(gradient_.size());
    heed::LayerGradients gradients;
    gradients.dy = heed::tensor(gradient_.data(), gradient_.size());
    gradients.dx = heed::tensor(of_input.data(), of_input.size());
    gradients.dweights.wq = block->wq.gradient();
    gradients.dweights.wk = block->wk.gradient();
    gradients.dweights.wv = block->wv.gradient();
    gradients.dweights.wo = block->wo.gradient();
    block->layer->backward(layer_args(*block, count, training), gradients);
    block->attention_norm.backward(block->before_attention, of_input, &gradient_);
}

void Model::backward(const std::vector<int32_t> &inputs, bool training) {
    to_logits_.backward(normal_, logits_, &scratch_, execution_);
    gradient_.assign(stream_.size(), 0.0f);
    final_norm_.backward(stream_, scratch_, &gradient_);
    const auto count = static_cast<int32_t>(inputs.size()) / sizes_.context;
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
        mlp_gradients(&*block);
        attention_gradients(&*block, count, training);
    }
    const auto width = static_cast<size_t>(sizes_.width);
    for (size_t i = 0; i < inputs.size(); i++) {
        float *const to = embedding_.gradients.data() + elements(inputs[i], sizes_.width);
        for (size_t d = 0; d < width; d++) to[d] += gradient_[i * width + d];
    }
}

template <typename Visit>
void Model::for_each_parameter(const Visit &visit) {
    visit("embedding", &embedding_);
    for (size_t n = 0; n < blocks_.size(); n++) {
        Block &b = blocks_[n];
        const std::pair<const char *, Parameter *> parameters[] = {{"attention_norm", &b.attention_norm.scale},
                                                                   {"wq", &b.wq},
                                                                   {"wk", &b.wk},
                                                                   {"wv", &b.wv},
                                                                   {"wo", &b.wo},
                                                                   {"mlp_norm", &b.mlp_norm.scale},
                                                                   {"up", &b.up.weight},
                                                                   {"down", &b.down.weight}};
        for (const auto &[name, parameter] : parameters) visit(name + std::to_string(n), parameter);
    }
    visit("final_norm", &final_norm_.scale);
    visit("to_logits", &to_logits_.weight);
}

// Gradients are cut to norm 1 together.
double Model::train(const Batch &batch, const Adam &adam) {
    step_++;
    forward(batch.inputs, true);
    const double loss = cross_entropy(batch.targets, &logits_);
    backward(batch.inputs, true);
    double squares = 0;
    for_each_parameter([&](const std::string &, const Parameter *p) {
        for (const float g : p->gradients) squares += static_cast<double>(g) * static_cast<double>(g);
    });
    const auto factor = static_cast<float>(std::min(1.0, 1 / std::sqrt(squares)));
    for_each_parameter([&](const std::string &, Parameter *p) { adam.update(p, step_, factor); });
    return loss;
}

double Model::loss(const Batch &batch) {
    double sum = 0;
    const size_t most = elements(sizes_.batch, sizes_.context);
    for (size_t first = 0; first < batch.inputs.size(); first += most) {
        const size_t end = std::min(first + most, batch.inputs.size());
        const auto part = [&](const std::vector<int32_t> &all) {
            return std::vector<int32_t>(all.begin() + static_cast<std::ptrdiff_t>(first),
                                        all.begin() + static_cast<std::ptrdiff_t>(end));
        };
        forward(part(batch.inputs), false);
        sum += cross_entropy(part(batch.targets), &logits_) * static_cast<double>(end - first);
    }
    return sum / static_cast<double>(batch.inputs.size());
}

std::vector<int32_t> Model::continue_text(std::vector<int32_t> prompt, int32_t count, std::mt19937_64 *random) {
    const size_t context = static_cast<size_t>(sizes_.context), width = static_cast<size_t>(to_logits_.dim_out);
    for (int32_t n = 0; n < count; n++) {
        const size_t seen = std::min(prompt.size(), context);
        std::vector<int32_t> inputs(prompt.end() - static_cast<std::ptrdiff_t>(seen), prompt.end());
        inputs.resize(context);  // no position sees what comes after the last character
        forward(inputs, false);
        std::vector<double> weights;
        for (size_t i = 0; i < width; i++) {
            weights.push_back(std::exp(static_cast<double>(logits_[(seen - 1) * width + i]) / 0.8));  // temperature
        }
        prompt.push_back(std::discrete_distribution<int32_t>(weights.begin(), weights.end())(*random));
    }
    return prompt;
}

int64_t Model::num_parameters() const {
    size_t count = 0;
    const auto add_size = [&](const std::string &, const Parameter *p) { count += p->values.size(); };
    const_cast<Model *>(this)->for_each_parameter(add_size);
    return static_cast<int64_t>(count);
}

void Model::write_gradients(const Batch &batch, const std::string &folder) {
    const auto write = [&](const std::string &name, const std::vector<float> &values) {
        heed_demo::write_floats(folder + "/" + name + ".f32", values.data(), static_cast<int64_t>(values.size()));
    };
    forward(batch.inputs, false);
    const double loss = cross_entropy(batch.targets, &logits_);
    backward(batch.inputs, false);
    write("inputs", {batch.inputs.begin(), batch.inputs.end()});
    write("targets", {batch.targets.begin(), batch.targets.end()});
    write("loss", {static_cast<float>(loss)});
    for_each_parameter([&](const std::string &name, Parameter *p) {
        write(name, p->values);
        write("d" + name, p->gradients);
        std::fill(p->gradients.begin(), p->gradients.end(), 0.0f);
    });
}

}  // namespace heed_train
