// What heed_layer_backward refuses, and what holds for its gradients whatever the layer. Their values: gradients_test.
#include <cmath>
#include <functional>
#include <tuple>

#include "tests/layer/training_call.h"
#include "tests/support/float_state.h"

namespace heed_test {
namespace {

using testing::HasSubstr;

// A backward call of a layer's: dx and gradients of wq and bk.
class BackwardCall {
public:
    BackwardCall(const heed::Layer &layer, heed_dtype dtype)
        : layer_(layer), forward_(layer, dtype, 2, 20), dy_(dtype, 2 * 20 * SmallLayer::dim_out, 8), dx(dtype, 0, 0),
          dwq(dtype, 0, 0), dbk(dtype, 0, 0), args(forward_.args) {
        args.x = forward_.x.tensor();
        args.y = {};
        args.execution.workspace_bytes = heed_layer_backward_workspace_bytes(layer.get());
        gradients.dy = dy_.tensor();
        fill(&dx, static_cast<size_t>(args.x.size), &gradients.dx);
        fill(&dwq, SmallLayer::heads * SmallLayer::head_dim * SmallLayer::dim_in, &gradients.dweights.wq);
        fill(&dbk, SmallLayer::kv_heads * SmallLayer::head_dim, &gradients.dweights.bk);
    }

    void run() { ASSERT_EQ(call_backward(layer_.get(), &args, &gradients), HEED_OK) << heed_last_error(); }

    // Answers `wanted` with a sentence that has `sentence`, and touches no tensor.
    void refuse(heed_status wanted, const char *sentence) {
        const std::vector<float> before = all();
        EXPECT_EQ(heed_layer_backward(layer_.get(), &args, &gradients), wanted) << sentence;
        EXPECT_THAT(heed_last_error(), HasSubstr(sentence));
        EXPECT_EQ(all(), before) << sentence;
    }
    // The values of all three.
    std::vector<float> all() const {
        std::vector<float> values;
        for (const Elements *elements : {&dx, &dwq, &dbk}) {
            for (size_t i = 0; i < elements->size(); i++) values.push_back((*elements)[i]);
        }
        return values;
    }

private:
    static void fill(Elements *elements, size_t count, heed_tensor *tensor) {
        for (size_t i = 0; i < count; i++) elements->push(0);
        *tensor = elements->tensor();
    }

