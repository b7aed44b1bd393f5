// Four sequences generate tokens over a paged cache: append the token's keys and values, then attend to all so far.
#include <cmath>
#include <cstdio>
#include <heed/heed.hpp>

namespace {

constexpr int32_t batch = 4, heads = 8, kv_heads = 2, head_dim = 64;
constexpr int32_t page_size = 16, capacity = 256, pages_per_sequence = capacity / page_size;

// What a model would compute for token `step`.
std::vector<float> projected(int32_t step, int32_t num_heads) {
    std::vector<float> values(size_t{batch} * static_cast<size_t>(num_heads) * head_dim);
    for (size_t i = 0; i < values.size(); i++)
        values[i] = std::sin(static_cast<float>(i + 1) * static_cast<float>(step + 1));
    return values;
}

// The caller owns the pages and decides which sequence has which.
struct Cache {
    std::vector<float> k, v;
    std::vector<int32_t> page_table, kv_lens;

    Cache() : page_table(batch * pages_per_sequence), kv_lens(batch, 0) {
        k.resize(page_table.size() * page_size * kv_heads * head_dim);
        v.resize(k.size());
        for (size_t i = 0; i < page_table.size(); i++) page_table[i] = static_cast<int32_t>(page_table.size() - 1 - i);
    }

    heed_kv_view view() {
        heed_kv_view view = {};
        view.storage = HEED_KV_PAGED;
        view.batch = batch, view.num_kv_heads = kv_heads, view.head_dim = view.head_dim_v = head_dim;
        view.num_pages = static_cast<int32_t>(page_table.size());
        view.page_size = page_size, view.max_pages_per_seq = pages_per_sequence;
        view.k = heed::tensor(k.data(), k.size()), view.v = heed::tensor(v.data(), v.size());
        view.page_table = page_table.data(), view.kv_lens = kv_lens.data();
        return view;
    }
};

// [plan]
heed::Problem make_problem(const heed_kv_view &cache) {
    heed::Problem problem;
    problem.batch = batch, problem.num_heads = heads, problem.num_kv_heads = kv_heads;
    problem.head_dim = problem.head_dim_v = head_dim;
    problem.max_q_len = 1, problem.max_kv_len = capacity;  // one plan while the sequences grow
    problem.kv_storage = HEED_KV_PAGED, problem.has_kv_lens = true;
    problem.num_pages = cache.num_pages, problem.page_size = page_size;
    problem.max_pages_per_seq = pages_per_sequence;
    problem.position = HEED_BOTTOM_RIGHT, problem.causal = true;  // the query is the newest token
    return problem;
}
// [/plan]

}  // namespace

int main() {
    Cache cache;
    const heed::Plan plan(make_problem(cache.view()));
    const heed::Workspace workspace = plan.make_workspace();
    std::vector<float> out(size_t{batch} * heads * head_dim);
    // [loop]
    for (int32_t step = 0; step < 100; step++) {
        const std::vector<float> q = projected(step, heads), k = projected(step, kv_heads),
                                 v = projected(step + 1, kv_heads);
        heed_kv_append_args append = {};
        append.struct_size = sizeof(append);
        append.new_len = 1;
        append.k_new = heed::tensor(k.data(), k.size()), append.v_new = heed::tensor(v.data(), v.size());
        append.cache = cache.view();
        heed::check(heed_kv_append(&append));  // writes through the page table, adds 1 to each kv_lens[b]

        heed::Args args;
        args.q = heed::tensor(q.data(), q.size()), args.out = heed::tensor(out.data(), out.size());
        args.k = append.cache.k, args.v = append.cache.v;
        args.page_table = cache.page_table.data(), args.kv_lens = cache.kv_lens.data();
        workspace.attach(args);
        plan.execute(args);
    }
    // [/loop]
    std::printf("%s, %d splits: %d tokens in each cache, out[0] = %f\n", plan.kernel_name().c_str(), plan.num_splits(),
                cache.kv_lens[0], out[0]);
    return cache.kv_lens[0] == 100 && std::isfinite(out[0]) ? 0 : 1;
}
