// The draw: every field of heed_problem, every storage, every odd length.
#include <algorithm>

#include "tests/random/problem.h"
#include "tests/support/device.h"

namespace heed_test {
namespace {

constexpr int32_t int32_min = std::numeric_limits<int32_t>::min(), int32_max = std::numeric_limits<int32_t>::max();

class Draw {
public:
    Draw(uint64_t seed, const std::vector<TableKernel> &kernels)
        : rng_(seed * 0x9e3779b97f4a7c15ull + 1), kernels_(kernels) {}

    RandomProblem problem() {
        const TableKernel &kernel = kernels_[static_cast<size_t>(rng_.below(static_cast<int32_t>(kernels_.size())))];
        const bool suits_kernel = chance(0.8);
        kv_block_ = kernel.info.kv_block;
        row_block_ = kernel.info.row_block;
        if (suits_kernel) {
            of_kernel(kernel);
        } else {
            of_any_type();
        }
        draw_lengths();
        limit_work();
        draw_storage(!suits_kernel || kernel.paged());
        draw_visibility();
        draw_scores(suits_kernel ? kernel.info.features : ~0u);
        draw_layouts();
        draw_call();
        return p_;
    }

private:
    bool chance(double probability) { return rng_.chance(probability); }

    template <class T>
    T one_of(const std::vector<T> &list) {
        return list[static_cast<size_t>(rng_.below(static_cast<int32_t>(list.size())))];
    }

    void of_kernel(const TableKernel &kernel) {
        const int32_t most = kernel.most_head_dim();
        static_cast<Shape &>(a_) = kernel.shape(head_dim(most), head_dim(most));
        a_.dtype = kernel.info.dtype;
        a_.int8_kv = kernel.int8_kv();
        if (chance(0.75)) p_.options.kernel = kernel.name;
    }

    void of_any_type() {
        a_.head_dim = head_dim(640);
        a_.head_dim_v = chance(0.6) ? a_.head_dim : head_dim(640);
        a_.dtype = one_of<heed_dtype>({HEED_F32, HEED_F16, HEED_BF16});
        a_.int8_kv = chance(0.2);
        if (chance(0.05)) p_.options.kernel = one_of(kernels_).name;
    }

    int32_t head_dim(int32_t most) {
        if (chance(0.4)) return one_of<int32_t>({16, 32, 64, 80, 96, 128, 192, 256});
        return chance(0.9) ? rng_.between(1, 130) : rng_.between(1, most);
    }

    int32_t kv_len() {
        const int32_t block = kv_block_;
        if (chance(0.5)) return rng_.between(1, 2 * block + 70);
        return one_of<int32_t>({0, 1, 2, 3, 15, 16, 17, block - 1, block, block + 1, 2 * block, 3 * block + 1, 331});
    }

    int32_t q_len() {
        if (chance(0.02)) return 0;
        if (chance(0.45)) return rng_.between(1, 4);
        if (chance(0.5)) return rng_.between(1, 70);
        return one_of<int32_t>({5, row_block_ - 1, row_block_, row_block_ + 1, 2 * row_block_ + 1, 37});
    }

    void draw_lengths() {
        a_.batch = chance(0.03) ? 0 : chance(0.1) ? rng_.between(5, 20) : rng_.between(1, 4);
        a_.num_kv_heads = chance(0.4) ? 1 : rng_.between(2, 4);
        a_.num_heads = a_.num_kv_heads * one_of<int32_t>({1, 1, 2, 3, 4, 5, 7, 8});
        a_.q_len = std::max(q_len(), 0);
        a_.kv_len = chance(0.15) ? a_.q_len : std::max(kv_len(), 0);
    }

    // The reference takes some 10 ms for a problem of the most work.
    void limit_work() {
        const double most = sized(6 << 20, 1 << 18);
        const auto work = [&] {
            return double{1} * a_.batch * a_.num_heads * a_.q_len * a_.kv_len * (a_.head_dim + a_.head_dim_v);
        };
        while (work() > most && a_.batch > 1) a_.batch = (a_.batch + 1) / 2;
        while (work() > most && a_.num_kv_heads > 1) {
            a_.num_heads = a_.num_heads / a_.num_kv_heads;
            a_.num_kv_heads = 1;
        }
        while (work() > most && a_.q_len > 4) a_.q_len = a_.q_len * 2 / 3;
        while (work() > most && a_.kv_len > 1) a_.kv_len = a_.kv_len * 2 / 3;
    }

    std::vector<int32_t> lengths(int32_t most) {
        std::vector<int32_t> result;
        for (int32_t b = 0; b < a_.batch; b++) {
            result.push_back(chance(0.1) ? 0 : chance(0.2) ? most : rng_.between(0, most));
        }
        return result;
    }

    void draw_storage(bool may_be_paged) {
        CallOptions &o = p_.options;
        o.page_size = chance(0.5) ? one_of<int32_t>({1, 2, 16, 32, 64, 128, 256}) : rng_.between(1, 70);
        o.page_seed = rng_.bits();
        o.share_pages = chance(0.3);
        o.spare_columns = rng_.below(3);
        if (may_be_paged && chance(0.5)) o.kv_storage = HEED_KV_PAGED;
        if (chance(0.4)) {
            o.q_storage = HEED_Q_VARLEN;
            if (chance(0.9)) a_.q_lens = lengths(a_.q_len);
            if (o.kv_storage == HEED_KV_CONTIGUOUS && chance(0.5)) o.kv_storage = HEED_KV_VARLEN;
        }
        if (chance(0.5)) a_.kv_lens = a_.q_len == a_.kv_len && chance(0.5) ? a_.q_lens : lengths(a_.kv_len);
    }

