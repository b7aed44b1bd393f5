#include "tests/conformance/report.h"

#include <algorithm>
#include <cstdio>

namespace heed_conformance {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> list_cases(const Options &options) {
    const fs::path folder = options.cases / options.operator_name;
    if (!options.case_name.empty()) return {folder / (options.case_name + ".safetensors")};
    std::vector<fs::path> files;
    for (const fs::directory_entry &entry : fs::directory_iterator(folder)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
}

// What cannot be read, adapted or planned is a fault as a wrong result is.
Outcome run_guarded(const fs::path &file, const Options &options, const RunCase &run_case) {
    try {
        return run_case(read_onnx_case(file), options);
    } catch (const std::exception &error) {
        Outcome outcome;
        outcome.faults.push_back({options.kernel, error.what()});
        return outcome;
    }
}

void print_failure(const std::string &name, const Outcome &outcome, const Options &options) {
    const Outcome::Fault &fault = outcome.faults.front();
    const std::string sentence = fault.sentence.substr(0, fault.sentence.find('\n'));
    std::string again = "heed_conformance " + options.operator_name + " " + options.cases.string() + " --case=" + name;
    if (!fault.kernel.empty()) again += " --kernel=" + fault.kernel;
    std::printf("FAILED %s: %s (%zu faults); again: %s\n", name.c_str(), sentence.c_str(), outcome.faults.size(),
                again.c_str());
}

}  // namespace

bool run_cases(const Options &options, size_t wanted, const RunCase &run_case) {
    const std::vector<fs::path> files = list_cases(options);
    size_t passed = 0;
    Outcome total;
    for (const fs::path &file : files) {
        const Outcome outcome = run_guarded(file, options, run_case);
        for (const auto &[isa, runs] : outcome.runs) total.runs[isa] += runs;
        total.worst = std::max(total.worst, outcome.worst);
        passed += outcome.faults.empty() ? 1 : 0;
        if (!outcome.faults.empty()) print_failure(file.stem().string(), outcome, options);
    }
    std::string runs;
    for (const auto &[isa, count] : total.runs) runs += ", " + std::to_string(count) + " runs on " + isa;
    std::printf("%s: %zu of %zu cases pass%s, worst error %.2g of the tolerance\n", options.operator_name.c_str(),
                passed, wanted, runs.c_str(), total.worst);
    if (files.size() != wanted) std::printf("FAILED: there are %zu cases\n", files.size());
    return passed == wanted && files.size() == wanted;
}

}  // namespace heed_conformance
