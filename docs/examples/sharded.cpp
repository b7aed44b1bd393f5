// Attention over a cache whose keys are on several machines: mpirun -n RANKS sharded. Each rank attends to its keys; an
// MPI reduction with heed_merge_states as its operator merges the states (out and lse) of all ranks.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <heed/heed.hpp>

namespace {

constexpr int32_t kv_len = 5000, heads = 8, kv_heads = 2, head_dim = 64;
constexpr size_t row = size_t{kv_heads} * head_dim, out_size = size_t{heads} * head_dim, state_size = out_size + heads;

// Element `at` of a tensor, which is equal on all ranks.
float element(float step, size_t at) { return std::sin(step * static_cast<float>(at % 100003)); }

std::vector<float> elements(float step, size_t first, size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = element(step, first + i);
    return values;
}

// The state of one query over the keys [begin, end): out, then lse.
std::vector<float> attend(int32_t begin, int32_t end) {
    heed::Problem problem;
    problem.batch = problem.max_q_len = 1, problem.max_kv_len = end - begin;
    problem.num_heads = heads, problem.num_kv_heads = kv_heads;
    problem.head_dim = problem.head_dim_v = head_dim;
    problem.want_lse = true;
    const heed::Plan plan(problem);
    const heed::Workspace workspace = plan.make_workspace();
    const size_t first = static_cast<size_t>(begin) * row, count = static_cast<size_t>(end - begin) * row;
    const std::vector<float> q = elements(0.7f, 0, out_size), k = elements(0.3f, first, count),
                             v = elements(0.1f, first, count);
    std::vector<float> state(state_size);
    heed::Args args;
    args.q = heed::tensor(q.data(), q.size()), args.k = heed::tensor(k.data(), k.size());
    args.v = heed::tensor(v.data(), v.size()), args.out = heed::tensor(state.data(), out_size);
    args.lse = heed::tensor(state.data() + out_size, heads);
    workspace.attach(args);
    plan.execute(args);
    return state;
}

// [merge]
// MPI's operator: `inout` becomes the state over the keys of both.
void merge_states(void *in, void *inout, int *count, MPI_Datatype *) {
    for (int i = 0; i < *count; i++) {
        float *const other = static_cast<float *>(in) + static_cast<size_t>(i) * state_size;
        float *const into = static_cast<float *>(inout) + static_cast<size_t>(i) * state_size;
        const heed_tensor outs[] = {heed::tensor(into, out_size), heed::tensor(other, out_size)};
        const heed_tensor lses[] = {heed::tensor(into + out_size, heads), heed::tensor(other + out_size, heads)};
        float lse[heads];
        heed_merge_args args = {};
        args.struct_size = sizeof(args);
        args.batch = args.q_len = 1, args.num_heads = heads, args.head_dim_v = head_dim;
        args.num_states = 2, args.outs = outs, args.lses = lses;
        args.out = outs[0], args.lse = heed::tensor(lse, heads);
        if (heed_merge_states(&args) != HEED_OK) MPI_Abort(MPI_COMM_WORLD, 1);
        std::copy(lse, lse + heads, into + out_size);
    }
}
// [/merge]

int run() {
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    // [reduce]
    const std::vector<float> partial = attend(kv_len * rank / ranks, kv_len * (rank + 1) / ranks);
    std::vector<float> merged(state_size);
    MPI_Datatype state;
    MPI_Type_contiguous(static_cast<int>(state_size), MPI_FLOAT, &state);
    MPI_Type_commit(&state);
    MPI_Op merge;
    MPI_Op_create(merge_states, 1, &merge);
    MPI_Allreduce(partial.data(), merged.data(), 1, state, merge, MPI_COMM_WORLD);
    // [/reduce]
    MPI_Op_free(&merge);
    MPI_Type_free(&state);
    const std::vector<float> alone = attend(0, kv_len);
    float worst = 0;
    for (size_t i = 0; i < state_size; i++) worst = std::fmax(worst, std::fabs(merged[i] - alone[i]));
    if (rank == 0) std::printf("%d ranks: largest difference from one process %g\n", ranks, worst);
    return worst < 1e-5f ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    const int status = run();
    MPI_Finalize();
    return status;
}
