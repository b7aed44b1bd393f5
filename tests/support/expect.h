// GoogleTest expectations that kernel-facing tests share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/reference/tolerance.h"
#include "tests/support/call.h"
#include "tests/support/device.h"
#include "tests/support/table_kernels.h"

namespace heed_test {

struct Result {
    heed_status status = HEED_INTERNAL;
    std::vector<float> out, lse;
};

// Runs the case once; expects success, the forced kernel, intact canaries. On failure status says so and the rest is
// empty.
Result expect_runs(const Attention &a, const CallOptions &options);

// Runs the case flush with the rear guard page and with the front one, expects the same bits from both and each element
// within its bound.
Result expect_correct(const Attention &a, const CallOptions &options, const Trust &trust = {});

// Each element within its bound.
void expect_close(const Attention &a, const Result &result, const Trust &trust = {});

// The same bits, NaN included.
void expect_same_bits(const std::vector<float> &got, const std::vector<float> &expected, const std::string &what);
void expect_same_bits(const Result &got, const Result &expected);

// Each output row names the keys of the literal table that dropout keeps. Replaces q and v by those of make_exact_set,
// over as many runs as the number of keys takes.
void expect_exact_set(const Attention &a, const CallOptions &options);

// A kernel of the table that names a test's instance.
std::string kernel_test_name(const testing::TestParamInfo<TableKernel> &info);
void PrintTo(const TableKernel &kernel, std::ostream *stream);

// Prints the largest ratios of error to bound that a test met.
class KernelTest : public testing::TestWithParam<TableKernel> {
protected:
    void TearDown() override;
    const TableKernel &kernel() const { return GetParam(); }
    CallOptions options() const { return kernel().options(); }
    int32_t block() const { return kernel().info.kv_block; }
    // The kernel's head dims, and `num_heads` heads on `num_kv_heads`.
    Attention grouped(int32_t q_len, int32_t kv_len, uint64_t seed, int32_t num_heads = 4, int32_t num_kv_heads = 2,
                      int32_t batch = 2, Data data = Data::normal) const;

    // The whole list for kernels that lead; for each other kernel up to `count` entries, not the same for all kernels.
    // On slow devices one entry for each kernel.
    template <class T>
    std::vector<T> some(const std::vector<T> &list, size_t count = 2) const {
        if (slow_device()) count = 1;
        if ((kernel().leads() && !slow_device()) || list.size() <= count) return list;
        std::vector<T> chosen;
        const size_t first = std::hash<std::string>()(kernel().name);
        for (size_t n = 0; n < count; n++) chosen.push_back(list[(first + n * list.size() / count) % list.size()]);
        return chosen;
    }
};

// A caller's pool of fresh threads, which takes the items in reverse. Counts the most items asked for at once.
class ReversePool {
public:
    ReversePool();
    const heed_parallel_for *get() const { return &pool_; }
    int32_t most_items() const { return most_items_; }

private:
    static void run(void *context, int32_t num_items, void (*item)(void *, int32_t), void *item_context);
    heed_parallel_for pool_;
    int32_t most_items_ = 0;
};

// main() of a test program: runs the tests and fails when an ISA of this machine ran no kernel, unless tests were
// filtered. Also takes --heed_seed=N (first seed of random tests) and --heed_dump=DIR (random tests write their cases
// there).
int run_kernel_tests(int argc, char **argv);
uint64_t first_seed();
std::string dump_dir();

}  // namespace heed_test