    int32_t window() {
        if (chance(0.6)) return -1;
        return chance(0.7) ? rng_.between(0, 80) : one_of<int32_t>({0, 1, kv_block_, a_.kv_len, int32_max});
    }

    void draw_flag(bool *flag) { *flag = chance(0.5); }
    template <class T>
    void draw_flag(T *) {}  // a number, drawn on its own

    void draw_visibility() {
        a_.position = one_of<heed_position>({HEED_TOP_LEFT, HEED_BOTTOM_RIGHT, HEED_EXPLICIT});
#define HEED_DRAW(name, ...) draw_flag(&a_.name);
        HEED_LOGIT_FIELDS(HEED_DRAW)
#undef HEED_DRAW
        a_.window_left = window();
        a_.window_right = window();
        for (int32_t b = 0; b < a_.batch && a_.position == HEED_EXPLICIT; b++) {
            const bool far = chance(0.05);
            a_.q_offsets.push_back(far ? one_of<int32_t>({int32_min, int32_max}) : rng_.between(-20, a_.kv_len + 20));
        }
    }

    std::array<int32_t, 4> axes() { return {rng_.below(2), rng_.below(2), rng_.below(2), rng_.below(2)}; }

    void draw_temperature() {
        p_.temperature = chance(0.5);
        if (chance(0.5)) a_.temperature_growth = 0.2f * rng_.normal();
        a_.temperature_interval = rng_.between(1, 40);
        a_.temperature_shift = rng_.below(3);
    }

    void draw_scores(uint32_t features) {
        const auto wanted = [&](uint32_t feature) { return (features & feature) != 0 && chance(0.4); };
        if (chance(0.25)) a_.scale = chance(0.2) ? 0 : 0.3f * rng_.normal();
        if (wanted(HEED_FEATURE_SOFTCAP)) a_.softcap = chance(0.5) ? rng_.between(1, 50) : 0.1f * rng_.between(1, 20);
        p_.mask = wanted(HEED_FEATURE_MASK);
        p_.mask_axes = axes();
        p_.mask_density = chance(0.1) ? rng_.below(2) : 0.1 * rng_.between(1, 9);
        p_.bias = wanted(HEED_FEATURE_BIAS);
        p_.bias_axes = axes();
        p_.hiding_bias = chance(0.5) ? 0 : 0.1 * rng_.between(1, 10);
        if (chance(0.5)) a_.bias_dtype = a_.dtype;
        p_.sink = chance(0.3);
        p_.alibi = wanted(HEED_FEATURE_ALIBI);
        if (wanted(HEED_FEATURE_SOFTCAP) && test_device() == HEED_CPU) draw_temperature();
        if (!wanted(HEED_FEATURE_DROPOUT)) return;
        a_.dropout_p = chance(0.1) ? 1 : 0.1f * static_cast<float>(rng_.between(1, 9));
        a_.dropout_seed = chance(0.1) ? ~uint64_t{0} : rng_.bits();
        a_.dropout_offset = chance(0.1) ? uint64_t{1} << 63 : rng_.bits();
    }

    void draw_layouts() {
        CallOptions &o = p_.options;
        for (Layout *layout : {&o.q, &o.k, &o.v, &o.out}) {
            *layout = one_of<Layout>({Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::padded, Layout::packed});
        }
        o.garbage_strides = chance(0.5);
        o.offset = chance(0.5) ? 0 : rng_.between(1, 15);
        const bool same_tokens =
            (o.q_storage == HEED_Q_DENSE && o.kv_storage == HEED_KV_CONTIGUOUS && a_.q_len == a_.kv_len) ||
            (o.q_storage == HEED_Q_VARLEN && o.kv_storage == HEED_KV_VARLEN && a_.q_lens == a_.kv_lens &&
             a_.q_len == a_.kv_len);
        o.fused_qkv = same_tokens && a_.head_dim == a_.head_dim_v && !a_.int8_kv && chance(0.7);
        p_.shared_kv = o.kv_storage == HEED_KV_CONTIGUOUS && !o.fused_qkv && chance(0.1);
        p_.padded_lse = chance(0.3);
        p_.padded_scores = chance(0.3);
        p_.zero_strides = !p_.padded_scores && chance(0.3);
        p_.poison = !p_.shared_kv && !o.share_pages && chance(0.5);
    }

    void draw_call() {
        CallOptions &o = p_.options;
        p_.data = one_of<Data>({Data::normal, Data::normal, Data::sparse, Data::peaked});
        p_.data_seed = rng_.bits();
        o.want_lse = chance(0.8);
        o.num_threads = rng_.between(1, 8);
        p_.max_threads = chance(0.1) ? 0 : o.num_threads + rng_.below(3);
        if (p_.max_threads == 0) o.num_threads = 0;
        o.num_splits = chance(0.5) ? 0 : chance(0.8) ? rng_.between(1, 9) : one_of<int32_t>({a_.kv_len, int32_max});
        o.batch_invariant = chance(0.2);
    }

    Rng rng_;
    const std::vector<TableKernel> &kernels_;
    RandomProblem p_;
    Attention &a_ = p_.settings;
    int32_t kv_block_ = 0, row_block_ = 0;
};

}  // namespace

RandomProblem draw_problem(uint64_t seed, const std::vector<TableKernel> &kernels) {
    return Draw(seed, kernels).problem();
}

}  // namespace heed_test
