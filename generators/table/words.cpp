#include "generators/table/words.h"

#include <sstream>

#include "generators/contract/fields.h"

namespace heed::table {

Words feature_names() {
    Words names = {
#define HEED_FEATURE_TEXT(name, bit) #name,
        HEED_FEATURES(HEED_FEATURE_TEXT)
#undef HEED_FEATURE_TEXT
    };
    std::sort(names.begin(), names.end());
    return names;
}

Words all_isas() {
    Words isas = cpu_isas();
    for (const std::string &isa : cuda_isas()) isas.push_back(isa);
    return isas;
}

Words split(const std::string &text, char separator) {
    Words words;
    std::istringstream rest(text);
    for (std::string word; std::getline(rest, word, separator);) words.push_back(word);
    return words;
}

Words texts(const std::vector<int> &numbers) {
    Words words;
    for (const int number : numbers) words.push_back(std::to_string(number));
    return words;
}

std::string joined(const Words &words, const std::string &separator) {
    std::string text;
    for (const std::string &word : words) text += (text.empty() ? "" : separator) + word;
    return text;
}

void for_each_of(const std::vector<Words> &lists, const std::function<void(const Words &)> &use, const Words &chosen) {
    if (chosen.size() == lists.size()) return use(chosen);
    for (const std::string &word : lists[chosen.size()]) {
        Words longer = chosen;
        longer.push_back(word);
        for_each_of(lists, use, longer);
    }
}

}  // namespace heed::table
