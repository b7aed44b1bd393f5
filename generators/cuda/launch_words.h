#pragma once
// Lists as parameters of a launch: 64-bit words, in entries of a few, found by their number.

#include <vector>

#include "generators/common/kernel_arguments.h"
#include "generators/cuda/device_code.h"

namespace heed::cuda {

class LaunchWords {
public:
    // 2^n entries.
    explicit LaunchWords(const WordParams &params) : params(params) {}

    // The words of an entry. Threads of a warp that ask for the same entry take the same way to it.
    std::vector<Halide::Expr> find(DeviceCode &code, const Halide::Expr &entry) const;

private:
    const WordParams params;

    void find(DeviceCode &code, const Halide::Expr &entry, int first, int count, const Registers &found) const;
};

}  // namespace heed::cuda
