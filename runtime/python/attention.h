// Runs a call that is checked.
#pragma once

#include <memory>

#include "runtime/python/call.h"

namespace heed::python {

// The plan of a problem, a new one or one of those seen last.
std::shared_ptr<const Plan> find_plan(const heed_problem &problem);

// With the plan of its problem, without the interpreter's lock. `stream` and `allocate` are CUDA's.
void run_attention(AttentionCall *call, uint64_t stream, const nanobind::object &allocate);

}  // namespace heed::python
