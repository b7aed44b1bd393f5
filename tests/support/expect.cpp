#include "tests/support/expect.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/support/amx_emulator.h"
#include "tests/support/describe.h"

namespace heed_test {
namespace {

Verdict worst;  // of the running test
uint64_t seed_option = 0;
std::string dump_option;

void note(const Verdict &verdict) {
    worst.out_ratio = std::max(worst.out_ratio, verdict.out_ratio);
    worst.rms_ratio = std::max(worst.rms_ratio, verdict.rms_ratio);
    worst.max_ratio = std::max(worst.max_ratio, verdict.max_ratio);
    worst.lse_ratio = std::max(worst.lse_ratio, verdict.lse_ratio);
}

bool same_bits(float x, float y) { return std::memcmp(&x, &y, sizeof(x)) == 0 || (std::isnan(x) && std::isnan(y)); }

// The library is asked by its own word, the machine by CPUID.
class EveryIsaRan : public testing::Environment {
public:
    void TearDown() override {
        for (const heed_isa isa : isas_of_device()) {
            if (machine_has(isa) && !any_kernel_ran(isa)) ADD_FAILURE() << "no kernel of " << isa_name(isa) << " ran";
        }
    }
};

}  // namespace

Result expect_runs(const Attention &a, const CallOptions &options) {
    SCOPED_TRACE(describe(a, options));
    Call call(a, options);
    Result result;
    result.status = call.run();
    EXPECT_EQ(result.status, HEED_OK) << heed_last_error();
    if (result.status != HEED_OK) return result;
    EXPECT_TRUE(options.kernel.empty() || call.kernel() == options.kernel) << call.kernel();
    EXPECT_TRUE(call.canaries_intact());
    result.out = call.out();
    result.lse = call.lse();
    return result;
}

void expect_close(const Attention &a, const Result &result, const Trust &trust) {
    if (result.status != HEED_OK) return;
    const Verdict verdict = verdict_of(a, *reference_of(a), result.out, result.lse, trust);
    note(verdict);
    EXPECT_TRUE(verdict.ok) << verdict.complaint << "\n" << verdict.summary();
}

Result expect_correct(const Attention &a, const CallOptions &options, const Trust &trust) {
    SCOPED_TRACE(describe(a, options));
    const Result rear = expect_runs(a, CallOptions(options).with_flush(Flush::rear));
    const Result front = expect_runs(a, CallOptions(options).with_flush(Flush::front));
    expect_same_bits(front, rear);
    expect_close(a, rear, trust);
    return rear;
}

void expect_same_bits(const std::vector<float> &got, const std::vector<float> &expected, const std::string &what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (size_t n = 0; n < got.size(); n++) {
        ASSERT_TRUE(same_bits(got[n], expected[n]))
            << what << "[" << n << "] is " << got[n] << ", expected the bits of " << expected[n];
    }
}

void expect_same_bits(const Result &got, const Result &expected) {
    if (got.status != HEED_OK || expected.status != HEED_OK) return;  // reported already
    expect_same_bits(got.out, expected.out, "out");
    if (!got.lse.empty() && !expected.lse.empty()) expect_same_bits(got.lse, expected.lse, "lse");
}

void expect_exact_set(const Attention &given, const CallOptions &options) {
    SCOPED_TRACE(describe(given, options));
    Attention a = given;
    for (int32_t first = 0; first < std::max(a.kv_len, 1); first += keys_per_run(a)) {
        make_exact_set(&a, first);
        const Result result = expect_runs(a, options);
        if (result.status != HEED_OK) return;
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t h = 0; h < a.num_heads; h++) {
                for (int32_t i = 0; i < a.q_len_of(b); i++) {
                    const std::vector<uint8_t> visible = visible_keys(a, b, h, i);
                    std::vector<int32_t> expected;
                    for (int32_t j = first; j < std::min(a.kv_len, first + keys_per_run(a)); j++) {
                        if (visible[static_cast<size_t>(j)] && dropout_keeps(a, b, h, i, j)) expected.push_back(j);
                    }
                    const auto n = static_cast<int32_t>(std::count(visible.begin(), visible.end(), 1));
                    const double weight = 1 / (n * (1 - static_cast<double>(a.dropout_p)));
                    const float lse = result.lse[static_cast<size_t>(a.lse_index(b, h, i))];
                    const double log_n = std::log(static_cast<double>(n));  // -inf for 0
                    ASSERT_EQ(named_keys(a, result.out.data() + a.out_index(b, i, h), weight, first), expected)
                        << "batch " << b << ", head " << h << ", query " << i;
                    ASSERT_TRUE(lse == log_n || std::fabs(lse - log_n) <= lse_bound(a, log_n, 0))
                        << "lse " << lse << " of " << n << " keys";
                }
            }
        }
    }
}

