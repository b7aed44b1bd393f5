#pragma once
// Machine code in an object of ELF's 64 bits, which LLVM has just written.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace heed {

// The bytes of a file. Throws BadInput where it cannot be read.
std::string bytes_of(const std::string &path);

// Where the sections that are executed begin in the object's bytes, and how many bytes each has.
std::vector<std::pair<size_t, size_t>> executed_sections(const std::string &object);

}  // namespace heed
