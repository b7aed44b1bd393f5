// What a run of all cases found.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/conformance/onnx_case.h"

namespace heed_conformance {

struct Options {
    std::string operator_name;  // "attention" or "rotary", the folder below `cases` too
    std::filesystem::path cases;
    std::string case_name;       // empty: all
    std::string kernel;          // empty: the plan's choice, and every kernel that serves the case
    std::filesystem::path dump;  // empty: none
};

// The result of one case: what went wrong, each with the kernel that did it, and what ran.
struct Outcome {
    struct Fault {
        std::string kernel, sentence;
    };
    std::vector<Fault> faults;
    std::map<std::string, int> runs;  // by ISA
    double worst = 0;                 // the largest error / tolerance of a right element
};

using RunCase = std::function<Outcome(const OnnxCase &, const Options &)>;

// Runs the cases, prints a line per case that fails and a summary. True when all of `wanted` cases are there and pass.
bool run_cases(const Options &options, size_t wanted, const RunCase &run_case);

Outcome run_attention(const OnnxCase &onnx, const Options &options);
Outcome run_rotary(const OnnxCase &onnx, const Options &options);

}  // namespace heed_conformance
