#include "report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace heed_bench {

namespace {

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

const char *temperature(const Result &result) {
    return result.problem_case.kind != CaseKind::decode ? "" : (result.cold ? "cold" : "warm");
}

nlohmann::ordered_json machine_json(const Run &run) {
    return {{"cpu", run.machine.cpu_model},
            {"flags", run.machine.cpu_flags},
            {"cpus", run.machine.cpus},
            {"l1d_bytes", run.machine.l1d_bytes},
            {"l2_bytes", run.machine.l2_bytes},
            {"l3_bytes", run.machine.l3_bytes},
            {"transparent_hugepage", run.machine.transparent_hugepage},
            {"date", run.machine.date},
            {"threads", run.options.threads},
            {"rounds", run.options.rounds},
            {"foreign_cpu", run.foreign_cpu},
            {"heed_version", heed_version()}};
}

nlohmann::ordered_json ceilings_json(const Ceilings &ceilings) {
    nlohmann::ordered_json json;
    for (const heed_isa isa : all_isas) {
        if (isa_available(isa)) {
            json["fma_gflops"][isa_name(isa)] = ceilings.fma_gflops[static_cast<size_t>(isa)];
            json["exp_gelems"][isa_name(isa)] = ceilings.exp_gelems[static_cast<size_t>(isa)];
        }
    }
    json["l2_gbps"] = ceilings.l2_gbps;
    json["dram_gbps"] = ceilings.dram_gbps;
    for (const DramRead &read : ceilings.dram) {
        json["dram"].push_back({{"loop", read.loop}, {"pages", read.pages}, {"gbps", read.gbps}});
    }
    return json;
}

nlohmann::ordered_json result_json(const Result &result, const Run &run) {
    const Standing s = standing(result, run.ceilings);
    return {{"case", result.problem_case.name},
            {"temperature", temperature(result)},
            {"dtype", "f32"},
            {"kernel", result.kernel},
            {"num_splits", result.num_splits},
            {"threads", run.options.threads},
            {"ours_ms", s.milliseconds},
            {"ours_ms_median", s.median_milliseconds},
            {"samples", result.seconds.size()},
            {s.unit == "GB/s" ? "gbps" : "gflops", s.rate},
            {"ceiling_name", s.ceiling_name},
            {"ceiling", s.ceiling},
            {"share_of_ceiling", s.share()},
            {"floor_ms", s.floor_milliseconds},
            {"share_of_floor", s.share_of_floor()},
            {"rms_error", result.check.rms},
            {"max_error", result.check.max_error},
            {"error_over_bound", result.check.bound_ratio}};
}

}  // namespace

std::string display_name(const Result &result) {
    const std::string when = temperature(result);
    return when.empty() ? result.problem_case.name : result.problem_case.name + " " + when;
}

heed_isa isa_of(const std::string &kernel) {
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        heed_kernel_info_t info{};
        info.struct_size = sizeof info;
        if (heed_kernel_info(i, &info) == HEED_OK && kernel == info.name) {
            return info.isa;
        }
    }
    return best_isa();
}

Standing standing(const Result &result, const Ceilings &ceilings) {
    const Case &c = result.problem_case;
    const double best = *std::min_element(result.seconds.begin(), result.seconds.end());
    Standing s{"", "", best * 1e3, median(result.seconds) * 1e3, 0, 0, 0};
    if (c.kind == CaseKind::decode) {
        const bool in_l2 = !result.cold && kv_bytes(c) <= static_cast<double>(cache_bytes(2)) * ceilings.threads;
        s.unit = "GB/s";
        s.ceiling_name = in_l2 ? "L2 read" : "DRAM read";
        s.ceiling = in_l2 ? ceilings.l2_gbps : ceilings.dram_gbps;
        s.rate = kv_bytes(c) / best * 1e-9;
        s.floor_milliseconds = kv_bytes(c) / s.ceiling * 1e-6;
    } else {
        const auto isa = static_cast<size_t>(isa_of(result.kernel));
        s.unit = "GFLOP/s";
        s.ceiling_name = std::string("FMA ") + isa_name(all_isas[isa]);
        s.ceiling = ceilings.fma_gflops[isa];
        s.rate = nominal_flops(c) / best * 1e-9;
        s.floor_milliseconds = nominal_flops(c) / s.ceiling * 1e-6 + nominal_pairs(c) / ceilings.exp_gelems[isa] * 1e-6;
    }
    return s;
}

void print_ceilings(const Ceilings &ceilings) {
    std::printf("Ceilings, %d threads\n", ceilings.threads);
    for (const heed_isa isa : all_isas) {
        if (isa_available(isa)) {
            std::printf("  %-7s FMA %7.1f GFLOP/s   exp %6.2f G/s\n", isa_name(isa),
                        ceilings.fma_gflops[static_cast<size_t>(isa)], ceilings.exp_gelems[static_cast<size_t>(isa)]);
        }
    }
    std::printf("  read    L2 %7.1f GB/s   DRAM %.1f GB/s\n", ceilings.l2_gbps, ceilings.dram_gbps);
    for (const DramRead &read : ceilings.dram) {
        std::printf("          DRAM %5.1f GB/s  %s, pages: %s\n", read.gbps, read.loop.c_str(), read.pages.c_str());
    }
}

void print_table(const Run &run) {
    std::printf("\n%s, %d threads, %s; other processes used %.0f %% of the machine\n", run.machine.cpu_model.c_str(),
                run.options.threads, run.machine.date.c_str(), 100 * run.foreign_cpu);
    print_ceilings(run.ceilings);
    std::printf("\n%-22s %10s %10s %8s %-8s %6s %-10s %6s %9s %9s %6s  %s\n", "case", "ms", "median", "rate", "",
                "share", "of", "floor", "max err", "rms err", "bound", "kernel");
    for (const Result &result : run.results) {
        const Standing s = standing(result, run.ceilings);
        std::printf("%-22s %10.4f %10.4f %8.1f %-8s %5.1f%% %-10s %5.1f%% %9.2e %9.2e %6.3f  %s\n",
                    display_name(result).c_str(), s.milliseconds, s.median_milliseconds, s.rate, s.unit.c_str(),
                    100 * s.share(), s.ceiling_name.c_str(), 100 * s.share_of_floor(), result.check.max_error,
                    result.check.rms, result.check.bound_ratio, result.kernel.c_str());
    }
    for (const Skipped &skipped : run.skipped) {
        std::printf("%-22s %s: %s\n", skipped.name.c_str(), skipped.failed ? "FAILED" : "skipped",
                    skipped.reason.c_str());
    }
    std::printf("share: rate / ceiling; floor: time of the FLOPs and exponentials, or bytes, at the ceilings / time;\n"
                "bound: largest error / allowed error\n");
}

void write_json(const Run &run, const std::string &path) {
    nlohmann::ordered_json json = {{"machine", machine_json(run)}, {"ceilings", ceilings_json(run.ceilings)}};
    json["results"] = nlohmann::ordered_json::array();
    for (const Result &result : run.results) {
        json["results"].push_back(result_json(result, run));
    }
    json["skipped"] = nlohmann::ordered_json::array();
    for (const Skipped &skipped : run.skipped) {
        json["skipped"].push_back({{"case", skipped.name}, {"reason", skipped.reason}, {"failed", skipped.failed}});
    }
    std::ofstream file(path);
    file << json.dump(2) << "\n";
    if (!file.flush()) {
        throw std::runtime_error("cannot write " + path);
    }
}

}  // namespace heed_bench
