#include "runtime/reference/problem_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "heed/fields.h"
#include "runtime/reference/invalid_input.h"

namespace heed_reference {
namespace {

using nlohmann::json;

template <typename T>
struct Word {
    const char *word;
    T value;
};

constexpr Word<heed_dtype> dtypes[] = {{"f32", HEED_F32}, {"f16", HEED_F16}, {"bf16", HEED_BF16}};
constexpr Word<heed_dtype> kv_dtypes[] = {{"f32", HEED_F32}, {"f16", HEED_F16}, {"bf16", HEED_BF16}, {"i8", HEED_I8}};
#define HEED_WORD(value, word) {word, value},
constexpr Word<heed_position> positions[] = {HEED_POSITION_WORDS(HEED_WORD)};
#undef HEED_WORD
constexpr Word<heed_q_storage> q_storages[] = {{"dense", HEED_Q_DENSE}, {"varlen", HEED_Q_VARLEN}};
constexpr Word<heed_kv_storage> kv_storages[] = {
    {"contiguous", HEED_KV_CONTIGUOUS}, {"varlen", HEED_KV_VARLEN}, {"paged", HEED_KV_PAGED}};

// Takes the values of one object; what is left over in the end is an unknown key.
class Fields {
public:
    Fields(const json &object, const std::string &prefix) : object_(object), prefix_(prefix) {
        if (!object.is_object()) {
            throw InvalidInput("problem: " + (prefix.empty() ? "it" : prefix.substr(0, prefix.size() - 1)) + " is " +
                               object.dump() + "; it must be an object");
        }
    }

    const json *find(const std::string &key) {
        known_.push_back(key);
        const auto found = object_.find(key);
        return found == object_.end() ? nullptr : &*found;
    }

    void take(const std::string &key, bool &value) {
        if (const json *found = find(key)) {
            if (!found->is_boolean()) fail(key, *found, "true or false");
            value = found->get<bool>();
        }
    }

    void take(const std::string &key, int32_t &value, bool null_allowed = false) {
        const json *found = find(key);
        if (found == nullptr || (null_allowed && found->is_null())) return;
        constexpr int64_t least = std::numeric_limits<int32_t>::min(), most = std::numeric_limits<int32_t>::max();
        const bool small = found->is_number_unsigned() ? found->get<uint64_t>() <= uint64_t{most}
                                                       : found->is_number_integer() && found->get<int64_t>() >= least;
        if (!small) fail(key, *found, null_allowed ? "null or a whole number of 32 bits" : "a whole number of 32 bits");
        value = found->get<int32_t>();
    }

    void take(const std::string &key, uint64_t &value) {
        if (const json *found = find(key)) {
            if (!found->is_number_unsigned()) fail(key, *found, "a whole number of 0..2^64-1");
            value = found->get<uint64_t>();
        }
    }

    // null is a NaN, where that is the value before.
    void take(const std::string &key, float &value) {
        const json *found = find(key);
        const bool null_allowed = std::isnan(value);
        if (found == nullptr || (null_allowed && found->is_null())) return;
        if (!found->is_number() || std::fabs(found->get<double>()) > std::numeric_limits<float>::max()) {
            fail(key, *found, null_allowed ? "null or a finite number" : "a finite number");
        }
        value = static_cast<float>(found->get<double>());
    }

    template <typename T, size_t n>
    void take(const std::string &key, const Word<T> (&words)[n], T &value) {
        const json *found = find(key);
        if (found == nullptr) return;
        std::string allowed;
        for (const Word<T> &word : words) {
            if (*found == word.word) {
                value = word.value;
                return;
            }
            allowed += std::string(allowed.empty() ? "\"" : ", \"") + word.word + "\"";
        }
        fail(key, *found, "one of " + allowed);
    }

    void take(const std::string &key, heed_position &value) { take(key, positions, value); }

    void take_layout(const std::string &key, std::string &axes) {
        const json *found = find(key);
        if (found == nullptr) return;
        const std::string text = found->is_string() ? found->get<std::string>() : "";
        std::string sorted = text;
        std::sort(sorted.begin(), sorted.end());
        if (sorted != "bdhs") fail(key, *found, "the letters b, s, h, d in the order of the array's axes");
        axes = text;
    }

