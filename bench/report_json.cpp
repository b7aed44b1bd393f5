#include "bench/report_json.h"

#include <fstream>
#include <stdexcept>

#include "runtime/reference/element.h"

namespace heed_bench {

nlohmann::ordered_json machine_json(const MachineFacts &machine) {
    return {{"cpu", machine.cpu_model},
            {"flags", machine.cpu_flags},
            {"cpus", machine.cpus},
            {"l1d_bytes", machine.l1d_bytes},
            {"l2_bytes", machine.l2_bytes},
            {"l3_bytes", machine.l3_bytes},
            {"transparent_hugepage", machine.transparent_hugepage},
            {"date", machine.date},
            {"heed_version", heed_version()}};
}

nlohmann::ordered_json ceilings_json(const Ceilings &ceilings) {
    nlohmann::ordered_json json = {{"threads", ceilings.threads}};
    for (const Unit unit : all_units) {
        if (unit_available(unit)) {
            json["gflops"][unit_name(unit)] = ceilings.peak(unit);
            json["exp_gelems"][unit_name(unit)] = ceilings.exp_rate(unit);
        }
    }
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        json["best_unit"][heed_reference::dtype_name(dtype)] = unit_name(ceilings.fastest(dtype));
    }
    json["l2_gbps"] = ceilings.l2_gbps;
    json["l3_gbps"] = ceilings.l3_gbps;
    json["dram_gbps"] = ceilings.dram_gbps;
    for (const DramRead &read : ceilings.dram) {
        json["dram"].push_back({{"loop", read.loop}, {"pages", read.pages}, {"gbps", read.gbps}});
    }
    return json;
}

nlohmann::ordered_json result_json(const Result &result, const Ceilings &ceilings) {
    const Standing s = standing(result, ceilings);
    return {{"case", result.problem_case.name},
            {"dtype", heed_reference::dtype_name(result.problem_case.dtype)},
            {"kv_dtype", heed_reference::dtype_name(result.problem_case.kv_dtype)},
            {"temperature", temperature(result)},
            {"kernel", result.kernel},
            {"num_splits", result.num_splits},
            {"workspace_bytes", result.workspace_bytes},
            {"threads", ceilings.threads},
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

void write_json(const Run &run, const std::string &path) {
    nlohmann::ordered_json json = {{"machine", machine_json(run.machine)}};
    json["machine"].update(
        {{"threads", run.options.threads}, {"rounds", run.options.rounds}, {"foreign_cpu", run.foreign_cpu}});
    json["ceilings"] = ceilings_json(run.ceilings);
    json["results"] = nlohmann::ordered_json::array();
    for (const Result &result : run.results) {
        json["results"].push_back(result_json(result, run.ceilings));
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
