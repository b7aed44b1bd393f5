// The subcommands of `heed`. Each prints to stdout and returns the exit status; failures are exceptions.
#pragma once

#include "execution.h"

namespace heed_cli {

enum ExitStatus { exit_ok = 0, exit_internal = 1, exit_invalid = 2, exit_unsupported = 3 };

// A table of the kernels: what each serves, whether this machine can run it.
int list_kernels();

// Runs a case and writes its results into outputs_of(case_path). When it throws, that file is not there.
int run_case(const Options &options);

// Runs a case and compares out and lse with the fp64 reference. exit_internal when an error exceeds its bound.
// Writes no file.
int check_case(const Options &options);

}  // namespace heed_cli
