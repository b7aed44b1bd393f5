#pragma once
// Halide's own autoschedulers on the pipeline of a kernel: what schedules/ is measured against.

#include <string>

#include "generators/attention/kernel.h"

namespace heed {

// Mullapudi2016 or Adams2019, with the sizes of a prefill of 2048 tokens, or a decode over as many keys, as estimates.
// Throws or reports what the autoscheduler does.
void apply_autoscheduler(const std::string &name, AttentionKernel &kernel, Halide::Pipeline &pipeline,
                         const Halide::Target &target);

}  // namespace heed
