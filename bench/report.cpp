#include "bench/report.h"

#include <algorithm>
#include <cstdio>

#include "bench/kernel_names.h"
#include "runtime/reference/element.h"

namespace heed_bench {

namespace {

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// The fastest memory that holds K and V when calls are repeated. Half an L3: a larger part of it is not kept.
struct Memory {
    const char *name;
    double gbps;
};
Memory memory_of(const Result &result, const Ceilings &ceilings) {
    const double bytes = kv_bytes(result.problem_case);
    if (!result.cold && bytes <= static_cast<double>(cache_bytes(2)) * ceilings.threads) {
        return {"L2 read", ceilings.l2_gbps};
    }
    if (!result.cold && bytes <= static_cast<double>(cache_bytes(3)) / 2) {
        return {"L3 read", ceilings.l3_gbps};
    }
    return {"DRAM read", ceilings.dram_gbps};
}

// Bandwidth of shared machines swings, so that each call is compared with the read next to it: the median of the pairs.
double share_of_reads(const Result &result) {
    std::vector<double> shares;
    for (size_t i = 0; i < result.seconds.size(); i++) {
        shares.push_back(kv_bytes(result.problem_case) / result.seconds[i] * 1e-9 / result.dram_gbps[i]);
    }
    return median(shares);
}

}  // namespace

const char *temperature(const Result &result) {
    return result.problem_case.kind != CaseKind::decode ? "" : (result.cold ? "cold" : "warm");
}

std::string display_name(const Result &result) {
    const std::string when = temperature(result);
    return when.empty() ? result.problem_case.name : result.problem_case.name + " " + when;
}

std::string types_name(const Case &c) {
    return std::string(heed_reference::dtype_name(c.dtype)) +
           (c.kv_dtype == c.dtype ? "" : std::string("/") + heed_reference::dtype_name(c.kv_dtype));
}

Standing standing(const Result &result, const Ceilings &ceilings) {
    const Case &c = result.problem_case;
    const double best = *std::min_element(result.seconds.begin(), result.seconds.end());
    Standing s{"", "", best * 1e3, median(result.seconds) * 1e3, 0, 0, 0};
    const Unit unit = unit_of(isa_of(result.kernel), c.dtype);
    s.floor_milliseconds = (nominal_flops(c) / ceilings.peak(unit) + nominal_pairs(c) / ceilings.exp_rate(unit)) * 1e-6;
    if (c.kind == CaseKind::decode) {
        const Memory memory = memory_of(result, ceilings);
        s.unit = "GB/s";
        s.ceiling_name = memory.name;
        s.ceiling = memory.gbps;
        s.rate = kv_bytes(c) / best * 1e-9;
        if (result.cold) s.ceiling = s.rate / share_of_reads(result);
        s.floor_milliseconds = std::max(s.floor_milliseconds, kv_bytes(c) / s.ceiling * 1e-6);
    } else {
        s.unit = "GFLOP/s";
        s.ceiling_name = unit_name(unit);
        s.ceiling = ceilings.peak(unit);
        s.rate = nominal_flops(c) / best * 1e-9;
    }
    return s;
}

void print_ceilings(const Ceilings &ceilings) {
    std::printf("Ceilings, %d threads\n", ceilings.threads);
    for (const Unit unit : all_units) {
        if (unit_available(unit)) {
            std::printf("  %-11s %7.1f GFLOP/s   exp %6.2f G/s\n", unit_name(unit), ceilings.peak(unit),
                        ceilings.exp_rate(unit));
        }
    }
    std::printf("  read        L2 %7.1f GB/s   L3 %.1f GB/s   DRAM %.1f GB/s\n", ceilings.l2_gbps, ceilings.l3_gbps,
                ceilings.dram_gbps);
    for (const DramRead &read : ceilings.dram) {
        std::printf("              DRAM %5.1f GB/s  %s, pages: %s\n", read.gbps, read.loop.c_str(), read.pages.c_str());
    }
}

void print_table(const Run &run) {
    std::printf("\n%s, %d threads, %s; other processes used %.0f %% of the machine\n", run.machine.cpu_model.c_str(),
                run.options.threads, run.machine.date.c_str(), 100 * run.foreign_cpu);
    print_ceilings(run.ceilings);
    std::printf("\n%-22s %-7s %10s %10s %8s %-8s %6s %-10s %6s %9s %9s %6s  %s\n", "case", "type", "ms", "median",
                "rate", "", "share", "of", "floor", "max err", "rms err", "bound", "kernel");
    for (const Result &result : run.results) {
        const Standing s = standing(result, run.ceilings);
        std::printf("%-22s %-7s %10.4f %10.4f %8.1f %-8s %5.1f%% %-10s %5.1f%% %9.2e %9.2e %6.3f  %s\n",
                    display_name(result).c_str(), types_name(result.problem_case).c_str(), s.milliseconds,
                    s.median_milliseconds, s.rate, s.unit.c_str(), 100 * s.share(), s.ceiling_name.c_str(),
                    100 * s.share_of_floor(), result.check.max_error, result.check.rms, result.check.bound_ratio,
                    result.kernel.c_str());
    }
    for (const Skipped &skipped : run.skipped) {
        std::printf("%-22s %s: %s\n", skipped.name.c_str(), skipped.failed ? "FAILED" : "skipped",
                    skipped.reason.c_str());
    }
    std::printf(
        "share: rate / ceiling; floor: time of the FLOPs and exponentials at the ceilings, decode: of the bytes "
        "where that is longer, / time;\n"
        "bound: largest error / allowed error\n");
}

}  // namespace heed_bench
