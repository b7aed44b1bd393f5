// A form's inputs, weights and expected results, as reference.py writes them, and one call of a layer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "tests/layer/layer_call.h"

namespace heed_test {

extern std::string form_folder;

class FormFile {
public:
    explicit FormFile(const std::string &name) : file_(form_folder + "/" + name + ".safetensors") {}

    heed_tensor find(const std::string &name) const { return file_.find(name).tensor; }
    bool has(const std::string &name) const {
        try {
            return find(name).data != nullptr;
        } catch (const heed::Error &) {
            return false;
        }
    }
    int32_t rank(const std::string &name) const { return static_cast<int32_t>(file_.find(name).shape.size()); }
    int32_t extent(const std::string &name, size_t axis) const {
        return static_cast<int32_t>(file_.find(name).shape.at(axis));
    }

    // All weights of the file, under their own names or these.
    heed::LayerWeights weights(const char *wq = "wq", const char *wk = "wk", const char *wv = "wv",
                               const char *wo = "wo") const {
        heed::LayerWeights w;
        const auto take = [&](const char *name, heed_tensor *tensor) {
            if (has(name)) *tensor = find(name);
        };
        take(wq, &w.wq);
        take(wk, &w.wk);
        take(wv, &w.wv);
        take(wo, &w.wo);
        take("wqkv", &w.wqkv);
        take("bq", &w.bq);
        take("bk", &w.bk);
        take("bv", &w.bv);
        take("bo", &w.bo);
        take("bqkv", &w.bqkv);
        take("q_norm_weight", &w.q_norm_weight);
        take("q_norm_bias", &w.q_norm_bias);
        take("k_norm_weight", &w.k_norm_weight);
        take("k_norm_bias", &w.k_norm_bias);
        return w;
    }

    // Indices [first, first + count) of one axis, packed.
    template <typename T>
    std::vector<T> columns(const std::string &name, size_t axis, int64_t first, int64_t count) const {
        const auto found = file_.find(name);
        int64_t outer = 1, inner = 1;
        for (size_t i = 0; i < axis; i++) outer *= found.shape[i];
        for (size_t i = axis + 1; i < found.shape.size(); i++) inner *= found.shape[i];
        std::vector<T> values;
        for (int64_t o = 0; o < outer; o++) {
            const T *const at = static_cast<const T *>(found.tensor.data) + (o * found.shape[axis] + first) * inner;
            values.insert(values.end(), at, at + count * inner);
        }
        return values;
    }

    // Compares all elements, or those of the first sequences. At most twice the root mean square error of the same
    // formulas in float32 by numpy, whose sums are blocked, and four times the largest one; as much for a result
    // rounded to float32.
    void expect(const std::string &name, const std::vector<float> &got) const {
        std::vector<float> expected = columns<float>(name, 0, 0, extent(name, 0));
        ASSERT_TRUE(!got.empty() && expected.size() % got.size() == 0) << name;
        expected.resize(got.size());
        const auto *const allowed = static_cast<const float *>(find(name + "_error").data);
        double squares = 0, largest = 0, size = 0;
        for (size_t i = 0; i < got.size(); i++) {
            const double error = std::fabs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
            ASSERT_FALSE(std::isnan(error)) << name << "[" << i << "]";
            squares += error * error;
            largest = std::max(largest, error);
            size = std::max(size, std::fabs(static_cast<double>(expected[i])));
        }
        const double rms = std::sqrt(squares / static_cast<double>(got.size())), rounding = size * 0x1p-24;
        const double rms_allowed = static_cast<double>(allowed[0]), largest_allowed = static_cast<double>(allowed[1]);
        EXPECT_LE(rms, 2 * rms_allowed + rounding) << name;
        EXPECT_LE(largest, 4 * largest_allowed + rounding) << name;
        EXPECT_GT(size, 1000 * (4 * largest_allowed + rounding)) << name << ": the test proves nothing";
        std::printf("[   RATIO  ] %s: error / numpy's in float32: rms %.2f, largest %.2f\n", name.c_str(),
                    rms / rms_allowed, largest / largest_allowed);
    }

    // past_k, past_v [batch, kv heads, kv_len, .].
    void expect_cache(const heed_kv_view &view) const {
        for (const bool is_k : {true, false}) {
            const heed_layout &layout = is_k ? view.k_layout : view.v_layout;
            const int64_t dim = is_k ? view.head_dim : view.head_dim_v;
            const std::vector<float> host = on_host(is_k ? view.k : view.v);
            const float *const data = host.data();
            std::vector<float> got;
            for (int64_t b = 0; b < view.batch; b++) {
                for (int64_t g = 0; g < view.num_kv_heads; g++) {
                    for (int64_t j = 0; j < view.kv_lens[b]; j++) {
                        const bool paged = view.storage == HEED_KV_PAGED;
                        const int64_t page =
                            paged ? view.page_table[b * view.max_pages_per_seq + j / view.page_size] : b;
                        const int64_t slot = paged ? j % view.page_size : j;
                        const float *const row =
                            data + page * layout.stride[0] + slot * layout.stride[1] + g * layout.stride[2];
                        got.insert(got.end(), row, row + dim);
                    }
                }
            }
            expect(is_k ? "past_k" : "past_v", got);
        }
    }

private:
    static std::vector<float> on_host(const heed_tensor &tensor) {
        const auto *const data = static_cast<const float *>(tensor.data);
        if (test_device() == HEED_CPU) return {data, data + tensor.size};
        std::vector<float> host(static_cast<size_t>(tensor.size));
        CudaDevice::get().copy_to_host(host.data(), data, host.size() * sizeof(float));
        return host;
    }

    const heed::WeightsFile file_;
};

// A forward call with its workspace.
class FormCall {
public:
    FormCall(const heed::Layer &layer, int32_t batch, int32_t q_len)
        : layer_(layer), workspace_(layer.make_workspace()) {
        args.batch = batch;
        args.q_len = q_len;
        workspace_.attach(args.execution);
        args.execution.device = test_device();
    }

    heed::LayerArgs args;

    std::vector<float> forward(int32_t dim_out) {
        std::vector<float> y(static_cast<size_t>(args.batch) * static_cast<size_t>(args.q_len * dim_out), NAN);
        args.y = heed::tensor(y.data(), y.size());
        heed::check(call_forward(layer_.get(), &args));
        return y;
    }

private:
    const heed::Layer &layer_;
    const heed::Workspace workspace_;
};

}  // namespace heed_test
