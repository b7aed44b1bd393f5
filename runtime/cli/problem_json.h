// problem.json of a case folder.
#pragma once

#include <filesystem>

#include "case_folder.h"

namespace heed_cli {

// What the file says, the defaults for what it leaves out: the fields of `problem` that are no dimensions, layouts,
// dropout. max_q_len stays 0 for null. Throws InvalidInput.
Case read_problem_json(const std::filesystem::path &path);

void write_problem_json(const std::filesystem::path &path, const Case &c);

}  // namespace heed_cli
