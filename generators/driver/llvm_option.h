#pragma once
// Options of LLVM.

#include <cstdlib>
#include <string>

namespace heed {

// Adds an option to those that the caller has set. Call it before the process compiles its first module: Halide reads
// the options when it starts LLVM.
inline void add_llvm_option(const std::string &option) {
    const char *before = std::getenv("HL_LLVM_ARGS");
    setenv("HL_LLVM_ARGS", before == nullptr ? option.c_str() : (before + (" " + option)).c_str(), 1);
}

}  // namespace heed
