// Attention over a cache that is on several machines: mpirun -n RANKS heed_shards. Each rank has a part of the keys
// and values, attends to it, and the partial states (out, lse) are summed by an MPI reduction whose operator is
// heed_merge_states: what a token costs on the wire does not grow with the length of the cache. Rank 0 then does the
// same alone and compares.
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "heed/heed.hpp"

namespace {

struct Sizes {
    int32_t kv_len = 10000, num_heads = 32, num_kv_heads = 8, head_dim = 128;
    size_t row() const { return static_cast<size_t>(num_kv_heads) * static_cast<size_t>(head_dim); }
    size_t out() const { return static_cast<size_t>(num_heads) * static_cast<size_t>(head_dim); }
    size_t state() const { return out() + static_cast<size_t>(num_heads); }  // out, then lse
};

Sizes sizes;  // an MPI operator has no argument for them

void merge_two(float *into, float *other) {
    heed_merge_args args = {};
    args.struct_size = sizeof(args);
    args.batch = args.q_len = 1;
    args.num_heads = sizes.num_heads;
    args.head_dim_v = sizes.head_dim;
    const heed_tensor outs[] = {heed::tensor(into, sizes.out()), heed::tensor(other, sizes.out())};
    std::vector<float> merged_lse(static_cast<size_t>(sizes.num_heads));
    float *const lse = into + sizes.out();
    const heed_tensor lses[] = {heed::tensor(lse, merged_lse.size()),
                                heed::tensor(other + sizes.out(), merged_lse.size())};
    args.num_states = 2;
    args.outs = outs;
    args.lses = lses;
    args.out = outs[0];
    args.lse = heed::tensor(merged_lse.data(), merged_lse.size());
    args.execution.num_threads = 1;
    heed::check(heed_merge_states(&args));
    std::copy(merged_lse.begin(), merged_lse.end(), lse);
}

[[noreturn]] void stop(const std::exception &error) {
    std::fprintf(stderr, "heed_shards: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 2);
    std::abort();  // which MPI_Abort is not declared to do
}

// The operator: `inout` becomes `in` merged with it. Associative and commutative up to rounding. Nothing is thrown
// through MPI, which is C.
void merge_states(void *in, void *inout, int *count, MPI_Datatype *) noexcept {
    try {
        for (int i = 0; i < *count; i++) {
            const size_t at = static_cast<size_t>(i) * sizes.state();
            merge_two(static_cast<float *>(inout) + at, static_cast<float *>(in) + at);
        }
    } catch (const std::exception &error) {
        stop(error);
    }
}

// Elements of about unit size that depend on their index alone, so that all ranks have the same.
float element(uint64_t tensor, uint64_t place) {
    uint64_t x = place * 0x9e3779b97f4a7c15ull + tensor;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    return static_cast<float>(static_cast<int64_t>(x)) * 0x1p-62f;
}

std::vector<float> elements(uint64_t tensor, size_t first, size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = element(tensor, first + i);
    return values;
}

// The state of one query over the keys [begin, end): out, then lse.
std::vector<float> attend(int32_t begin, int32_t end) {
    heed::Problem problem;
    problem.batch = problem.max_q_len = 1;
    problem.num_heads = sizes.num_heads;
    problem.num_kv_heads = sizes.num_kv_heads;
    problem.head_dim = problem.head_dim_v = sizes.head_dim;
    problem.max_kv_len = end - begin;
    problem.want_lse = true;
    problem.max_threads = 1;
    const heed::Plan plan(problem);
    const heed::Workspace workspace = plan.make_workspace();
    const size_t first = static_cast<size_t>(begin) * sizes.row();
    const size_t count = static_cast<size_t>(end - begin) * sizes.row();
    const std::vector<float> q = elements(0, 0, sizes.out()), k = elements(1, first, count),
                             v = elements(2, first, count);
    std::vector<float> state(sizes.state());
    heed::Args args;
    args.q = heed::tensor(q.data(), q.size());
    args.k = heed::tensor(k.data(), k.size());
    args.v = heed::tensor(v.data(), v.size());
    args.out = heed::tensor(state.data(), sizes.out());
    args.lse = heed::tensor(state.data() + sizes.out(), static_cast<size_t>(sizes.num_heads));
    workspace.attach(args);
    plan.execute(args);
    return state;
}

int run() {
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    // A rank may have no key: its state is the empty one.
    const auto share = [&](int r) { return static_cast<int32_t>(int64_t{sizes.kv_len} * r / ranks); };
    const std::vector<float> partial = attend(share(rank), share(rank + 1));

    MPI_Datatype state_type;
    MPI_Op merge;
    MPI_Type_contiguous(static_cast<int>(sizes.state()), MPI_FLOAT, &state_type);
    MPI_Type_commit(&state_type);
    MPI_Op_create(merge_states, 1, &merge);
    std::vector<float> merged(sizes.state());
    MPI_Allreduce(partial.data(), merged.data(), 1, state_type, merge, MPI_COMM_WORLD);
    MPI_Op_free(&merge);
    MPI_Type_free(&state_type);
    if (rank != 0) return 0;

    // Rounding, twice: of a sum of weights of at most 1 times |v| <= 2, and of logits of at most sqrt(head_dim) * 4.
    const std::vector<float> alone = attend(0, sizes.kv_len);
    const double bound = std::ldexp(2 * (16 + 4 * std::sqrt(static_cast<double>(sizes.head_dim))), -23);
    double worst = 0;
    for (size_t i = 0; i < alone.size(); i++) worst = std::fmax(worst, std::fabs(double{merged[i]} - alone[i]));
    const size_t bytes = sizes.state() * sizeof(float);
    std::printf(
        "%d ranks, %d keys, %d / %d heads of %d: %zu bytes of state for a token and layer, the keys and values of "
        "a rank are %.1f MB\n",
        ranks, sizes.kv_len, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, bytes,
        2e-6 * sizeof(float) * static_cast<double>(sizes.row()) * share(1));
    std::printf("largest difference from one process: %.2e, allowed %.2e: %s\n", worst, bound,
                worst <= bound ? "right" : "WRONG");
    return worst <= bound ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    CLI::App app{"Attention over a cache that is on several machines, run by mpirun."};
    app.option_defaults()->always_capture_default();
    app.add_option("--kv-len", sizes.kv_len)->check(CLI::Range(1, 1 << 24));
    app.add_option("--heads", sizes.num_heads)->check(CLI::Range(1, 1 << 24));
    app.add_option("--kv-heads", sizes.num_kv_heads)->check(CLI::Range(1, 1 << 24));
    app.add_option("--head-dim", sizes.head_dim)->check(CLI::Range(1, 1 << 24));
    CLI11_PARSE(app, argc, argv);
    MPI_Init(&argc, &argv);
    try {
        const int status = run();
        MPI_Finalize();
        return status;
    } catch (const std::exception &error) {
        stop(error);
    }
}
