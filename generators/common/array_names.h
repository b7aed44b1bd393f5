#pragma once
// Names of arrays: in a kernel of CUDA Halide adds a number to those that are not in registers.

#include <string>

#include "Halide.h"

namespace heed {

// Of the array of a kernel that begins with `name`; itself where there is none.
std::string name_of_array(const Halide::Internal::Stmt &kernel, const std::string &name);
// Of the Func of an array.
std::string func_of_array(std::string array);

}  // namespace heed
