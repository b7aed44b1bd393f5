// The subcommands of `heed`. Each prints to stdout and returns the exit status; failures are exceptions.
#pragma once

#include <string>
#include <vector>

#include "runtime/cli/execution.h"

namespace heed_cli {

enum ExitStatus { exit_ok = 0, exit_internal = 1, exit_invalid = 2, exit_unsupported = 3 };

// By their numbers in the API.
extern const std::vector<std::string> dtype_words, isa_words;

// Which kernels to list: empty fields hold for all.
struct KernelFilter {
    std::string isa, dtype, name;  // name: a part of it
    bool here = false, json = false;
};

// Tables of the kernels of attention and of operations, or one JSON object of both: what each serves, whether this
// machine can run it.
int list_kernels(const KernelFilter &filter);

// The problem of a case as JSON, each key with its default.
int print_template();

// Runs a case and writes its results into outputs_of(case_path). When it throws, that file is not there.
int run_case(const Options &options);

// Runs a case and compares out and lse with the fp64 reference. exit_internal when an error exceeds its bound.
// Writes no file.
int check_case(const Options &options);

}  // namespace heed_cli
