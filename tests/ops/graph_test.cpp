// One graph of attention serves a cache that grows: lengths on the device are read when it runs.
#include "heed/heed.hpp"
#include "tests/ops/tensor.h"
#include "tests/support/on_device.h"
#include "tests/support/table_kernels.h"

namespace heed_test::ops {
namespace {

class Graphs : public testing::TestWithParam<heed_kv_storage> {
protected:
    static constexpr int32_t batch = 2, heads = 4, kv_heads = 2, dim = 64, capacity = 96, page_size = 16,
                             pages = capacity / page_size;

    void SetUp() override {
        if (test_device() == HEED_CPU) GTEST_SKIP() << "for CUDA";
        const std::vector<TableKernel> kernels = kernels_for({batch, heads, kv_heads, 1, capacity, dim, dim});
        const bool linked = std::any_of(kernels.begin(), kernels.end(), [&](const TableKernel &kernel) {
            return kernel.info.dtype == HEED_F16 && !kernel.int8_kv() && kernel.serves(GetParam());
        });
        if (!linked) GTEST_SKIP() << "no kernel for this storage is linked for the device";
    }

    heed_problem problem(bool on_device) const {
        heed::Problem p;
        p.device = on_device ? HEED_CUDA : HEED_CPU;
        p.dtype = p.kv_dtype = HEED_F16;
        p.batch = batch;
        p.num_heads = heads;
        p.num_kv_heads = kv_heads;
        p.head_dim = p.head_dim_v = dim;
        p.max_q_len = 1;
        p.max_kv_len = capacity;
        p.kv_storage = GetParam();
        p.has_kv_lens = true;
        p.metadata_on_device = on_device;
        if (p.kv_storage == HEED_KV_PAGED) {
            p.num_pages = batch * pages;
            p.page_size = page_size;
            p.max_pages_per_seq = pages;
        }
        return p;
    }

    // The cache's view of these tensors; pages of the sequences alternate.
    heed_kv_view view(const heed_tensor &k, const heed_tensor &v) {
        heed_kv_view cache = {};
        cache.storage = GetParam();
        cache.dtype = HEED_F16;
        cache.batch = batch;
        cache.num_kv_heads = kv_heads;
        cache.head_dim = cache.head_dim_v = dim;
        cache.capacity = capacity;
        if (cache.storage == HEED_KV_PAGED) {
            cache.capacity = 0;
            cache.num_pages = batch * pages;
            cache.page_size = page_size;
            cache.max_pages_per_seq = pages;
        }
        cache.k = k;
        cache.v = v;
        for (int32_t n = 0; n < batch * pages; n++) table_[n] = n % pages * batch + n / pages;
        cache.page_table = table_;
        cache.kv_lens = lens_;
        return cache;
    }

