#include "heuristics.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "backend.h"
#include "cpu.h"
#include "status.h"
#include "view.h"

namespace heed {
namespace {

// A split is long enough to hide its merge (one partial row against 512 keys), and a long cache gives 32 of them.
constexpr int64_t min_split_len = 512, max_split_len = 4096;
constexpr int32_t splits_of_long_cache = 32;

// Waking a thread costs some 5 to 20 us; at 30 to 100 GFLOP/s a core does about this much meanwhile.
constexpr double flops_per_thread = 1 << 20;

// Larger is better, compared in order.
using Rank = std::tuple<bool, int, int, bool, bool, int, int, int>;

int count_bits(uint32_t bits) { return __builtin_popcount(bits); }

Rank rank(const Kernel &row, const RowRequest &request) {
    const int exact_dims = (row.head_dim != 0) + (row.head_dim_v != 0);
    const bool several_rows = request.q_len > 1 || request.group_size > 1;
    const bool packs_as_asked = several_rows == ((row.features & feature_gqa) != 0);
    const bool stores_as_asked = (row.kv_storage == HEED_KV_PAGED) == (request.kv_storage == HEED_KV_PAGED);
    // How often the keys of a head are read.
    const bool packs = (row.features & feature_gqa) != 0;
    const int64_t rows = int64_t{request.any_q_len ? 1 : request.q_len} * (packs ? request.group_size : 1),
                  block = std::max(row.row_block, 1);
    const auto reads = static_cast<int>(std::min<int64_t>((rows + block - 1) / block, INT32_MAX));
    return Rank(row.phase == preferred_phase(request), exact_dims, static_cast<int>(row.isa), stores_as_asked,
                packs_as_asked, -count_bits(row.features & ~request.features), -reads, -row.row_block);
}

const char *phase_name(Phase phase) { return phase == Phase::decode ? "decode" : "prefill"; }

std::string describe(const Kernel &row, const RowRequest &request) {
    std::string text = std::string(phase_name(row.phase)) + " (q_len " + std::to_string(request.q_len) +
                       (request.q_len <= decode_max_q_len ? " <= " : " > ") + std::to_string(decode_max_q_len) +
                       (request.any_q_len ? ", batch_invariant" : "") + ")";
    if (row.phase != preferred_phase(request)) {
        text += std::string(", though ") + phase_name(preferred_phase(request)) + " is preferred";
    }
    text += row.head_dim != 0 && row.head_dim_v != 0 ? ", own head dims" : ", general head dims";
    return text + ", " + isa_name(row.isa);
}

const Kernel *find_row(const KernelTable &table, const char *name) {
    for (int32_t i = 0; i < table.count; i++) {
        if (std::strcmp(table.rows[i].name, name) == 0) return &table.rows[i];
    }
    return nullptr;
}

RowChoice force_row(const KernelTable &table, const RowRequest &request, uint32_t isas, const char *name) {
    RowChoice choice;
    const Kernel *row = find_row(table, name);
    if (row == nullptr) {
        choice.status = HEED_INVALID_ARGUMENT;
        choice.reason = std::string("HEED_FORCE_KERNEL is \"") + name +
                        "\"; it must name a row of the kernel table (of " + std::to_string(table.count) +
                        "), see heed_kernel_info";
        return choice;
    }
    const std::string reason = why_not(*row, request, isas);
    if (!reason.empty()) {
        choice.status = HEED_UNSUPPORTED;
        choice.reason = std::string("HEED_FORCE_KERNEL is \"") + name + "\", which cannot serve this: " + reason;
        return choice;
    }
    choice.row = row;
    choice.reason = "forced by HEED_FORCE_KERNEL: " + describe(*row, request);
    choice.candidates = std::string("  ") + name + ": taken, " + choice.reason + "\n";
    return choice;
}

// Why `row`, which could serve, lost against `best`.
std::string why_less(const Kernel &row, const Kernel &best, const RowRequest &request) {
    const Rank mine = rank(row, request), theirs = rank(best, request);
    if (std::get<0>(mine) != std::get<0>(theirs)) {
        return std::string("could serve, but ") + phase_name(best.phase) + " is preferred";
    }
    if (std::get<1>(mine) != std::get<1>(theirs)) return "could serve, but has general head dims";
    if (std::get<2>(mine) != std::get<2>(theirs))
        return std::string("could serve, but ") + isa_name(best.isa) + " is faster";
    if (std::get<3>(mine) != std::get<3>(theirs)) return "could serve, but looks keys up in a page table";
    if (std::get<4>(mine) != std::get<4>(theirs)) return "could serve, but its rows of work do not fit the group";
    if (std::get<5>(mine) != std::get<5>(theirs)) return "could serve, but has features that are not asked for";
    if (std::get<6>(mine) != std::get<6>(theirs)) return "could serve, but reads the keys more often";
    if (std::get<7>(mine) != std::get<7>(theirs)) return "could serve, but has more rows of work than are asked for";
    return "could serve, but comes later in the table";
}

// The call of CMake that makes a row for the request, for the best of these ISAs.
std::string line_that_adds(const RowRequest &request, uint32_t isas) {
    std::string head_dims = std::to_string(request.head_dim), features;
    if (request.head_dim_v != request.head_dim) head_dims += "x" + std::to_string(request.head_dim_v);
    if (request.kv_storage == HEED_KV_PAGED) features += " paged";
    if (request.kv_dtype == HEED_I8) features += " int8";
    features += feature_names(request.features);
    const auto best = static_cast<Isa>(31 - __builtin_clz(isas | 1));  // x86_64 where there is none
    return std::string("heed_add_kernels(<target> PHASES ") + phase_name(preferred_phase(request)) + " DTYPES " +
           dtype_name(request.dtype) + " HEAD_DIMS " + head_dims + (features.empty() ? "" : " FEATURES" + features) +
           " ISAS " + isa_name(best) +
           (request.score_mod[0] == '\0' ? "" : " SCORE_MOD " + std::string(request.score_mod) + ".cpp") + ")";
}

}  // namespace

Phase preferred_phase(const RowRequest &request) {
    return request.q_len <= decode_max_q_len && !request.any_q_len ? Phase::decode : Phase::prefill;
}

RowChoice choose_row(const KernelTable &table, const RowRequest &request, uint32_t isas, const char *forced) {
    if (forced != nullptr && forced[0] != '\0') return force_row(table, request, isas, forced);
    RowChoice choice;
    for (int32_t i = 0; i < table.count; i++) {
        const Kernel &row = table.rows[i];
        if (!why_not(row, request, isas).empty()) continue;
        if (choice.row == nullptr || rank(row, request) > rank(*choice.row, request)) choice.row = &row;
    }
    int32_t elsewhere = 0;
    heed_device other = request.device;
    for (int32_t i = 0; i < table.count; i++) {
        const Kernel &row = table.rows[i];
        if (device_of(row.isa) != request.device) {
            elsewhere++;
            other = device_of(row.isa);
            continue;
        }
        std::string verdict = why_not(row, request, isas);
        if (&row == choice.row) verdict = "taken, " + describe(row, request);
        if (verdict.empty()) verdict = why_less(row, *choice.row, request);
        choice.candidates += std::string("  ") + row.name + ": " + verdict + "\n";
    }
    if (elsewhere > 0) {
        choice.candidates +=
            "  not looked at: " + std::to_string(elsewhere) + " rows of " + backend_of(other).name() + "\n";
    }
    if (choice.row == nullptr) {
        choice.status = HEED_UNSUPPORTED;
        choice.reason = "no kernel row serves this problem:\n" + choice.candidates + "In CMake, " +
                        line_that_adds(request, isas) + " adds one.";
    } else {
        choice.reason = describe(*choice.row, request);
    }
    return choice;
}

Splits choose_splits(int32_t max_kv_len, int32_t kv_block, int32_t requested) {
    const int64_t kv_len = std::max(max_kv_len, 1);
    const int64_t wanted = requested > 0 ? (kv_len + requested - 1) / requested
                                         : std::clamp(kv_len / splits_of_long_cache, min_split_len, max_split_len);
    const int64_t split_len = round_up(wanted, std::max(kv_block, 1));
    return {static_cast<int32_t>((kv_len + split_len - 1) / split_len), split_len};
}

int32_t most_splits(int32_t max_kv_len, int32_t kv_block) {
    // A split has at least 512 keys, and up to 32 * 4096 keys at least a 32nd of them, rounded down: one more split may
    // hold the rest.
    const int64_t by_length = std::max(max_kv_len, 1) / min_split_len + 1;
    const int64_t longest = std::max<int64_t>(max_split_len, kv_block);
    return static_cast<int32_t>(
        std::min(by_length, std::max<int64_t>(splits_of_long_cache + 1, max_kv_len / longest + 1)));
}

int32_t choose_threads(double flops, int32_t limit) {
    const double worth = std::clamp(flops / flops_per_thread, 1.0, static_cast<double>(limit));
    return static_cast<int32_t>(worth);
}

}  // namespace heed
