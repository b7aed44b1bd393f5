// The names that a misspelt one may have meant.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace heed {

// Insertions, deletions and replacements of a character that make `b` of `a`.
inline int num_edits(const std::string &a, const std::string &b) {
    std::vector<int> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); j++) row[j] = static_cast<int>(j);
    for (size_t i = 0; i < a.size(); i++) {
        int diagonal = std::exchange(row[0], static_cast<int>(i) + 1);
        for (size_t j = 0; j < b.size(); j++) {
            const int replaced = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
        }
    }
    return row.back();
}

// "; near names: a, b, c" of the three nearest, the first of equals first; "" of none.
inline std::string near_names(const std::string &name, const std::vector<std::string> &names) {
    std::vector<std::pair<int, const std::string *>> order;
    order.reserve(names.size());
    for (const std::string &other : names) order.emplace_back(num_edits(name, other), &other);
    std::stable_sort(order.begin(), order.end(), [](const auto &a, const auto &b) { return a.first < b.first; });
    std::string text;
    for (size_t n = 0; n < std::min<size_t>(3, order.size()); n++) {
        text += (n == 0 ? "; near names: " : ", ") + *order[n].second;
    }
    return text;
}

}  // namespace heed
