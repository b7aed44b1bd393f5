#include "runtime/heuristics.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>
#include <vector>

#include "runtime/backend.h"
#include "runtime/cpu.h"
#include "runtime/names/near_names.h"
#include "runtime/status.h"
#include "runtime/view.h"

namespace heed {
namespace {

// A split is long enough to hide its merge (up to 16 partial rows against 512 keys, more against 1024: by 512 keys, 32
// rows of floats take 8 % of the time), and a long cache gives 32 of them.
constexpr int64_t min_split_len = 512, min_split_of_many_rows = 1024, many_rows = 16, max_split_len = 4096;
constexpr int32_t splits_of_long_cache = 32;

// So many that the last ones to finish are few compared with all.
constexpr int32_t tasks_per_thread = 4;

// See most_decoded_queries.
constexpr int32_t most_queries_of_lanes = 4, most_queries_of_elements = 11;

// So many that it hardly counts which ones are the last to finish.
constexpr int32_t many_tasks_per_thread = 64;

// Waking a thread costs some 5 to 20 us; at 30 to 100 GFLOP/s a core does about this much meanwhile.
constexpr double flops_per_thread = 1 << 20;

// Or reads so much at 15 to 50 GB/s: steps of decoding compute little with each key.
constexpr double bytes_per_thread = 1 << 18;

// Keys and values of a head that the caches keep from one head of a group to the next.
constexpr int64_t cached_head_bytes = 2 << 20;

// A part of packed keys, and the states of the tasks that take turns with it, in an L2 cache of 2 MiB. Measured as for
// most_whole_bytes, 2816 and 3072 keys: parts of 512 KiB 5.4 and 5.7 ms, of 768 5.15 and 5.5, of 1024 5.4 and 5.6.
constexpr int64_t part_bytes = 768 << 10, bundle_bytes = 768 << 10;

// All that the choice of a decode kernel makes of max_kv_len.
bool is_short(const KernelRequest &request) { return request.max_kv_len < 256; }
bool pays_lanes_of_rows(const KernelRequest &request) { return request.max_kv_len >= 1024; }
bool leaves_caches(const KernelRequest &request) {
    const int64_t elements = int64_t{request.max_kv_len} * (request.head_dim + request.head_dim_v);
    return elements * dtype_bytes(request.kv_dtype) > cached_head_bytes;
}

// Larger is better, compared in order.
using Rank = std::tuple<int, bool, int, int, bool, bool, int, int, int>;

// Prefill is bound by arithmetic: that of dot products where they are slow, ten rounds of a generator per logit.
bool is_slow(const Kernel &kernel, const KernelRequest &request) {
    const bool slow_dots = request.slow_bf16_dots && kernel.target == KernelTarget(Isa::avx512bf16);
    const bool drops_in_vain = (kernel.features & ~request.features & feature_dropout) != 0;
    return kernel.phase == Phase::prefill && (slow_dots || drops_in_vain);
}

bool has_own_dims(const Kernel &kernel) { return kernel.head_dim != 0 && kernel.head_dim_v != 0; }

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

// Whether lanes of rows pay. Tasks of theirs have one head and one split of the keys: short sequences are too few
// tasks, and of many heads whose keys are neighbours in memory each task reads pages in part (8 heads of 64 floats, 8
// sequences of 1024 keys, 16 rows: 1.4 times as long). Matrix tiles pay for any keys and heads, for 8 rows where the
// other choice is prefill or keys are few: 16 sequences of 4096 keys take 1.25 times as long, of 1024 keys 0.8 to 1.1.
// Dot products pay for several queries. Floats with prefetches pay for any heads and keys, unless there is one task or
// hardly more; where prefill is the other choice, from fewer rows on.
bool has_large_groups(const Kernel &kernel, const KernelRequest &request) {
    constexpr int32_t most_heads = 2;
    const int32_t q_len = request.any_q_len ? 1 : request.q_len;
    const int64_t rows = int64_t{q_len} * request.group_size;
    const bool has_many_keys = pays_lanes_of_rows(request);
    if (has_tiles_of_rows(kernel)) {
        const bool pays_half = !has_many_keys || q_len > most_queries_of_lanes;
        return rows >= (pays_half ? least_rows(kernel) : least_rows_of_large_groups);
    }
    if (has_dots_of_rows(kernel) && request.prefills_in_dots && q_len > 1) return rows >= least_rows(kernel);
    if (has_floats_of_rows(kernel)) {
        const bool has_few_tasks = !has_many_keys && request.num_kv_heads == 1 && rows <= kernel.row_block;
        const bool beside_prefill = q_len > most_queries_of_elements;
        return rows >= (beside_prefill ? least_rows(kernel) : least_rows_of_large_groups) && !has_few_tasks;
    }
    return rows >= least_rows_of_large_groups && has_many_keys && request.num_kv_heads <= most_heads;
}

// Prefill kernels serve many queries and, after decode kernels, few. Kernels for large groups are last for smaller
// ones; for large ones those of own head dims are first, the others next to decode kernels of own head dims. Kernels
// for whole keys are first where one of their blocks of rows reads a key and that pays, else last.
int suits_queries(const Kernel &kernel, const KernelRequest &request) {
    if (kernel.phase == Phase::prefill) return 1;
    if (preferred_phase(kernel, request) != Phase::decode) return 0;
    if (is_for_whole_keys(kernel)) {
        const int64_t rows = int64_t{request.q_len} * request.group_size;
        return request.whole_keys && rows <= kernel.row_block ? 3 : 0;
    }
    if (!is_for_large_groups(kernel)) return 2;
    return !has_large_groups(kernel, request) ? 0 : has_own_dims(kernel) ? 3 : 2;
}

int count_bits(uint32_t bits) { return __builtin_popcount(bits); }

Rank rank(const Kernel &kernel, const KernelRequest &request) {
    const int exact_dims = (kernel.head_dim != 0) + (kernel.head_dim_v != 0);
    const bool several_rows = request.q_len > 1 || request.group_size > 1;
    const bool packs_as_asked = several_rows == ((kernel.features & feature_gqa) != 0);
    const bool stores_as_asked = (kernel.kv_storage == HEED_KV_PAGED) == (request.kv_storage == HEED_KV_PAGED);
    // How often the keys of a head are read.
    const bool packs = (kernel.features & feature_gqa) != 0;
    const int64_t rows = int64_t{request.any_q_len ? 1 : request.q_len} * (packs ? request.group_size : 1),
                  block = std::max(kernel.row_block, 1);
    const auto reads = static_cast<int>(std::min<int64_t>((rows + block - 1) / block, INT32_MAX));
    return Rank(suits_queries(kernel, request), !is_slow(kernel, request), exact_dims,
                static_cast<int>(kernel.target.value), stores_as_asked, packs_as_asked,
                -count_bits(kernel.features & ~request.features), -reads, -kernel.row_block);
}

// What the choice of a decode kernel reads of a request. Does not compile when a field is missing.
auto traits(const KernelRequest &request) {
    [[maybe_unused]] const auto &[device, dtype, kv_dtype, head_dim, head_dim_v, features, kv_storage, q_len,
                                  group_size, any_q_len, score_mod, keys, sequences, slow_bf16_dots, prefills_in_floats,
                                  prefills_in_dots, max_kv_len, num_kv_heads, whole_keys] = request;
    return std::make_tuple(device, dtype, kv_dtype, head_dim, head_dim_v, features, kv_storage, q_len, group_size,
                           any_q_len, std::string_view(score_mod), slow_bf16_dots, prefills_in_floats, prefills_in_dots,
                           num_kv_heads, whole_keys, is_short(request), pays_lanes_of_rows(request),
                           leaves_caches(request));
}

const char *phase_name(Phase phase) { return phase == Phase::decode ? "decode" : "prefill"; }

std::string describe(const Kernel &kernel, const KernelRequest &request) {
    const int32_t most = most_decoded_queries(kernel, request);
    std::string text = std::string(phase_name(kernel.phase)) + " (q_len " + std::to_string(request.q_len) +
                       (request.q_len <= most ? " <= " : " > ") + std::to_string(most) +
                       (request.any_q_len ? ", batch_invariant" : "") + ")";
    const Phase preferred = preferred_phase(kernel, request);
    if (kernel.phase != preferred) text += std::string(", though ") + phase_name(preferred) + " is preferred";
    text += has_own_dims(kernel) ? ", own head dims" : ", general head dims";
    return text + ", " + target_name(kernel.target);
}

const Kernel *find_kernel(const KernelTable &table, const char *name) {
    for (int32_t i = 0; i < table.count; i++) {
        if (std::strcmp(table.kernels[i].name, name) == 0) return &table.kernels[i];
    }
    return nullptr;
}

KernelChoice force_kernel(const KernelTable &table, const KernelRequest &request, uint32_t targets, const char *name) {
    KernelChoice choice;
    const Kernel *kernel = find_kernel(table, name);
    if (kernel == nullptr) {
        std::vector<std::string> names;
        names.reserve(static_cast<size_t>(table.count));
        for (int32_t i = 0; i < table.count; i++) names.emplace_back(table.kernels[i].name);
        choice.status = HEED_INVALID_ARGUMENT;
        choice.reason = std::string("HEED_FORCE_KERNEL is \"") + name + "\"; it must name a kernel of the table (of " +
                        std::to_string(table.count) + "), see `heed kernels` or heed_kernel_get_info" +
                        near_names(name, names);
        return choice;
    }
    const std::string reason = why_not(*kernel, request, targets);
    if (!reason.empty()) {
        choice.status = HEED_UNSUPPORTED;
        choice.reason = std::string("HEED_FORCE_KERNEL is \"") + name + "\", which cannot serve this: " + reason;
        return choice;
    }
    choice.kernel = kernel;
    choice.reason = "forced by HEED_FORCE_KERNEL: " + describe(*kernel, request);
    choice.candidates = std::string("  ") + name + ": taken, " + choice.reason + "\n";
    return choice;
}

// Why `kernel`, which could serve, lost against `best`.
std::string why_less(const Kernel &kernel, const Kernel &best, const KernelRequest &request) {
    const Rank mine = rank(kernel, request), theirs = rank(best, request);
    if (std::get<0>(mine) != std::get<0>(theirs)) {
        if (is_for_whole_keys(kernel)) return "could serve, but is for larger keys";
        if (is_for_whole_keys(best)) return "could serve, but is for smaller keys";
        if (kernel.phase != best.phase) {
            return std::string("could serve, but ") + phase_name(best.phase) + " is preferred";
        }
        if (is_for_large_groups(kernel)) return "could serve, but is for groups of more heads";
        if (is_for_large_groups(best)) return "could serve, but is for groups of fewer heads";
        return "could serve, but is for fewer queries";
    }
    if (std::get<1>(mine) != std::get<1>(theirs)) return "could serve, but its arithmetic is slower";
    if (std::get<2>(mine) != std::get<2>(theirs)) return "could serve, but has general head dims";
    if (std::get<3>(mine) != std::get<3>(theirs))
        return std::string("could serve, but ") + target_name(best.target) + " is faster";
    if (std::get<4>(mine) != std::get<4>(theirs)) return "could serve, but looks keys up in a page table";
    if (std::get<5>(mine) != std::get<5>(theirs)) return "could serve, but its rows of work do not fit the group";
    if (std::get<6>(mine) != std::get<6>(theirs)) return "could serve, but has features that are not asked for";
    if (std::get<7>(mine) != std::get<7>(theirs)) return "could serve, but reads the keys more often";
    if (std::get<8>(mine) != std::get<8>(theirs)) return "could serve, but has more rows of work than are asked for";
    return "could serve, but comes later in the table";
}

// The targets that have kernels of their own for the type: dot products and tiles are of bf16, tensor cores of 16 bits.
uint32_t targets_of(heed_dtype dtype) {
    using namespace token;
    uint32_t targets = x86_64.bit() | avx2.bit() | avx512.bit() | sm75.bit();
    if (dtype != HEED_F32) targets |= sm80.bit() | sm90.bit();
    if (dtype == HEED_BF16) targets |= avx512bf16.bit() | amx.bit();
    return targets;
}

// The call of CMake that makes a kernel for the request, for the best of these ISAs.
std::string line_that_adds(const KernelRequest &request, uint32_t targets) {
    std::string head_dims = std::to_string(request.head_dim), features;
    if (request.head_dim_v != request.head_dim) head_dims += "x" + std::to_string(request.head_dim_v);
    if (request.kv_storage == HEED_KV_PAGED) features += " paged";
    if (request.kv_dtype == HEED_I8) features += " int8";
    features += feature_names(request.features);
    const uint32_t helpful = targets & targets_of(request.dtype);
    const auto best = static_cast<Isa>(31 - __builtin_clz(helpful | 1));  // x86_64 where there is none
    Kernel wanted = {};
    wanted.head_dim = request.head_dim;
    wanted.head_dim_v = request.head_dim_v;
    wanted.target = best;
    return std::string("heed_add_kernels(<target> PHASES ") + phase_name(preferred_phase(wanted, request)) +
           " DTYPES " + dtype_name(request.dtype) + " HEAD_DIMS " + head_dims +
           (features.empty() ? "" : " FEATURES" + features) + " ISAS " + target_name(best) +
           (request.score_mod[0] == '\0' ? "" : " SCORE_MOD " + std::string(request.score_mod) + ".cpp") + ")";
}

}  // namespace

int32_t least_rows(const Kernel &kernel) {
    if (!is_for_large_groups(kernel)) return 1;
    if (has_dots_of_rows(kernel) || has_floats_of_rows(kernel)) return 12;
    return has_tiles_of_rows(kernel) ? least_rows_of_large_groups / 2 : least_rows_of_large_groups;
}

namespace {

constexpr int32_t most_queries_of_dots = 48;  // a block of rows

// Beside prefill in dot products of bf16, which packs values first.
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

// Beside prefill in floats, whose blocks have as many rows, of one head.
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
    const bool reads_again = request.group_size > 1 && leaves_caches(request);
    const bool few = kernel.target == KernelTarget(Isa::avx2) && is_short(request);
    if (!request.prefills_in_floats || few) return std::min(most, most_queries_of_lanes);
    return std::min(most, reads_again ? 16 : most_queries_of_elements);
}

Phase preferred_phase(const Kernel &kernel, const KernelRequest &request) {
    const bool few = request.q_len <= most_decoded_queries(kernel, request) && !request.any_q_len;
    return few ? Phase::decode : Phase::prefill;
}

const Kernel *best_kernel(const KernelTable &table, const KernelRequest &request, uint32_t targets) {
    const Kernel *best = nullptr;
    Rank best_rank;
    for (int32_t i = 0; i < table.count; i++) {
        const Kernel &kernel = table.kernels[i];
        if (kernel.dtype != request.dtype) continue;  // most are: a quarter of a plan's time
        if (!serves(kernel, request, targets)) continue;
        const Rank mine = rank(kernel, request);
        if (best != nullptr && mine <= best_rank) continue;
        best = &kernel;
        best_rank = mine;
    }
    return best;
}

bool is_preferred_decoder(const Kernel &kernel, const KernelRequest &request) {
    return kernel.phase == Phase::decode && suits_queries(kernel, request) > 1;
}

bool decode_alike(const KernelRequest &a, const KernelRequest &b) { return traits(a) == traits(b); }

KernelChoice choose_kernel(const KernelTable &table, const KernelRequest &request, uint32_t targets,
                           const char *forced) {
    if (forced != nullptr && forced[0] != '\0') return force_kernel(table, request, targets, forced);
    KernelChoice choice;
    choice.kernel = best_kernel(table, request, targets);
    int32_t elsewhere = 0;
    heed_device other = request.device;
    for (int32_t i = 0; i < table.count; i++) {
        const Kernel &kernel = table.kernels[i];
        if (kernel.target.device() != request.device) {
            elsewhere++;
            other = kernel.target.device();
            continue;
        }
        std::string verdict = why_not(kernel, request, targets);
        if (&kernel == choice.kernel) verdict = "taken, " + describe(kernel, request);
        if (verdict.empty()) verdict = why_less(kernel, *choice.kernel, request);
        choice.candidates += std::string("  ") + kernel.name + ": " + verdict + "\n";
    }
    if (elsewhere > 0) {
        choice.candidates +=
            "  not looked at: " + std::to_string(elsewhere) + " kernels of " + backend_of(other).name() + "\n";
    }
    if (choice.kernel == nullptr) {
        choice.status = HEED_UNSUPPORTED;
        // The call before the candidates: a long list is cut at its end.
        choice.reason = "no kernel serves this problem. In CMake, " + line_that_adds(request, targets) +
                        " adds one.\n" + choice.candidates;
    } else {
        choice.reason = describe(*choice.kernel, request);
    }
    return choice;
}

Splits choose_splits(int32_t max_kv_len, int32_t kv_block, int32_t requested, int64_t task_rows) {
    const int64_t kv_len = std::max(max_kv_len, 1);
    const int64_t shortest = task_rows >= many_rows ? min_split_of_many_rows : min_split_len;
    const int64_t wanted = requested > 0 ? (kv_len + requested - 1) / requested
                                         : std::clamp(kv_len / splits_of_long_cache, shortest, max_split_len);
    const int64_t split_len = round_up(wanted, std::max(kv_block, 1));
    return {static_cast<int32_t>((kv_len + split_len - 1) / split_len), split_len};
}

TaskShape choose_task_shape(const TaskShapeRequest &request) {
    int32_t bundles = (request.row_blocks + request.task_blocks - 1) / request.task_blocks;
    const int64_t heads_and_parts = request.parts * request.num_kv_heads;
    while (bundles < request.row_blocks && heads_and_parts * bundles < request.num_threads) bundles++;
    TaskShape shape;
    shape.row_blocks = (request.row_blocks + bundles - 1) / bundles;
    if (!request.heads_inside) return shape;
    const auto fits = [&](int32_t heads) {
        const int64_t tasks = request.parts * bundles * (request.num_kv_heads / heads);
        return request.num_kv_heads % heads == 0 && heads * shape.row_blocks <= request.task_blocks &&
               tasks >= int64_t{tasks_per_thread} * request.num_threads;
    };
    for (int32_t heads = 2; heads <= request.num_kv_heads; heads++) {
        if (fits(heads)) shape.heads = heads;
    }
    return shape;
}

int32_t most_splits(int32_t max_kv_len, int32_t kv_block) {
    // A split has at least 512 keys, and up to 32 * 4096 keys at least a 32nd of them, rounded down: one more split may
    // hold the rest.
    const int64_t by_length = std::max(max_kv_len, 1) / min_split_len + 1;
    const int64_t longest = std::max<int64_t>(max_split_len, kv_block);
    return static_cast<int32_t>(
        std::min(by_length, std::max<int64_t>(splits_of_long_cache + 1, max_kv_len / longest + 1)));
}

int32_t tasks_at_once(int32_t num_tasks, int32_t num_threads, int32_t together) {
    return num_tasks / together >= 2 * num_threads ? together : 1;
}

bool takes_shares(Phase phase, int32_t num_tasks, int32_t num_threads) {
    return phase == Phase::decode || num_tasks / many_tasks_per_thread >= num_threads;
}

int32_t choose_part_keys(int64_t key_bytes, int32_t kv_block) {
    const int64_t blocks = part_bytes / std::max<int64_t>(key_bytes * kv_block, 1);
    return static_cast<int32_t>(std::max<int64_t>(blocks, 1) * kv_block);
}

int32_t choose_bundle(int64_t num_tasks, int32_t num_threads, int64_t state_bytes) {
    const int64_t of_thread = num_tasks / (int64_t{tasks_per_thread} * std::max(num_threads, 1));
    const int64_t most = std::max<int64_t>(bundle_bytes / std::max<int64_t>(state_bytes, 1), 1);
    return static_cast<int32_t>(std::clamp<int64_t>(of_thread, 1, most));
}

int32_t choose_threads(double flops, double bytes, int32_t limit) {
    const double worth = std::max(flops / flops_per_thread, bytes / bytes_per_thread);
    return static_cast<int32_t>(std::clamp(worth, 1.0, static_cast<double>(limit)));
}

}  // namespace heed
