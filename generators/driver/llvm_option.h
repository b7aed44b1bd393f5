#pragma once
// Options of LLVM.

#include <cstdlib>
#include <string>

namespace heed {

// Beside those of the caller. Halide reads them where it starts LLVM: before the first module of the process.
inline void add_llvm_option(const std::string &option) {
    const char *before = std::getenv("HL_LLVM_ARGS");
    setenv("HL_LLVM_ARGS", before == nullptr ? option.c_str() : (before + (" " + option)).c_str(), 1);
}

}  // namespace heed
