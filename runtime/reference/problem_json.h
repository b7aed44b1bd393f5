// The problem of a case as JSON.
#pragma once

#include <string>

#include "runtime/reference/case_file.h"

namespace heed_reference {

// What the text says, the defaults for what it leaves out: the fields of `problem` that are no dimensions, layouts,
// dropout. max_q_len stays 0 for null. Throws InvalidInput.
Case read_problem_json(const std::string &text);

std::string write_problem_json(const Case &c);

}  // namespace heed_reference