    const heed::Layer &layer_;
    GuardedCall forward_;
    const Elements dy_;

public:
    Elements dx, dwq, dbk;
    heed::LayerArgs &args;
    heed::LayerGradients gradients;
};

TEST(LayerBackward, Refusals) {
    const heed::Layer layer = SmallLayer().make();
    const Elements other(HEED_F32, 2 * 20 * SmallLayer::dim_in, 9);
    heed::Cache cache(layer, cache_config(HEED_KV_PAGED));
    struct Case {
        std::function<void(BackwardCall &)> change;
        const char *sentence;
        heed_status status = HEED_INVALID_ARGUMENT;
    };
    const heed_tensor some = other.tensor();
    const Case cases[] = {
        {[](auto &c) { c.args.struct_size = 3; }, "heed_layer_args.struct_size is 3"},
        {[](auto &c) { c.gradients.struct_size = 3; }, "heed_layer_gradients.struct_size is 3"},
        {[](auto &c) { c.gradients.dweights.struct_size = 0; }, "heed_layer_gradients.dweights.struct_size is 0"},
        {[](auto &c) { c.args.batch = 4; }, "batch is 4"},
        {[&](auto &c) { c.args.cache = cache.get(); }, "without a cache", HEED_UNSUPPORTED},
        {[](auto &c) { c.args.execution.workspace = nullptr; }, "execution.workspace is NULL"},
        {[](auto &c) { c.args.execution.workspace_bytes = 128; }, "workspace_bytes is 128", HEED_WORKSPACE_TOO_SMALL},
        {[](auto &c) { c.args.x = {}; }, "x is NULL"},
        {[](auto &c) { c.gradients.dy = {}; }, "dy is NULL"},
        {[](auto &c) { c.gradients.dx = c.args.x; }, "dx overlaps x"},
        {[](auto &c) { c.gradients.dx.size--; }, "dx.size is 1919"},
        {[](auto &c) { c.gradients.dweights.wq.size++; }, "dweights.wq has 3073 elements; the layer's weight has 3072"},
        {[](auto &c) { c.gradients.dweights.wq = c.gradients.dx, c.gradients.dweights.wq.size = 3072; }, "dweights.wq"},
        {[&](auto &c) { c.gradients.dcontext = some; }, "dcontext is not NULL; a self attention layer attends to x"},
        {[&](auto &c) { c.gradients.dbias = some; }, "dbias is not NULL; the call has no bias"},
        {[&](auto &c) { c.gradients.dweights.wqkv = some; }, "dweights.wqkv is not NULL; the layer's weight_layout"},
        {[&](auto &c) { c.gradients.dweights.q_norm_bias = some; },
         "dweights.q_norm_bias is not NULL; the layer's qk_norm"},
        {[&](auto &c) { c.gradients.dweights.sink = some; }, "dweights.sink is not NULL; the layer has no sink"},
        {[&](auto &c) { c.gradients.dweights.alibi_slopes = some; },
         "dweights.alibi_slopes is not NULL; layers have no"},
        {[&](auto &c) { c.gradients.dweights.rope_sin = some; }, "dweights.rope_sin is not NULL; layers have no"},
    };
    for (const Case &c : cases) {
        BackwardCall call(layer, HEED_F32);
        c.change(call);
        call.refuse(c.status, c.sentence);
    }
    heed_layer_args args = {};
    heed_layer_gradients gradients = {};
    EXPECT_EQ(heed_layer_backward(nullptr, &args, &gradients), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_layer_backward(layer.get(), nullptr, &gradients), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_layer_backward(layer.get(), &args, nullptr), HEED_INVALID_ARGUMENT);
}

TEST(LayerBackward, EmptyCallsAddNothing) {
    const heed::Layer layer = SmallLayer().make();
    BackwardCall call(layer, HEED_F32);
    call.args.q_len = 0;
    call.run();
    EXPECT_EQ(call.all(), std::vector<float>(call.all().size(), 0.0f));
}

// A second call doubles what the first one found: gradients are summed.
TEST(LayerBackward, GradientsAreSummed) {
    const heed::Layer layer = SmallLayer().make();
    BackwardCall call(layer, HEED_F32);
    call.run();
    std::vector<float> expected = call.all();
    for (float &x : expected) x += x;
    call.run();
    EXPECT_EQ(call.all(), expected);
}

TEST(LayerBackward, TheCallersFloatingPointStateChangesNothing) {
    if (test_device() != HEED_CPU) GTEST_SKIP() << "of CPUs: the emulated device computes in the caller's state";
    SmallLayer small(HEED_F16);
    small.config.dropout_p = 0.3f;
    small.config.clip_qkv = 0.9f;
    const auto run_in = [&](unsigned int state) {
        std::unique_ptr<heed::Layer> layer;
        const auto make = [&] {
            layer = std::make_unique<heed::Layer>(small.make());
            return HEED_OK;
        };
        expect_status(make, state, HEED_OK);
        GuardedCall forward(*layer, HEED_F16, 2, 20);
        forward.args.x = forward.x.tensor();
        expect_status([&] { return heed_layer_forward(layer->get(), &forward.args); }, state, HEED_OK);
        BackwardCall call(*layer, HEED_F16);
        call.args.training = true;
        expect_status([&] { return heed_layer_backward(layer->get(), &call.args, &call.gradients); }, state, HEED_OK);
        std::vector<float> results = call.all();
        for (const float y : forward.y()) results.push_back(y);
        return results;
    };
    const std::vector<float> expected = run_in(default_state);
    for (const unsigned int state : {0x9fc0u, 0x5f80u, 0x7f80u, 0u}) EXPECT_EQ(run_in(state), expected) << state;
}

TEST(LayerBackward, NarrowTypesAreNearF32) {
    const heed::Layer wide = SmallLayer().make();
    BackwardCall full(wide, HEED_F32);
    full.run();
    for (const heed_dtype dtype : {HEED_F16, HEED_BF16}) {
        const heed::Layer layer = SmallLayer(dtype).make();
        BackwardCall call(layer, dtype);
        call.run();
        expect_near(call.all(), full.all(), dtype == HEED_F16 ? 0x1p-8 : 0x1p-5);
    }
}

// Asked for alone, each gradient has the bits that it has among all; the others are left alone.
TEST(LayerBackward, EachGradientAlone) {
    for (const bool cross : {false, true}) {
        const TrainedLayer weights(cross);
        const heed::Layer layer = weights.make();
        TrainingCall all(weights, layer), one(weights, layer);
        ASSERT_EQ(all.status(), HEED_OK) << heed_last_error();
        for (size_t n = 0; n < all.count(); n++) {
            one.reset();
            one.ask_only(n);
            ASSERT_EQ(one.status(), HEED_OK) << heed_last_error();
            EXPECT_EQ(one.result(n), all.result(n)) << n;
            EXPECT_NE(one.result(n), std::vector<float>(one.result(n).size(), 1.0f)) << n;
            EXPECT_EQ(one.result((n + 1) % one.count()),
                      std::vector<float>(one.result((n + 1) % one.count()).size(), 1.0f));
        }
    }
}

// Tokens of the context that key padding hides, or that come after kv_lens, may be NaN: their gradients are 0.
TEST(LayerBackward, HiddenTokensOfTheMemory) {
    const TrainedLayer weights(true);
    const heed::Layer layer = weights.make();
    TrainingCall call(weights, layer), poisoned(weights, layer);
    ASSERT_EQ(call.status(), HEED_OK) << heed_last_error();
    std::vector<float> context(static_cast<size_t>(call.args.context.size));
    std::memcpy(context.data(), call.args.context.data, context.size() * sizeof(float));
    const auto is_hidden = [](size_t token) { return token == 3 || token == 17 || token >= 17 + 9; };
    for (size_t i = 0; i < context.size(); i++) {
        if (is_hidden(i / SmallLayer::dim_in)) context[i] = std::nanf("");
    }
    poisoned.args.context = heed::tensor(context.data(), context.size());
    ASSERT_EQ(poisoned.status(), HEED_OK) << heed_last_error();
    for (size_t n = 0; n < call.count(); n++) EXPECT_EQ(poisoned.result(n), call.result(n)) << n;
    const std::vector<float> &dcontext = call.result(2);
    ASSERT_EQ(dcontext.size(), context.size());
    for (size_t i = 0; i < context.size(); i++) {
        if (!is_hidden(i / SmallLayer::dim_in)) continue;
        ASSERT_EQ(dcontext[i], 1.0f) << i;
    }
}

// Lengths and a padding that hide the same tokens are the same call.
TEST(LayerBackward, LengthsAndPaddingHideAlike) {
    TrainedLayer weights(true);
    weights.config.causal = false;  // which counts positions from the last key
    const heed::Layer layer = weights.make();
    TrainingCall lengths(weights, layer), padded(weights, layer);
    std::vector<uint8_t> padding(TrainingCall::batch * TrainingCall::context_len, 1);
    std::fill(padding.begin() + TrainingCall::context_len + 9, padding.end(), uint8_t{0});
    lengths.args.key_padding = {};
    padded.args.kv_lens = nullptr;
    padded.args.key_padding = heed::tensor(padding.data(), padding.size());
    ASSERT_EQ(lengths.status(), HEED_OK) << heed_last_error();
    ASSERT_EQ(padded.status(), HEED_OK) << heed_last_error();
    for (size_t n = 0; n < lengths.count(); n++) expect_near(padded.result(n), lengths.result(n), 1e-5);
}

// An empty context: outputs are zero, and only bo learns.
TEST(LayerBackward, EmptyMemory) {
    const TrainedLayer weights(true);
    const heed::Layer layer = weights.make();
    TrainingCall call(weights, layer);
    call.args.context_len = 0;
    call.args.context = call.args.key_padding = call.args.bias = {};
    call.args.kv_lens = nullptr;
    call.gradients.dcontext = call.gradients.dbias = {};
    ASSERT_EQ(call.status(), HEED_OK) << heed_last_error();
    constexpr size_t bo = 3 + 7;
    for (size_t n = 0; n < call.count(); n++) {
        const bool unchanged = call.result(n) == std::vector<float>(call.result(n).size(), 1.0f);
        EXPECT_EQ(unchanged, n != bo) << n;
    }
}

TEST(LayerBackward, RefusalsOfTheBias) {
    const TrainedLayer weights(false);
    const heed::Layer layer = weights.make();
    TrainingCall call(weights, layer);
    call.gradients.dbias.size--;
    EXPECT_EQ(call.status(), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("dbias.size is 1599"));
    call.gradients.dbias.size++;
    call.gradients.dbias.dtype = HEED_F16;
    EXPECT_EQ(call.status(), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("dbias.dtype"));
    EXPECT_TRUE(call.untouched());
}

// The gradients of a layer whose projections are all `value`, which is exact: x is 1, one weight of each row is it.
std::vector<float> gradients_of_projections(heed_dtype dtype, float value, float clip) {
    SmallLayer small(dtype);
    small.config.clip_qkv = clip;
    small.weights.bk = {};
    for (Elements *w : {&small.wq, &small.wk, &small.wv}) {
        for (size_t i = 0; i < w->size(); i++) w->set(i, i % SmallLayer::dim_in == 0 ? value : 0);
    }
    const heed::Layer layer = small.make();
    BackwardCall call(layer, dtype);
    Elements x(dtype, 0, 0);
    while (x.size() < static_cast<size_t>(call.args.x.size)) x.push(1);
    call.args.x = x.tensor();
    call.gradients.dweights.bk = {};
    call.run();
    return call.all();
}

// The types hold a number above or below the clip in its place.
TEST(LayerBackward, ClippedProjectionsPassNothing) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        for (const float clip : {0.9f, 1.1f, 30.3f}) {
            const std::vector<float> all = gradients_of_projections(dtype, 384, clip);
            EXPECT_EQ(all, std::vector<float>(all.size(), 0.0f)) << dtype << " " << clip;
        }
    }
}

