// Packed tokens: the results of the padded batch, without the padding.
#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/layer/small_layer.h"

namespace heed_test {
namespace {

using testing::HasSubstr;

std::vector<int32_t> prefix_sums(const std::vector<int32_t> &lens) {
    std::vector<int32_t> sums(lens.size() + 1, 0);
    std::partial_sum(lens.begin(), lens.end(), sums.begin() + 1);
    return sums;
}

// A call of the tokens of `padded`, [batch, q_len], that its lengths count; x, y and lengths in exact memory.
class PackedCall : public GuardedCall {
public:
    PackedCall(const heed::Layer &layer, heed_dtype dtype, const std::vector<int32_t> &lens, const GuardedCall &padded)
        : GuardedCall(layer, dtype, 1, std::accumulate(lens.begin(), lens.end(), 0)), sums_(prefix_sums(lens)) {
        for (size_t b = 0; b < lens.size(); b++) {
            for (int32_t t = 0; t < lens[b]; t++) take_token(0, sums_[b] + t, padded, static_cast<int32_t>(b), t);
        }
        args.batch = padded.args.batch;
        args.q_len = padded.args.q_len;
        args.cu_seqlens = sums_.data();
    }

private:
    const std::vector<int32_t> sums_;
};

using ChangeCall = std::function<void(heed_layer_args &)>;

// bound 0: the same bits.
void expect_the_padded_results(const SmallLayer &small, const std::vector<int32_t> &lens, const ChangeCall &change,
                               double bound) {
    const heed::Layer layer = small.make();
    const heed_dtype dtype = small.config.dtype;
    const int32_t q_len = 20, batch = static_cast<int32_t>(lens.size());
    for (const int32_t longest : {q_len, *std::max_element(lens.begin(), lens.end())}) {
        GuardedCall padded(layer, dtype, batch, longest);
        PackedCall packed(layer, dtype, lens, padded);
        padded.args.q_lens = lens.data();
        change(padded.args);
        change(packed.args);
        const std::vector<float> expected = padded.run();
        for (const int32_t threads : {1, 3}) {
            packed.args.execution.num_threads = threads;
            const std::vector<float> y = packed.run();
            int32_t at = 0;
            for (int32_t b = 0; b < batch; b++) {
                for (int32_t t = 0; t < lens[static_cast<size_t>(b)]; t++) {
                    SCOPED_TRACE(testing::Message() << "sequence " << b << " token " << t);
                    expect_near(row_of(y, 0, 0, at++), row_of(expected, longest, b, t), bound);
                }
            }
        }
    }
}

const ChangeCall nothing = [](heed_layer_args &) {};

void expect_the_padded_results(SmallLayer &small, const ChangeCall &change, double bound) {
    small.config.max_threads = 3;
    const std::vector<int32_t> some_lens[] = {{7, 0, 20}, {20, 20, 20}, {1, 3, 2}, {0, 0, 1}, {11}};
    for (const std::vector<int32_t> &lens : some_lens) expect_the_padded_results(small, lens, change, bound);
}

void expect_the_padded_bits(SmallLayer &small, const ChangeCall &change = nothing) {
    expect_the_padded_results(small, change, 0);
}

// Heads of keys and values of their own.
void make_multi_head(SmallLayer *small) {
    small->config.num_kv_heads = SmallLayer::heads;
    small->weights.wk = small->weights.wv = small->wq.tensor();
    small->weights.wv.size = int64_t{SmallLayer::heads} * SmallLayer::head_dim_v * SmallLayer::dim_in;
    small->weights.bk = {};
}

TEST(LayerPacked, BitsOfThePaddedBatch) {
    for (const heed_dtype dtype : {HEED_F32, HEED_BF16}) {
        for (const bool causal : {false, true}) {
            for (const int32_t kv_heads : {1, 2, 4}) {
                SCOPED_TRACE(testing::Message()
                             << "dtype " << dtype << " causal " << causal << " kv_heads " << kv_heads);
                SmallLayer small(dtype);
                small.config.causal = causal;
                if (kv_heads == 1) small.drop_kv_head();
                if (kv_heads == 4) make_multi_head(&small);
                expect_the_padded_bits(small);
                small.add_rope();
                expect_the_padded_bits(small);
            }
        }
    }
}

TEST(LayerPacked, WindowsAndPositions) {
    for (const heed_position position : {HEED_BOTTOM_RIGHT, HEED_TOP_LEFT}) {
        SmallLayer small;
        small.config.position = position;
        small.config.causal = false;
        small.config.window_right = 2;
        expect_the_padded_bits(small);
        small.config.window_left = 4;
        expect_the_padded_results(small, nothing, f32_bound);
    }
}

// In the longest sequence's shape, as the padded batch has them.
TEST(LayerPacked, MasksAndBiases) {
    Rng rng(3);
    std::vector<uint8_t> mask(3 * 20 * 20);
    for (uint8_t &x : mask) x = rng.chance(0.7);
    const Elements bias(HEED_F32, 3 * 4 * 20 * 20, 11);
    SmallLayer small;
    expect_the_padded_bits(small, [&](heed_layer_args &args) {
        args.mask = heed::tensor(mask.data(), mask.size());
        args.mask_shape[1] = 1;
        args.bias = bias.tensor();
    });
}

TEST(LayerPacked, Dropout) {
    SKIP_WITHOUT_KERNELS(HEED_F32, HEED_F32, HEED_KV_CONTIGUOUS, HEED_FEATURE_DROPOUT);
    SmallLayer small;
    small.config.dropout_p = 0.3f;
    expect_the_padded_bits(small, [](heed_layer_args &args) {
        args.training = true;
        args.dropout_seed = 5;
    });
}

TEST(LayerPacked, NoTokens) {
    const heed::Layer layer = SmallLayer().make();
    const GuardedCall padded(layer, HEED_F32, 3, 20);
    PackedCall none(layer, HEED_F32, {0, 0, 0}, padded);
    none.run();
    none.args.batch = 0;
    none.run();
}

TEST(LayerPacked, Refusals) {
    struct Case {
        ChangeCall change;
        const char *sentence;
    };
    static const std::vector<uint8_t> bytes(3 * 20, 1);
    static std::vector<float> probs(3 * 4 * 20 * 20);
    static const int32_t late[] = {1, 7, 8, 20}, falling[] = {0, 7, 6, 20}, negative[] = {0, -1, 7, 20},
                         steep[] = {0, 21, 21, 21}, huge[] = {0, 7, INT32_MAX, INT32_MAX}, lens[] = {7, 0, 13};
    const Case cases[] = {
        {[](auto &a) { a.cu_seqlens = late; }, "cu_seqlens[0] is 1; it must be 0"},
        {[](auto &a) { a.cu_seqlens = falling; }, "cu_seqlens[2] is 6 after 7; it must grow by 0..20, which is q_len"},
        {[](auto &a) { a.cu_seqlens = negative; }, "cu_seqlens[1] is -1 after 0; it must grow by 0..20"},
        {[](auto &a) { a.cu_seqlens = steep; }, "cu_seqlens[1] is 21 after 0; it must grow by 0..20"},
        {[](auto &a) { a.cu_seqlens = huge; }, "cu_seqlens[2] is 2147483647 after 7"},
        {[](auto &a) { a.q_lens = lens; }, "q_lens is not NULL; with cu_seqlens it must be NULL"},
        {[](auto &a) { a.kv_lens = lens; }, "kv_lens is not NULL; with cu_seqlens it must be NULL"},
        {[](auto &a) { a.key_padding = heed::tensor(bytes.data(), bytes.size()); },
         "key_padding is not NULL; with cu_seqlens it must be NULL"},
        {[](auto &a) { a.probs = heed::tensor(probs.data(), probs.size()); },
         "probs is not NULL; with cu_seqlens it must be NULL"},
        {[](auto &a) { a.y.size--; }, "y.size is 799"},
    };
    SmallLayer small;
    const heed::Layer layer = small.make();
    const GuardedCall padded(layer, HEED_F32, 3, 20);
    PackedCall call(layer, HEED_F32, {7, 0, 13}, padded);
    const heed_layer_args good = call.args;
    for (const Case &c : cases) {
        SCOPED_TRACE(c.sentence);
        c.change(call.args);
        EXPECT_EQ(call.status(), HEED_INVALID_ARGUMENT);
        EXPECT_THAT(heed_last_error(), HasSubstr(c.sentence));
        EXPECT_TRUE(call.y_untouched());
        static_cast<heed_layer_args &>(call.args) = good;
    }
    heed::Cache cache(layer, cache_config(f32_storages().front(), HEED_F32, 3));
    call.args.cache = cache.get();
    EXPECT_EQ(call.status(), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("cache is not NULL; with cu_seqlens it must be NULL"));
    EXPECT_EQ(cache.view().kv_lens[0], 0);
    call.args.cache = nullptr;
    if (test_device() == HEED_CPU) {
        call.args.cu_seqlens = static_cast<const int32_t *>(call.args.execution.workspace);
        EXPECT_EQ(call.status(), HEED_INVALID_ARGUMENT);
        EXPECT_THAT(heed_last_error(), HasSubstr("workspace overlaps cu_seqlens"));
    }
    EXPECT_TRUE(call.y_untouched());
}

TEST(LayerPacked, RefusedByOtherLayersAndGradients) {
    SmallLayer small;
    const heed::Layer self = small.make();
    const GuardedCall padded(self, HEED_F32, 3, 20);
    PackedCall call(self, HEED_F32, {7, 0, 13}, padded);
    call.args.x = call.x.tensor();
    heed::LayerGradients gradients;
    gradients.dy = call.x.tensor();
    std::vector<char> memory(heed_layer_backward_workspace_bytes(self.get()) + 128);
    heed_layer_args args = call.args;
    const auto rest = reinterpret_cast<uintptr_t>(memory.data()) % 128;
    args.execution.workspace = memory.data() + 128 - rest;
    args.execution.workspace_bytes = memory.size() - 128;
    EXPECT_EQ(call_backward(self.get(), &args, &gradients), HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), HasSubstr("cu_seqlens is not NULL; heed_layer_backward serves padded batches"));

    small.config.cross = true;
    small.config.causal = false;
    const heed::Layer cross = small.make();
    PackedCall crossed(cross, HEED_F32, {7, 0, 13}, padded);
    EXPECT_EQ(crossed.status(), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("cu_seqlens is not NULL; it must be NULL in a layer of cross attention"));
    EXPECT_TRUE(crossed.y_untouched());
}

}  // namespace
}  // namespace heed_test