std::string kernel_test_name(const testing::TestParamInfo<TableKernel> &info) { return info.param.name; }

void PrintTo(const TableKernel &kernel, std::ostream *stream) { *stream << kernel.name; }

Attention KernelTest::grouped(int32_t q_len, int32_t kv_len, uint64_t seed, int32_t num_heads, int32_t num_kv_heads,
                              int32_t batch, Data data) const {
    const Shape dims = kernel().shape();
    return kernel().attention({batch, num_heads, num_kv_heads, q_len, kv_len, dims.head_dim, dims.head_dim_v}, data,
                              seed);
}

void KernelTest::TearDown() {
    if (worst.out_ratio > 0 || worst.lse_ratio > 0) std::printf("[   RATIO  ] %s\n", worst.summary().c_str());
    worst = Verdict();
}

ReversePool::ReversePool() : pool_{run, this} {}

void ReversePool::run(void *context, int32_t num_items, void (*item)(void *, int32_t), void *item_context) {
    auto *self = static_cast<ReversePool *>(context);
    self->most_items_ = std::max(self->most_items_, num_items);
    std::vector<std::thread> threads;
    for (int32_t n = num_items - 1; n >= 0; n--) threads.emplace_back(item, item_context, n);
    for (std::thread &thread : threads) thread.join();
}

namespace {

// Of the tests by name, each on all its kernels, every `parts`th from the one of number `part` on: HEED_TEST_PART is
// <part>/<parts>. Kernels of one problem follow each other and share what was drawn and the reference.
void take_part() {
    const char *const asked = std::getenv("HEED_TEST_PART");
    int part = 0, parts = 0;
    if (asked == nullptr || std::sscanf(asked, "%d/%d", &part, &parts) != 2 || parts < 1) return;
    const testing::UnitTest &all = *testing::UnitTest::GetInstance();
    std::vector<std::string> names;
    for (int suite = 0; suite < all.total_test_suite_count(); suite++) {
        const testing::TestSuite &tests = *all.GetTestSuite(suite);
        for (int n = 0; n < tests.total_test_count(); n++) {
            const std::string name = tests.GetTestInfo(n)->name();
            const size_t end = name.find('/');
            const std::string pattern =
                std::string(tests.name()) + "." + name.substr(0, end) + (end < name.size() ? "/*" : "");
            if (names.empty() || names.back() != pattern) names.push_back(pattern);
        }
    }
    std::string filter;
    for (size_t n = static_cast<size_t>(part); n < names.size(); n += static_cast<size_t>(parts)) {
        filter += (filter.empty() ? "" : ":") + names[n];
    }
    GTEST_FLAG_SET(filter, filter);
}

}  // namespace

int run_kernel_tests(int argc, char **argv) {
    emulate_amx();  // before the kernels of this machine become parameters
    if (amx_is_emulated()) {
        std::printf(
            "AMX is emulated: its kernels of head_dim 64, 128/64 and 192/128 run; HEED_TEST_ALL_KERNELS=1: all\n");
    }
    testing::InitGoogleTest(&argc, argv);
    for (int n = 1; n < argc; n++) {
        const std::string option = argv[n];
        if (option.rfind("--heed_seed=", 0) == 0) {
            seed_option = std::stoull(option.substr(12));
        } else if (option.rfind("--heed_dump=", 0) == 0) {
            dump_option = option.substr(12);
        } else {
            std::fprintf(stderr, "unknown option %s\n", option.c_str());
            return 2;
        }
    }
    if (GTEST_FLAG_GET(filter) == "*") {
        testing::AddGlobalTestEnvironment(new EveryIsaRan);
        take_part();
    }
    return RUN_ALL_TESTS();
}

uint64_t first_seed() { return seed_option; }
std::string dump_dir() { return dump_option; }

}  // namespace heed_test
