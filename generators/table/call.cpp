#include "generators/table/call.h"

#include "generators/common/bad_input.h"
#include "generators/contract/fields.h"

namespace heed::table {

namespace {

const std::string digits = "0123456789", capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const std::string letters = capitals + "abcdefghijklmnopqrstuvwxyz";

bool consists_of(const std::string &text, const std::string &first, const std::string &others) {
    return !text.empty() && first.find(text[0]) != std::string::npos &&
           text.find_first_not_of(others) == std::string::npos;
}

bool is_dim(const std::string &text) { return consists_of(text, "123456789", digits); }

bool is_above(const std::string &dim, int most) { return dim.size() > 9 || std::stoi(dim) > most; }

}  // namespace

Call::Call(const Words &words, const Words &lists, const Words &others, const std::string &can_be_empty)
    : name(words[0] + "(" + (words.size() > 1 ? words[1] : "") + ")") {
    Words known = lists;
    known.insert(known.end(), others.begin(), others.end());
    const std::string keywords = "; the keywords are " + joined(known, ", ");
    std::string key;
    for (size_t i = 2; i < words.size(); i++) {
        if (contains(known, words[i])) {
            key = words[i];
            given[key];
            continue;
        }
        const bool in_list = contains(lists, key);
        if (in_list && consists_of(words[i], capitals, capitals + digits + "_")) {
            refuse(words[i] + " is no keyword" + keywords);
        }
        if (key.empty() || (!in_list && !given[key].empty())) refuse(words[i] + " belongs to no keyword" + keywords);
        given[key].push_back(words[i]);
    }
    for (const auto &[keyword, values] : given) {
        if (values.empty() && keyword != can_be_empty) refuse(keyword + " has no value");
    }
}

void Call::refuse(const std::string &why) const { throw BadInput(name + ": " + why); }

void Call::refuse_value(const std::string &key, const std::string &value, const std::string &why) const {
    refuse(key + " " + value + " is not allowed" + why);
}

const Words &Call::list(const std::string &key) const {
    static const Words none;
    const auto it = given.find(key);
    return it == given.end() ? none : it->second;
}

Words Call::list(const std::string &key, const std::string &fallback) const {
    return list(key).empty() ? Words{fallback} : list(key);
}

std::string Call::value(const std::string &key) const { return list(key).empty() ? "" : list(key)[0]; }

void Call::require(const Words &keys) const {
    for (const std::string &key : keys) {
        if (list(key).empty()) refuse(key + " is missing");
    }
}

void Call::allow(const std::string &key, const Words &allowed) const {
    for (const std::string &value : list(key)) {
        if (!contains(allowed, value)) refuse_value(key, value, "; it must be of " + joined(allowed, ", "));
    }
}

void Call::check_head_dims(const std::string &key, const Words &isas) const {
    const auto cuda = std::find_if(isas.begin(), isas.end(), is_cuda);
    for (const std::string &value : list(key)) {
        if (value == "any") continue;
        const Words dims = split(value, 'x');
        if (dims.size() > 2 || !std::all_of(dims.begin(), dims.end(), is_dim) || joined(dims, "x") != value) {
            refuse_value(key, value, "; it must be d (as 64), dxdv (as 128x64) or any, each of d and dv in 1..640");
        }
        for (const std::string &dim : dims) {
            if (is_above(dim, max_head_dim)) refuse_value(key, value, ": " + dim + " is not in 1..640");
            if (cuda != isas.end() && is_above(dim, max_cuda_head_dim)) {
                refuse_value(key, value,
                             " with " + *cuda + ": " + dim + " is not in 1..256, which kernels of CUDA serve");
            }
        }
    }
}

void Call::check_features(const Words &phases) const {
    const Words names = feature_names();
    for (const std::string &value : list("FEATURES")) {
        if (value == "none") continue;
        const Words features = split(value, '_');
        Words ordered;
        for (const std::string &feature : names) {
            if (contains(features, feature)) ordered.push_back(feature);
        }
        if (joined(ordered, "_") != value) {
            refuse_value("FEATURES", value,
                         "; it must be none, or of " + joined(names, ", ") + ", joined by _ in this order");
        }
        if (contains(features, "gqa") && contains(phases, "prefill")) {
            refuse_value("FEATURES", value, " with PHASE prefill; gqa is of decode only");
        }
    }
}

std::string Call::score_mod() const {
    const std::string file = value("SCORE_MOD"), last = file.substr(file.find_last_of('/') + 1);
    const std::string mod = last.substr(0, last.find('.'));
    if (!file.empty() && !consists_of(mod, letters, letters + digits + "_")) {
        refuse_value("SCORE_MOD", file, "; its name without extension must be letters, digits and _");
    }
    return mod;
}

}  // namespace heed::table
