#include "runtime/kernel_choice.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>
#include <vector>

#include "runtime/backend.h"
#include "runtime/cpu.h"
#include "runtime/names/near_names.h"
#include "runtime/phase_choice.h"
#include "runtime/status.h"

namespace heed {
namespace {

// Larger is better, compared in order.
using Rank = std::tuple<QueryFit, bool, int, int, bool, bool, int, int, int>;

bool copies_in_vain(const Kernel &kernel, const KernelRequest &request) {
    return request.copies != CopiesOfHeads::pay && needs_copies(kernel, request.kv_storage, request.kv_dtype);
}

// Prefill is bound by arithmetic: that of dot products where they are slow, ten rounds of a generator per logit.
bool is_slow(const Kernel &kernel, const KernelRequest &request) {
    const bool slow_dots = request.slow_bf16_dots && kernel.target == KernelTarget(Isa::avx512bf16);
    const bool drops_in_vain = (kernel.features & ~request.features & feature_dropout) != 0;
    return kernel.phase == Phase::prefill && (slow_dots || drops_in_vain || copies_in_vain(kernel, request));
}

int count_bits(uint32_t bits) { return __builtin_popcount(bits); }

Rank rank(const Kernel &kernel, const KernelRequest &request) {
    const int exact_dims = (kernel.head_dim != 0) + (kernel.head_dim_v != 0);
    const bool several_rows = request.q_len > 1 || request.group_size > 1;
    const bool packs_as_asked = several_rows == ((kernel.features & feature_gqa) != 0);
    const bool copies = request.copies == CopiesOfHeads::pay;
    const bool looks_up = request.kv_storage == HEED_KV_PAGED && !copies;
    const bool stores_as_asked = (kernel.kv_storage == HEED_KV_PAGED) == looks_up;
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
                                  prefills_in_dots, max_kv_len, num_kv_heads, whole_keys, far_keys, copies] = request;
    return std::make_tuple(device, dtype, kv_dtype, head_dim, head_dim_v, features, kv_storage, q_len, group_size,
                           any_q_len, std::string_view(score_mod), slow_bf16_dots, prefills_in_floats, prefills_in_dots,
                           num_kv_heads, whole_keys, far_keys, traits_of_lengths(request));
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
    if (std::get<1>(mine) != std::get<1>(theirs)) {
        if (copies_in_vain(kernel, request)) return "could serve, but copies keys that few rows read";
        return "could serve, but its arithmetic is slower";
    }
    if (std::get<2>(mine) != std::get<2>(theirs)) return "could serve, but has general head dims";
    if (std::get<3>(mine) != std::get<3>(theirs))
        return std::string("could serve, but ") + target_name(best.target) + " is faster";
    if (std::get<4>(mine) != std::get<4>(theirs)) {
        if (needs_copies(best, request.kv_storage, request.kv_dtype)) {
            return "could serve, but copies of heads take less time";
        }
        return "could serve, but looks keys up in a page table";
    }
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
    return kernel.phase == Phase::decode && suits_queries(kernel, request) > QueryFit::prefill;
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

}  // namespace heed
