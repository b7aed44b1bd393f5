// Lengths, prefix sums and offsets in device memory: the results of the same values on the host, and values that are
// wrong lead nowhere.
#include <cstring>

#include "tests/kernel/storage_cases.h"

namespace heed_test {
namespace {

constexpr int32_t int32_min = std::numeric_limits<int32_t>::min(), int32_max = std::numeric_limits<int32_t>::max();

class DeviceMetadata : public StoredTokens {
protected:
    // The results with all metadata on the device, where no fault may be found.
    Result on_device(const Attention &a, const CallOptions &options) const {
        Call call(a, options);
        call.problem.metadata_on_device = true;
        Result result;
        result.status = call.run();
        EXPECT_EQ(result.status, HEED_OK) << heed_last_error();
        if (result.status != HEED_OK) return result;
        EXPECT_EQ(call.device_status, 0);
        EXPECT_TRUE(call.canaries_intact());
        result.out = call.out();
        result.lse = call.lse();
        return result;
    }
};

TEST_P(DeviceMetadata, GivesTheBitsOfHostMetadata) {
    for (const StoragePair &s : legal()) {
        Attention a = s.q == HEED_Q_VARLEN ? mixed() : attention({}, {block() + 33, 17, 0}, 6, block() + 40);
        for (const bool windowed : {false, true}) {
            a.causal = !windowed;
            a.window_left = windowed ? 20 : -1;
            expect_same_bits(on_device(a, stored(s)), expect_runs(a, stored(s)));
        }
        a.position = HEED_EXPLICIT;
        a.q_offsets = s.q == HEED_Q_VARLEN ? std::vector<int32_t>{0, block(), -3, int32_max, int32_min, 5}
                                           : std::vector<int32_t>{-2, block(), 7};
        expect_same_bits(on_device(a, stored(s)), expect_runs(a, stored(s)));
    }
}

// All sequences in one table, and more than a block of threads.
TEST_P(DeviceMetadata, ManySequences) {
    Shape shape = kernel().shape();
    shape.batch = sized(1500, 300);
    shape.q_len = 2;
    shape.kv_len = 5;
    Attention a = kernel().attention(shape, Data::normal, 91);
    Rng rng(91);
    for (int32_t b = 0; b < a.batch; b++) {
        a.q_lens.push_back(rng.below(3));
        a.kv_lens.push_back(rng.below(6));
    }
    const CallOptions varlen = stored({HEED_Q_VARLEN, HEED_KV_VARLEN});
    expect_same_bits(on_device(a, varlen), expect_runs(a, varlen));
}

// Each wrong value is clamped and reported: nothing but the results is written, and nothing outside of the tensors is
// read.
TEST_P(DeviceMetadata, FaultsAreReported) {
    enum Kind { of_q = 1, of_kv = 2, of_lens = 3, of_pages = 4 };
    const struct {
        heed_kv_storage kv_storage;
        const int32_t *heed_args::*array;
        size_t at;
        std::vector<int32_t> values;
        Kind kind;
    } cases[] = {
        {HEED_KV_VARLEN, &heed_args::cu_seqlens_q, 0, {1, -1, int32_min}, of_q},
        {HEED_KV_VARLEN, &heed_args::cu_seqlens_q, 2, {-1, 1000, int32_max}, of_q},
        {HEED_KV_VARLEN, &heed_args::cu_seqlens_q, 6, {0, 1000, int32_max}, of_q},
        {HEED_KV_VARLEN, &heed_args::cu_seqlens_kv, 0, {1, -1, int32_min}, of_kv},
        {HEED_KV_VARLEN, &heed_args::cu_seqlens_kv, 3, {-1, 100000, int32_max, int32_min}, of_kv},
        {HEED_KV_CONTIGUOUS, &heed_args::kv_lens, 1, {-1, block() + 51, int32_max, int32_min}, of_lens},
        {HEED_KV_PAGED, &heed_args::kv_lens, 1, {-1, block() + 51, int32_max, int32_min}, of_lens},
        {HEED_KV_PAGED, &heed_args::page_table, 0, {-1, 1000000, int32_max, int32_min}, of_pages},
    };
    const Attention a = mixed();
    for (const auto &c : cases) {
        if (!kernel().serves(c.kv_storage)) continue;
        for (const int32_t value : some(c.values, c.values.size())) {
            Call call(a, stored({HEED_Q_VARLEN, c.kv_storage}));
            call.problem.metadata_on_device = true;
            ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
            const_cast<int32_t *>(call.args.*c.array)[c.at] = value;
            ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
            EXPECT_EQ(call.device_status & 7, c.kind) << "[" << c.at << "] = " << value;
            EXPECT_LT(call.device_status >> 3, a.batch);
            EXPECT_TRUE(call.canaries_intact()) << "[" << c.at << "] = " << value;
            if (slow_device() && &c != cases) continue;
            call.device_status = 77;  // what is there stays
            ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
            EXPECT_EQ(call.device_status, 77);
            call.args.device_status = nullptr;
            EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
        }
    }
}

std::vector<TableKernel> cuda_kernels() {
    return only(supported_kernels(), [](const TableKernel &kernel) { return kernel.cuda(); });
}

INSTANTIATE_TEST_SUITE_P(Kernels, DeviceMetadata, testing::ValuesIn(cuda_kernels()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceMetadata);

}  // namespace
}  // namespace heed_test
