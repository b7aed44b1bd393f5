#pragma once
// The key=value arguments of heed_generate.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "generators/common/bad_input.h"

namespace heed {

// Every function throws BadInput with a sentence.
class Options {
public:
    Options(int argc, char **argv);

    bool has(const std::string &key) const { return values.count(key) != 0; }
    // An empty fallback: the key is required.
    std::string get(const std::string &key, const std::string &fallback = "");
    std::string choice(const std::string &key, const std::string &fallback, const std::vector<std::string> &allowed);
    // Values joined by commas; none where the key is missing.
    std::set<std::string> set_of(const std::string &key, const std::vector<std::string> &allowed);
    // Required; 1..2^31-1, or 0.
    int number(const std::string &key);
    // Refuses what was neither asked for by get nor by choice.
    void refuse_unknown() const;

private:
    std::map<std::string, std::string> values;
    std::map<std::string, bool> used;
};

}  // namespace heed
