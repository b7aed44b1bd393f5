// One case run through the public API.
#pragma once

#include <optional>
#include <string>

#include "runtime/reference/case_file.h"
#include "runtime/reference/invalid_input.h"

namespace heed_cli {

using heed_reference::Array;
using heed_reference::Case;
using heed_reference::InvalidInput;

struct Options {
    std::string case_path;
    heed_device device = HEED_CPU;
    std::optional<std::string> kernel;  // none: the plan chooses
    int32_t threads = 0;                // 0: the CPUs of this process
    int32_t repeat = 1;
};

struct Execution {
    std::string kernel;
    Array out, lse;
    double seconds;  // of the fastest run
};

// Throws InvalidInput for a kernel that is not linked in, heed::Error for what the library refuses, std::runtime_error
// for what the CUDA driver does. On CUDA the time is that from the launch to the end of the kernel, without copies.
Execution execute(const Case &c, const Options &options);

}  // namespace heed_cli
