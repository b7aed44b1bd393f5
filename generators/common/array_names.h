#pragma once
// Names of arrays: in a kernel of CUDA Halide adds a number to those that are not in registers.

#include <string>

#include "Halide.h"

namespace heed {

// The name of the kernel's array that begins with `name`; `name` where there is none.
std::string name_of_array(const Halide::Internal::Stmt &kernel, const std::string &name);
// The name of the Func that an array is of.
std::string func_of_array(std::string array);

}  // namespace heed