    int32_t table_[batch * pages], lens_[batch] = {0, 30};
};

heed_tensor halves(const DeviceBuffer &buffer, int64_t size) { return {buffer.data(), size, HEED_F16}; }

TEST_P(Graphs, OneServesAGrowingCache) {
    const CudaDevice &device = CudaDevice::get();
    void *const stream = device.make_stream();
    constexpr int64_t cached = int64_t{batch} * capacity * kv_heads * dim, fresh = int64_t{batch} * kv_heads * dim,
                      queries = int64_t{batch} * heads * dim;
    const DeviceBuffer k(2 * cached, 0, true), v(2 * cached, 0, true), k_new(2 * fresh, 0, false),
        v_new(2 * fresh, 0, false), q(2 * queries, 0, false), out(2 * queries, 0, true), lens(sizeof(lens_), 0, false),
        table(sizeof(table_), 0, false), status(4, 0, true);
    Tensor host_k(HEED_F16, {batch, capacity, kv_heads, dim}), host_v(HEED_F16, {batch, capacity, kv_heads, dim});
    host_k.fill_normal(1);
    host_v.fill_normal(2);
    device.copy_to_device(k.data(), host_k.tensor().data, 2 * cached);
    device.copy_to_device(v.data(), host_v.tensor().data, 2 * cached);

    const heed::Plan plan(problem(true)), reference(problem(false));
    const DeviceBuffer workspace(plan.workspace_bytes(), 0, true);
    const heed_kv_view cache = view(halves(k, cached), halves(v, cached));
    const int32_t no_fault = 0;
    device.copy_to_device(table.data(), table_, sizeof(table_));
    device.copy_to_device(status.data(), &no_fault, sizeof(no_fault));
    heed::Args args;
    args.q = halves(q, queries);
    args.k = cache.k;
    args.v = cache.v;
    args.out = halves(out, queries);
    args.kv_lens = static_cast<const int32_t *>(lens.data());
    args.page_table = static_cast<const int32_t *>(table.data());
    args.device_status = static_cast<int32_t *>(status.data());
    args.workspace = workspace.data();
    args.workspace_bytes = plan.workspace_bytes();
    args.stream = stream;
    void *const graph = device.capture(stream, [&] { plan.execute(args); });

    heed_kv_append_args append = {};
    append.struct_size = sizeof(append);
    append.dtype = HEED_F16;
    append.new_len = 1;
    append.k_new = halves(k_new, fresh);
    append.v_new = halves(v_new, fresh);
    append.cache = cache;
    append.execution.device = HEED_CUDA;
    append.execution.stream = stream;

    Tensor new_k(HEED_F16, {batch, 1, kv_heads, dim}), new_v(HEED_F16, {batch, 1, kv_heads, dim}),
        host_q(HEED_F16, {batch, 1, heads, dim}), got(HEED_F16, {batch, 1, heads, dim}),
        expected(HEED_F16, {batch, 1, heads, dim});
    for (uint64_t step = 0; step < 40; step++) {
        new_k.fill_normal(3 * step + 3);
        new_v.fill_normal(3 * step + 4);
        host_q.fill_normal(3 * step + 5);
        device.copy_to_device(k_new.data(), new_k.tensor().data, 2 * fresh);
        device.copy_to_device(v_new.data(), new_v.tensor().data, 2 * fresh);
        device.copy_to_device(q.data(), host_q.tensor().data, 2 * queries);
        ASSERT_EQ(heed_kv_append(&append), HEED_OK) << heed_last_error();
        device.synchronize(stream);
        device.copy_to_device(lens.data(), lens_, sizeof(lens_));
        device.replay(graph, stream);
        device.synchronize(stream);
        if (step % 13 != 0) continue;
        // The same keys and values on the CPU.
        device.copy_to_host(host_k.tensor().data, k.data(), 2 * cached);
        device.copy_to_host(host_v.tensor().data, v.data(), 2 * cached);
        device.copy_to_host(got.tensor().data, out.data(), 2 * queries);
        const heed::Workspace on_cpu = reference.make_workspace();
        heed::Args same;
        same.q = host_q.tensor();
        same.k = host_k.tensor();
        same.v = host_v.tensor();
        same.out = expected.tensor();
        same.kv_lens = lens_;
        same.page_table = table_;
        on_cpu.attach(same);
        reference.execute(same);
        expected.for_each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
            EXPECT_NEAR(got.get(b, i, h, d), expected.get(b, i, h, d), 4 * 0x1p-11) << step << ": " << b << "," << h;
        });
        EXPECT_NE(expected.get(1, 0, 0, 0), expected.get(1, 0, 1, 0));
    }
    EXPECT_EQ(lens_[1], 70);
    int32_t fault = -1;
    device.copy_to_host(&fault, status.data(), sizeof(fault));
    EXPECT_EQ(fault, 0);
    for (const DeviceBuffer *buffer : {&k, &v, &out, &status, &workspace}) EXPECT_TRUE(buffer->guards_intact());
}

INSTANTIATE_TEST_SUITE_P(Storage, Graphs, testing::Values(HEED_KV_CONTIGUOUS, HEED_KV_PAGED));

}  // namespace
}  // namespace heed_test::ops
