// ONNX's test cases, as generate.py writes them, through the public API.
#include <cstdio>
#include <exception>

#include "tests/conformance/report.h"

namespace {

using heed_conformance::Options;

constexpr char usage[] = R"(usage: heed_conformance attention|rotary CASES [--case=NAME] [--kernel=NAME] [--dump=DIR]

Runs ONNX's cases of an operator, which generate.py wrote into the folder CASES.
--case=NAME    this case alone
--kernel=NAME  attention: this kernel of the table alone; default: the plan's choice and every kernel that serves the case
--dump=DIR     attention: writes each case to DIR/NAME.safetensors, which `heed run` and `heed check` take

Exit status: 0 when every case passes, 1 when one fails, 2 for a wrong command line.
)";

// Cases that the pinned release of ONNX has; fewer prove less.
constexpr size_t attention_cases = 93, rotary_cases = 8;

// True when `word` is name=VALUE.
template <typename T>
bool take(const std::string &word, const std::string &name, T &value) {
    if (word.rfind(name + "=", 0) != 0) return false;
    value = word.substr(name.size() + 1);
    return true;
}

bool parse(int argc, char **argv, Options &options) {
    if (argc < 3) return false;
    options.operator_name = argv[1];
    options.cases = argv[2];
    for (int i = 3; i < argc; i++) {
        const std::string word = argv[i];
        if (!take(word, "--case", options.case_name) && !take(word, "--kernel", options.kernel) &&
            !take(word, "--dump", options.dump)) {
            return false;
        }
    }
    const bool plain = options.kernel.empty() && options.dump.empty();
    return options.operator_name == "attention" || (options.operator_name == "rotary" && plain);
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    if (!parse(argc, argv, options)) {
        std::fputs(usage, stderr);
        return 2;
    }
    try {
        const bool attention = options.operator_name == "attention";
        const size_t all = attention ? attention_cases : rotary_cases;
        const bool passed =
            heed_conformance::run_cases(options, options.case_name.empty() ? all : 1,
                                        attention ? heed_conformance::run_attention : heed_conformance::run_rotary);
        return passed ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heed_conformance: %s\n", error.what());
        return 1;
    }
}
