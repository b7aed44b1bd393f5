#include "generators/cuda/launch_words.h"

namespace heed::cuda {

using namespace Halide;

std::vector<Expr> LaunchWords::find(DeviceCode &code, const Expr &entry) const {
    const Registers found = code.registers("found", UInt(64), params.entry_words);
    find(code, entry, 0, params.entries, found);
    std::vector<Expr> result;
    for (int i = 0; i < params.entry_words; i++) result.push_back(code.let("word", found[i]));
    return result;
}

// Parameters cannot be indexed: branches that halve the range.
void LaunchWords::find(DeviceCode &code, const Expr &entry, int first, int count, const Registers &found) const {
    if (count == 1) {
        for (int i = 0; i < params.entry_words; i++) code.set(found, i, params.words[first * params.entry_words + i]);
        return;
    }
    const int half = count / 2;
    code.when(
        entry < first + half, [&] { find(code, entry, first, half, found); },
        [&] { find(code, entry, first + half, half, found); });
}

}  // namespace heed::cuda
