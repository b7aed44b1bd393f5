#include "runtime/phase_choice.h"

#include <algorithm>

#include "runtime/status.h"

namespace heed {
namespace {

// See most_decoded_queries.
constexpr int32_t most_queries_of_lanes = 4, most_queries_of_elements = 11, most_queries_beside_tiles = 8;

// Keys and values of a head that the caches keep from one head of a group to the next.
constexpr int64_t cached_head_bytes = 2 << 20;

bool is_short(const KernelRequest &request) { return request.max_kv_len < 256; }
bool pays_lanes_of_rows(const KernelRequest &request) { return request.max_kv_len >= 1024; }
bool has_very_many_keys(const KernelRequest &request) { return request.max_kv_len >= 2048; }
bool leaves_caches(const KernelRequest &request) {
    const int64_t elements = int64_t{request.max_kv_len} * (request.head_dim + request.head_dim_v);
    return elements * dtype_bytes(request.kv_dtype) > cached_head_bytes;
}

// Whether the rows of a group are multiplied by matrix tiles.
bool has_tiles_of_rows(const Kernel &kernel) {
    return is_for_large_groups(kernel) && kernel.target == KernelTarget(Isa::amx);
}

// Whether they are the lanes of dot products of bf16.
bool has_dots_of_rows(const Kernel &kernel) {
    return is_for_large_groups(kernel) && kernel.target == KernelTarget(Isa::avx512bf16);
}

// Whether they are the lanes of floats, in a kernel that asks for the keys of later tiles.
bool has_floats_of_rows(const Kernel &kernel) {
    const bool in_floats = kernel.target == KernelTarget(Isa::avx2) || kernel.target == KernelTarget(Isa::avx512);
    const bool of_floats = kernel.dtype == HEED_F32 && kernel.kv_dtype == HEED_F32;
    return is_for_large_groups(kernel) && in_floats && of_floats && has_own_dims(kernel);
}

// Whether dot products pay more than matrix tiles for 5 to 8 queries of heads that share no keys. Tiles look up the
// page of each key again for each head. Their time, that of dot products being 1, Xeon with AMX, 32 heads of 128: 4096
// keys 1.25, 1024 keys 1.0 to 1.08; 4096 keys that are neighbours 0.83.
bool pays_dots_beside_tiles(const KernelRequest &request) {
    return request.far_keys && has_very_many_keys(request) && request.group_size == 1 &&
           request.q_len <= most_queries_beside_tiles;
}

// Whether lanes of rows pay. Tasks of theirs have one head and one split of the keys: short sequences are too few
// tasks, and of many heads whose keys are neighbours in memory each task reads pages in part (8 heads of 64 floats, 8
// sequences of 1024 keys, 16 rows: 1.4 times as long). Matrix tiles pay for any keys and heads: for 5 rows where the
// other choice is prefill (Xeon with AMX, 8 and 32 heads of 64 and 128, 5 to 7 queries, 256 to 4096 keys: 0.35 to 0.75
// of its time, 64 keys 0.7 to 1.1), for 8 rows of few keys: 16 sequences of 4096 take 1.25 times as long, of 1024 0.8
// to 1.1. Dot products pay for several queries. Floats with prefetches pay for any heads and keys, unless there is one
// task or hardly more; where prefill is the other choice, from fewer rows on.
bool has_large_groups(const Kernel &kernel, const KernelRequest &request) {
    constexpr int32_t most_heads = 2;
    const int32_t q_len = request.any_q_len ? 1 : request.q_len;
    const int64_t rows = int64_t{q_len} * request.group_size;
    const bool has_many_keys = pays_lanes_of_rows(request);
    if (has_tiles_of_rows(kernel)) {
        if (q_len > most_queries_of_lanes) return true;
        return rows >= (has_many_keys ? least_rows_of_large_groups : least_rows_of_large_groups / 2);
    }
    if (has_dots_of_rows(kernel) && request.prefills_in_dots && q_len > 1) return rows >= least_rows(kernel);
    if (has_floats_of_rows(kernel)) {
        const bool has_few_tasks = !has_many_keys && request.num_kv_heads == 1 && rows <= kernel.row_block;
        const bool beside_prefill = q_len > most_queries_of_elements;
        return rows >= (beside_prefill ? least_rows(kernel) : least_rows_of_large_groups) && !has_few_tasks;
    }
    return rows >= least_rows_of_large_groups && has_many_keys && request.num_kv_heads <= most_heads;
}

}  // namespace

bool has_own_dims(const Kernel &kernel) { return kernel.head_dim != 0 && kernel.head_dim_v != 0; }

QueryFit suits_queries(const Kernel &kernel, const KernelRequest &request) {
    if (kernel.phase == Phase::prefill) return QueryFit::prefill;
    if (preferred_phase(kernel, request) != Phase::decode) return QueryFit::others_first;
    if (is_for_whole_keys(kernel)) {
        const int64_t rows = int64_t{request.q_len} * request.group_size;
        const int64_t blocks = request.kv_storage == HEED_KV_PAGED ? whole_key_blocks : 1;
        const bool fits = rows <= blocks * kernel.row_block && (rows > 1 || (kernel.features & feature_gqa) == 0);
        return request.whole_keys && fits ? QueryFit::whole_or_wide : QueryFit::others_first;
    }
    if (!is_for_large_groups(kernel)) return QueryFit::decode;
    if (!has_large_groups(kernel, request)) return QueryFit::others_first;
    if (!has_tiles_of_rows(kernel)) return has_own_dims(kernel) ? QueryFit::whole_or_wide : QueryFit::decode;
    if (pays_dots_beside_tiles(request)) return QueryFit::tiles_beside_dots;
    return has_own_dims(kernel) ? QueryFit::matrix_tiles_of_dims : QueryFit::matrix_tiles;
}

std::tuple<bool, bool, bool, bool> traits_of_lengths(const KernelRequest &request) {
    return {is_short(request), pays_lanes_of_rows(request), has_very_many_keys(request), leaves_caches(request)};
}

int32_t least_rows(const Kernel &kernel) {
    if (!is_for_large_groups(kernel)) return 1;
    if (has_dots_of_rows(kernel) || has_floats_of_rows(kernel)) return 12;
    return has_tiles_of_rows(kernel) ? most_queries_of_lanes + 1 : least_rows_of_large_groups;
}

namespace {

constexpr int32_t most_queries_of_dots = 48;  // a block of rows

// Where the other choice is prefill in dot products of bf16, which packs values first.
int32_t most_beside_dots(const Kernel &kernel, const KernelRequest &request) {
    const bool is_long = pays_lanes_of_rows(request), is_shared = request.group_size > 1;
    if (has_dots_of_rows(kernel)) {
        if (is_short(request))
            return is_shared ? std::max(most_queries_of_dots / request.group_size, 1) : most_queries_of_lanes;
        return is_long && !is_shared ? most_queries_of_dots : most_queries_of_dots / 2;
    }
    const int32_t most =
        kernel.target == KernelTarget(Isa::avx512bf16) ? 2 * most_queries_of_lanes : most_queries_of_lanes;
    return is_long && !is_shared ? std::min(2 * most, most_queries_of_elements) : most;
}

// Where the other choice is prefill in floats: its blocks have as many rows, all of one head.
int32_t most_of_floats(const Kernel &kernel, const KernelRequest &request) {
    const bool is_shared = request.group_size > 1;
    if (is_short(request)) return is_shared ? kernel.row_block / 4 : most_queries_of_lanes;
    return pays_lanes_of_rows(request) && !is_shared ? kernel.row_block : kernel.row_block / 2;
}

}  // namespace

int32_t most_decoded_queries(const Kernel &kernel, int32_t group_size) {
    if (has_tiles_of_rows(kernel)) {
        const int32_t of_any_dims = 8;
        return has_own_dims(kernel) ? std::min(32, of_any_dims + 32 / std::max(group_size, 1)) : of_any_dims;
    }
    if (!has_own_dims(kernel)) return most_queries_of_lanes;
    if (has_dots_of_rows(kernel)) return most_queries_of_dots;
    if (has_floats_of_rows(kernel)) return group_size > 1 ? kernel.row_block / 2 : kernel.row_block;
    const bool is_avx512 = kernel.target == KernelTarget(Isa::avx512) || kernel.target == KernelTarget(Isa::avx512bf16);
    return is_avx512 ? 16 : kernel.target == KernelTarget(Isa::avx2) ? 8 : most_queries_of_lanes;
}

int32_t most_decoded_queries(const Kernel &kernel, const KernelRequest &request) {
    const int32_t most = most_decoded_queries(kernel, request.group_size);
    if (has_tiles_of_rows(kernel)) return most;
    if (request.prefills_in_dots) return std::min(most, most_beside_dots(kernel, request));
    if (has_floats_of_rows(kernel)) return most_of_floats(kernel, request);
    // The machine has matrix tiles.
    const bool in_dots = kernel.target == KernelTarget(Isa::avx512bf16) && !request.prefills_in_floats;
    if (in_dots && pays_dots_beside_tiles(request)) return std::min(most, most_queries_beside_tiles);
    const bool reads_again = request.group_size > 1 && leaves_caches(request);
    const bool few = kernel.target == KernelTarget(Isa::avx2) && is_short(request);
    if (!request.prefills_in_floats || few) return std::min(most, most_queries_of_lanes);
    return std::min(most, reads_again ? 16 : most_queries_of_elements);
}

Phase preferred_phase(const Kernel &kernel, const KernelRequest &request) {
    const bool few = request.q_len <= most_decoded_queries(kernel, request) && !request.any_q_len;
    return few ? Phase::decode : Phase::prefill;
}

}  // namespace heed