    void finish() const {
        for (const auto &item : object_.items()) {
            if (std::find(known_.begin(), known_.end(), item.key()) != known_.end()) continue;
            std::string allowed;
            for (const std::string &key : known_) allowed += (allowed.empty() ? "" : ", ") + key;
            throw InvalidInput("problem: unknown key \"" + prefix_ + item.key() + "\"; keys are " + allowed);
        }
    }

private:
    [[noreturn]] void fail(const std::string &key, const json &value, const std::string &allowed) const {
        throw InvalidInput("problem: " + prefix_ + key + " is " + value.dump() + "; it must be " + allowed);
    }

    const json &object_;
    const std::string prefix_;
    std::vector<std::string> known_;
};

json parse(const std::string &text) {
    if (text.find('\0') != std::string::npos) throw InvalidInput("problem: it has a character U+0000");  // an end
    try {
        return json::parse(text);
    } catch (const json::exception &fault) {
        throw InvalidInput(std::string("problem: ") + fault.what());
    }
}

template <typename T, size_t n>
const char *word_of(const Word<T> (&words)[n], T value) {
    for (const Word<T> &word : words) {
        if (word.value == value) return word.word;
    }
    throw InvalidInput("the case has a value that its JSON has no word for");
}

json json_of(bool value) { return value; }
json json_of(int32_t value) { return value; }
json json_of(float value) { return std::isnan(value) ? json(nullptr) : json(value); }
json json_of(heed_position value) { return word_of(positions, value); }

}  // namespace

Case read_problem_json(const std::string &text) {
    const json root = parse(text);
    Case c;
    heed_problem_init(&c.problem);
    heed_problem &p = c.problem;
    Fields fields(root, "");
    fields.take("dtype", dtypes, p.dtype);
    p.kv_dtype = p.dtype;
    if (root.contains("kv_dtype") && !root["kv_dtype"].is_null()) fields.take("kv_dtype", kv_dtypes, p.kv_dtype);
    fields.find("kv_dtype");
    if (const json *found = fields.find("layout")) {
        Fields layout(*found, "layout.");
        layout.take_layout("q", c.layouts.q);
        layout.take_layout("k", c.layouts.k);
        layout.take_layout("v", c.layouts.v);
        layout.take_layout("out", c.layouts.out);
        layout.finish();
    }
#define HEED_TAKE(name, ...) fields.take(#name, p.name);
    HEED_CALL_FIELDS(HEED_TAKE)
    HEED_LOGIT_FIELDS(HEED_TAKE)
#undef HEED_TAKE
    fields.take("q_storage", q_storages, p.q_storage);
    fields.take("kv_storage", kv_storages, p.kv_storage);
    fields.take("max_q_len", p.max_q_len, true);
    if (const json *found = fields.find("dropout")) {
        Fields dropout(*found, "dropout.");
        dropout.take("p", p.dropout_p);
        dropout.take("seed", c.dropout_seed);
        dropout.take("offset", c.dropout_offset);
        dropout.finish();
    }
    fields.finish();
    return c;
}

std::string write_problem_json(const Case &c) {
    const heed_problem &p = c.problem;
    json root = {
        {"dtype", word_of(dtypes, p.dtype)},
        {"kv_dtype", word_of(kv_dtypes, p.kv_dtype)},
        {"layout", {{"q", c.layouts.q}, {"k", c.layouts.k}, {"v", c.layouts.v}, {"out", c.layouts.out}}},
        {"q_storage", word_of(q_storages, p.q_storage)},
        {"kv_storage", word_of(kv_storages, p.kv_storage)},
        {"max_q_len", nullptr},
        {"dropout", {{"p", p.dropout_p}, {"seed", c.dropout_seed}, {"offset", c.dropout_offset}}},
    };
#define HEED_WRITE(name, ...) root[#name] = json_of(p.name);
    HEED_CALL_FIELDS(HEED_WRITE)
    HEED_LOGIT_FIELDS(HEED_WRITE)
#undef HEED_WRITE
    if (p.q_storage == HEED_Q_VARLEN) root["max_q_len"] = p.max_q_len;
    return root.dump();
}

}  // namespace heed_reference
