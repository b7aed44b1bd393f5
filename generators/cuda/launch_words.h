#pragma once
// Lists as parameters of a launch: 64-bit words, in entries of a few, found by their number.

#include <vector>

#include "device_code.h"

namespace heed::cuda {

class LaunchWords {
public:
    // 2^n entries.
    LaunchWords(int entries, int words_per_entry);

    const std::vector<Halide::Param<uint64_t>> &params() const { return words; }

    // The words of an entry. Threads of a warp that ask for the same entry take the same way to it.
    std::vector<Halide::Expr> find(DeviceCode &code, const Halide::Expr &entry) const;

private:
    const int entries, words_per_entry;
    std::vector<Halide::Param<uint64_t>> words;  // word0, word1, ..

    void find(DeviceCode &code, const Halide::Expr &entry, int first, int count, const Registers &found) const;
};

}  // namespace heed::cuda
