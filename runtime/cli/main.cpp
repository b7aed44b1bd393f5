// The command `heed`.
#include <charconv>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "commands.h"
#include "heed/heed.hpp"
#include "output_files.h"

namespace {

using namespace heed_cli;

constexpr char usage[] = R"(usage: heed kernels
       heed run CASE [--device cpu|cuda] [--kernel NAME] [--threads N] [--repeat N]
       heed check CASE [--device cpu|cuda] [--kernel NAME] [--threads N]
       heed --help | --version

kernels  lists the kernels: what each serves, whether this machine can run it
run      computes the case, writes out and lse into NAME.out.safetensors, prints the kernel and its speed
check    computes the case and compares it with a reference in fp64; exit status 1 when an error exceeds its bound

CASE is a file NAME.safetensors: arrays q, k, v and, as used, mask, bias, kv_lens, q_offsets, ...; the problem is JSON in
its __metadata__ under "heed_problem". heed.save_case of the Python package writes one.
--device cuda   on the first CUDA device; default: cpu
--kernel NAME   this kernel or none
--threads N     at most N threads, 1..1024; default: the CPUs of this process
--repeat N      run N times, 1..1000000, and tell the fastest; default 1

Exit status: 0 success, 2 invalid input, 3 unsupported or no device, 1 anything else. Where run fails it leaves no
NAME.out.safetensors, not even an older one.
)";

int32_t parse_count(const std::string &option, const std::string &text, int32_t most) {
    int32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
        throw InvalidInput(option + " is \"" + text + "\"; it must be 1.." + std::to_string(most));
    }
    return value;
}

// Words after the subcommand. case_path is set even when something after or before it is wrong.
void parse_options(const std::vector<std::string> &words, bool with_repeat, Options &options) {
    std::vector<std::string> cases;
    std::vector<std::pair<std::string, std::string>> settings;
    for (size_t n = 0; n < words.size(); n++) {
        if (words[n].rfind("--", 0) != 0) {
            cases.push_back(words[n]);
        } else {
            settings.emplace_back(words[n], n + 1 < words.size() ? words[n + 1] : "");
            n++;
        }
    }
    if (cases.size() != 1) {
        throw InvalidInput(std::to_string(cases.size()) + " cases given; there must be 1, see heed --help");
    }
    options.case_path = cases[0];
    for (const auto &[name, value] : settings) {
        if (name == "--kernel" && !value.empty()) {
            options.kernel = value;
        } else if (name == "--device" && (value == "cpu" || value == "cuda")) {
            options.device = value == "cuda" ? HEED_CUDA : HEED_CPU;
        } else if (name == "--threads") {
            options.threads = parse_count(name, value, 1024);
        } else if (name == "--repeat" && with_repeat) {
            options.repeat = parse_count(name, value, 1000000);
        } else {
            throw InvalidInput(name + " \"" + value +
                               "\" is no option; there are --device cpu|cuda, --kernel NAME, --threads N" +
                               (with_repeat ? ", --repeat N" : ""));
        }
    }
}

int exit_status_of(heed_status status) {
    if (status == HEED_INVALID_ARGUMENT) return exit_invalid;
    return status == HEED_UNSUPPORTED || status == HEED_NO_DEVICE ? exit_unsupported : exit_internal;
}

int run_command(const std::vector<std::string> &words, Options &options) {
    const std::string command = words.empty() ? "" : words[0];
    const std::vector<std::string> rest(words.begin() + (words.empty() ? 0 : 1), words.end());
    if (command == "run" || command == "check") {
        parse_options(rest, command == "run", options);
        return command == "run" ? run_case(options) : check_case(options);
    }
    if (words.size() == 1 && command == "kernels") return list_kernels();
    if (words.size() == 1 && (command == "--help" || command == "--version")) {
        if (command == "--help") std::fputs(usage, stdout);
        if (command == "--version") std::printf("heed %s\n", heed_version());
        return exit_ok;
    }
    std::string line = "heed";
    for (const std::string &word : words) line += " " + word;
    throw InvalidInput("no such command: " + line + "\n" + usage);
}

int report(int status, const char *sentence) {
    std::fprintf(stderr, "heed: %s\n", sentence);
    return status;
}

int run_and_report(const std::vector<std::string> &words, Options &options) {
    try {
        return run_command(words, options);
    } catch (const InvalidInput &error) {
        return report(exit_invalid, error.what());
    } catch (const heed::Error &error) {
        return report(exit_status_of(error.status()), error.what());
    } catch (const std::bad_alloc &) {
        return report(exit_internal, "out of memory");
    } catch (const std::exception &error) {
        return report(exit_internal, error.what());
    }
}

}  // namespace

int main(int argc, char **argv) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    Options options;
    const int status = run_and_report(words, options);
    if (status == exit_ok || words.empty() || words[0] != "run" || options.case_path.empty()) return status;
    try {
        remove_outputs(options.case_path);
    } catch (const std::exception &error) {
        return report(status, error.what());
    }
    return status;
}