// 30.3 in the type, and the number below it.
TEST(LayerBackward, ProjectionsAtTheClipPassNothing) {
    const std::tuple<heed_dtype, float, float> cases[] = {{HEED_F32, 30.3f, std::nextafter(30.3f, 0.0f)},
                                                          {HEED_F16, 30.296875f, 30.28125f},
                                                          {HEED_BF16, 30.25f, 30.125f}};
    for (const auto &[dtype, bound, below] : cases) {
        const std::vector<float> at = gradients_of_projections(dtype, bound, 30.3f);
        EXPECT_EQ(at, std::vector<float>(at.size(), 0.0f)) << dtype;
        EXPECT_NE(gradients_of_projections(dtype, below, 30.3f), at) << dtype;
    }
}

// Weight gradients of a narrow layer may be summed in f32, and are then not rounded to the layer's type.
TEST(LayerBackward, NarrowGradientsInF32) {
    const heed::Layer layer = SmallLayer(HEED_BF16).make();
    BackwardCall narrow(layer, HEED_BF16), wide(layer, HEED_BF16);
    std::vector<float> dwq(narrow.dwq.size());
    wide.gradients.dweights.wq = heed::tensor(dwq.data(), dwq.size());
    narrow.run();
    wide.run();
    size_t between = 0;
    for (size_t i = 0; i < dwq.size(); i++) {
        ASSERT_EQ(round_to(HEED_BF16, dwq[i]), narrow.dwq[i]);
        if (dwq[i] != narrow.dwq[i]) between++;
    }
    EXPECT_GT(between, dwq.size() / 2);
}

}  // namespace
}  // namespace heed_test
