#include "launch_words.h"

namespace heed::cuda {

using namespace Halide;

LaunchWords::LaunchWords(int entries, int words_per_entry) : entries(entries), words_per_entry(words_per_entry) {
    for (int i = 0; i < entries * words_per_entry; i++) words.emplace_back("word" + std::to_string(i));
}

std::vector<Expr> LaunchWords::find(DeviceCode &code, const Expr &entry) const {
    const Registers found = code.registers("found", UInt(64), words_per_entry);
    find(code, entry, 0, entries, found);
    std::vector<Expr> result;
    for (int i = 0; i < words_per_entry; i++) result.push_back(code.let("word", found[i]));
    return result;
}

// Parameters cannot be indexed: branches that halve the range.
void LaunchWords::find(DeviceCode &code, const Expr &entry, int first, int count, const Registers &found) const {
    if (count == 1) {
        for (int i = 0; i < words_per_entry; i++) code.set(found, i, words[first * words_per_entry + i]);
        return;
    }
    const int half = count / 2;
    code.when(
        entry < first + half, [&] { find(code, entry, first, half, found); },
        [&] { find(code, entry, first + half, half, found); });
}

}  // namespace heed::cuda
