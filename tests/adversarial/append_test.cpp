// Case 53: what an append writes is what attention reads.
#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

class Appended : public Adversarial {
protected:
    static constexpr int32_t page_size = 16;

    // Rows [batch, new_len, num_kv_heads, dim] of the last new_len tokens of each sequence.
    static std::vector<float> last_rows(const Attention &a, const std::vector<float> &rows, int32_t dim,
                                        int32_t new_len) {
        std::vector<float> last;
        const int64_t row = int64_t{a.num_kv_heads} * dim;
        for (int64_t b = 0; b < a.batch; b++) {
            const auto end = rows.begin() + (b * a.kv_len + a.kv_len_of(b)) * row;
            last.insert(last.end(), end - new_len * row, end);
        }
        return last;
    }

    // Packed k or v of a call, as its type holds it.
    static size_t token_bytes(const Attention &a, int32_t dim) {
        return static_cast<size_t>(a.num_kv_heads) * static_cast<size_t>(dim) *
               static_cast<size_t>(element_bytes(a.dtype));
    }

    // The tokens after the first lens[b] become NaN.
    static void forget(const Attention &a, const Placement &kv, const std::vector<int32_t> &lens, int32_t dim,
                       void *data) {
        for (int64_t b = 0; b < a.batch; b++) {
            for (int64_t j = lens[static_cast<size_t>(b)]; j < a.kv_len_of(b); j++) {
                const Slot &slot = kv.at(b, j);
                const auto token = static_cast<size_t>(slot.outer * kv.inner + slot.inner);
                std::memset(static_cast<char *>(data) + token * token_bytes(a, dim), 0xff, token_bytes(a, dim));
            }
        }
    }

    // Appends the last new_len tokens of each sequence to the call's cache, which holds the ones before.
    static void append(const Attention &a, const Placement &kv, int32_t new_len, Call *call) {
        std::vector<int32_t> lens;
        for (int32_t b = 0; b < a.batch; b++) lens.push_back(a.kv_len_of(b) - new_len);
        forget(a, kv, lens, a.head_dim, call->args.k.data);
        forget(a, kv, lens, a.head_dim_v, call->args.v.data);

        heed_kv_append_args args = {};
        args.struct_size = sizeof(args);
        args.dtype = a.dtype;
        args.new_len = new_len;
        args.cache.storage = call->problem.kv_storage;
        args.cache.dtype = a.dtype;
        args.cache.batch = a.batch;
        args.cache.num_kv_heads = a.num_kv_heads;
        args.cache.head_dim = a.head_dim;
        args.cache.head_dim_v = a.head_dim_v;
        args.cache.capacity = a.kv_len;
        args.cache.num_pages = call->problem.num_pages;
        args.cache.page_size = call->problem.page_size;
        args.cache.max_pages_per_seq = call->problem.max_pages_per_seq;
        args.cache.k = call->args.k;
        args.cache.v = call->args.v;
        args.cache.page_table = call->args.page_table;
        args.cache.kv_lens = lens.data();

        const Extents k_extents = {{a.batch, new_len, a.num_kv_heads, a.head_dim}};
        const Extents v_extents = {{a.batch, new_len, a.num_kv_heads, a.head_dim_v}};
        GuardedBuffer k_new = packed(a, k_extents, last_rows(a, a.k, a.head_dim, new_len), &args.k_new);
        GuardedBuffer v_new = packed(a, v_extents, last_rows(a, a.v, a.head_dim_v, new_len), &args.v_new);
        ASSERT_EQ(heed_kv_append(&args), HEED_OK) << heed_last_error();
        EXPECT_EQ(lens, a.kv_lens);
    }

    static GuardedBuffer packed(const Attention &a, const Extents &extents, const std::vector<float> &rows,
                                heed_tensor *tensor) {
        GuardedBuffer buffer(rows.size() * static_cast<size_t>(element_bytes(a.dtype)), Flush::rear);
        for (size_t i = 0; i < rows.size(); i++) store(buffer.data(), static_cast<int64_t>(i), a.dtype, rows[i]);
        *tensor = {buffer.data(), extents.n[0] * extents.n[1] * extents.n[2] * extents.n[3], a.dtype};
        return buffer;
    }
};

TEST_P(Appended, Case53_AppendThenAttendIsConcatThenAttend) {
    for (const int32_t new_len : {1, 3, page_size, page_size + 1}) {
        Attention a = causal(new_len, 60);
        a.kv_lens = {60, 25};
        const CallOptions in_cache = kernel().paged() ? options().with_pages(page_size) : contiguous();
        Call whole(a, in_cache), grown(a, in_cache);
        ASSERT_EQ(whole.run(), HEED_OK) << heed_last_error();
        ASSERT_EQ(grown.prepare(), HEED_OK) << heed_last_error();
        append(a, lay_out(a, in_cache).kv, new_len, &grown);
        ASSERT_EQ(grown.execute(), HEED_OK) << heed_last_error();
        EXPECT_EQ(grown.out(), whole.out()) << new_len << " tokens";
        EXPECT_EQ(grown.lse(), whole.lse()) << new_len << " tokens";
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Appended,
                         testing::ValuesIn(only(kernels_of_64(),
                                                [](const TableKernel &kernel) { return !kernel.int8_kv(); })),
                         kernel_test_name);

}  // namespace
}  // namespace heed_test
