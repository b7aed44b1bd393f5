#include "generators/driver/options.h"

#include <limits>

#include "generators/table/words.h"

namespace heed {
namespace {

void check_allowed(const std::string &key, const std::string &value, const std::vector<std::string> &allowed) {
    if (table::contains(allowed, value)) return;
    throw BadInput(key + " = '" + value + "' is not allowed: " + table::joined(allowed, ", "));
}

}  // namespace

Options::Options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const std::string arg = argv[i];
        const size_t eq = arg.find('=');
        if (eq == std::string::npos || !values.emplace(arg.substr(0, eq), arg.substr(eq + 1)).second) {
            throw BadInput("argument '" + arg + "': want key=value, each key once");
        }
    }
}

std::string Options::get(const std::string &key, const std::string &fallback) {
    used[key] = true;
    const auto it = values.find(key);
    if (it == values.end() && fallback.empty()) {
        throw BadInput("missing " + key + "=");
    }
    return it == values.end() ? fallback : it->second;
}

std::string Options::choice(const std::string &key, const std::string &fallback,
                            const std::vector<std::string> &allowed) {
    const std::string value = get(key, fallback);
    check_allowed(key, value, allowed);
    return value;
}

std::set<std::string> Options::set_of(const std::string &key, const std::vector<std::string> &allowed) {
    std::set<std::string> result;
    for (const std::string &value : table::split(has(key) ? get(key) : "", ',')) {
        check_allowed(key, value, allowed);
        result.insert(value);
    }
    return result;
}

int Options::number(const std::string &key) {
    const std::string text = get(key);
    const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || text.size() > 10 || std::stoll(text) > std::numeric_limits<int>::max()) {
        throw BadInput(key + " = '" + text + "' is not allowed: 0..2147483647");
    }
    return std::stoi(text);
}

void Options::refuse_unknown() const {
    for (const auto &[key, value] : values) {
        if (!used.count(key)) {
            throw BadInput("unknown argument " + key + "=" + value);
        }
    }
}

}  // namespace heed
