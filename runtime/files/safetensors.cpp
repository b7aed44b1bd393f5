#include "runtime/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace heed {
namespace {

using nlohmann::json;

constexpr uint64_t most_header_bytes = 100'000'000;  // as the format's own reader

// A JSON value. The tree of nlohmann::json allocates when it is destroyed: where memory is short that ends the process.
struct Value {
    enum Kind { object, array, string, natural, other };
    Kind kind = other;
    uint64_t number = 0;             // natural
    std::string text;                // string: its characters; number, null, true, false: as in the file
    std::vector<std::string> names;  // object: of its items
    std::vector<Value> items;

    const Value *find(const char *name) const {
        const auto found = std::find(names.begin(), names.end(), name);
        return kind == object && found != names.end() ? &items[static_cast<size_t>(found - names.begin())] : nullptr;
    }
};

std::string in_json(const std::string &text) { return json(text).dump(); }

// An array of scalars as JSON.
std::string list(const Value &array) {
    std::string text;
    for (const Value &item : array.items) {
        text += (text.empty() ? "" : ",") + (item.kind == Value::string ? in_json(item.text) : item.text);
    }
    return "[" + text + "]";
}

bool unsigned_at(const Value &value, uint64_t limit, uint64_t *number) {
    *number = value.number;
    return value.kind == Value::natural && *number <= limit;
}

// A tensor of `data_bytes` bytes of data. Returns what is wrong with the entry; empty when nothing is.
std::string read_entry(const Value &value, uint64_t data_bytes, SafetensorsTensor *tensor) {
    const Value *const dtype = value.find("dtype"), *const shape = value.find("shape"),
                       *const offsets = value.find("data_offsets");
    if (dtype == nullptr || shape == nullptr || offsets == nullptr) return "needs dtype, shape and data_offsets";
    if (dtype->kind != Value::string || shape->kind != Value::array || offsets->kind != Value::array ||
        offsets->items.size() != 2) {
        return "has a dtype, shape or data_offsets of another kind";
    }
    if (!unsigned_at(offsets->items[0], data_bytes, &tensor->begin) ||
        !unsigned_at(offsets->items[1], data_bytes, &tensor->end) || tensor->begin > tensor->end) {
        return "has data_offsets " + list(*offsets) + "; they must rise within the " + std::to_string(data_bytes) +
               " bytes of data";
    }
    tensor->dtype = dtype->text;
    const uint64_t size = safetensors_element_bytes(tensor->dtype);
    uint64_t bytes = size;
    for (const Value &item : shape->items) {
        uint64_t extent = 0;
        if (!unsigned_at(item, INT64_MAX, &extent)) {
            return "has the shape " + list(*shape) + "; extents must be integers from 0 on";
        }
        if (__builtin_mul_overflow(bytes, extent, &bytes)) {
            return "has the shape " + list(*shape) + ", whose product 64 bits do not hold";
        }
        tensor->shape.push_back(static_cast<int64_t>(extent));
    }
    if (size == 0 || tensor->shape.size() > most_safetensors_rank || bytes == tensor->end - tensor->begin) return "";
    return "has " + std::to_string(tensor->end - tensor->begin) + " bytes; " + tensor->dtype + " of shape " +
           list(*shape) + " has " + std::to_string(bytes);
}

// Builds a Value while the parser runs. Refuses names that occur twice (parsers differ in which one they keep) and
// values that nest deeper than the format does.
class HeaderReader {
public:
    Value root;

    bool null() { return scalar("null"); }
    bool boolean(bool value) { return scalar(value ? "true" : "false"); }
    bool number_integer(int64_t value) { return scalar(std::to_string(value)); }
    bool number_unsigned(uint64_t value) {
        Value &added = add(Value::natural);
        added.number = value;
        added.text = std::to_string(value);
        return true;
    }
    bool number_float(double, const std::string &text) { return scalar(text); }
    bool string(std::string &value) {
        add(Value::string).text = std::move(value);
        return true;
    }
    bool binary(json::binary_t &) { return false; }
    bool start_object(size_t) { return start(Value::object); }
    bool end_object() { return end(); }
    bool start_array(size_t) { return start(Value::array); }
    bool end_array() { return end(); }
    bool key(std::string &name) {
        if (!names_[depth_ - 1].insert(name).second) {
            throw std::runtime_error("its header has " + in_json(name) + " twice");
        }
        open_[depth_ - 1]->names.push_back(std::move(name));
        return true;
    }
    bool parse_error(size_t, const std::string &, const json::exception &) { return false; }

private:
    static constexpr size_t most_depth = 3;  // header, tensor, shape

    // Only the last item of a container is ever open: its address stays.
    Value &add(Value::Kind kind) {
        Value &added = depth_ == 0 ? root : open_[depth_ - 1]->items.emplace_back();
        added.kind = kind;
        return added;
    }
    bool scalar(const std::string &text) {
        add(Value::other).text = text;
        return true;
    }
    bool start(Value::Kind kind) {
        if (depth_ == most_depth) throw std::runtime_error("its header nests more than 3 deep");
        names_[depth_].clear();
        open_[depth_] = &add(kind);
        depth_++;
        return true;
    }
    bool end() {
        depth_--;
        return true;
    }

    size_t depth_ = 0;
    Value *open_[most_depth] = {};
    std::set<std::string> names_[most_depth];
};

}  // namespace

uint64_t safetensors_element_bytes(const std::string &dtype) {
    struct Type {
        const char *name;
        uint64_t bytes;
    };
    static constexpr Type types[] = {{"F32", 4},  {"F16", 2}, {"BF16", 2}, {"I8", 1},      {"U8", 1},
                                     {"BOOL", 1}, {"I32", 4}, {"F64", 8},  {"I64", 8},     {"U64", 8},
                                     {"U32", 4},  {"I16", 2}, {"U16", 2},  {"F8_E4M3", 1}, {"F8_E5M2", 1}};
    for (const Type &type : types) {
        if (dtype == type.name) return type.bytes;
    }
    return 0;
}

uint64_t safetensors_header_bytes(const unsigned char *start, uint64_t file_bytes) {
    if (file_bytes < safetensors_prefix) {
        throw std::runtime_error("it has " + std::to_string(file_bytes) + " bytes; at least 8 are needed");
    }
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | start[i];
    if (length > most_header_bytes || length > file_bytes - safetensors_prefix) {
        throw std::runtime_error("its header claims " + std::to_string(length) + " bytes; the file has " +
                                 std::to_string(file_bytes));
    }
    return length;
}

SafetensorsHeader read_safetensors_header(const char *text, uint64_t bytes, uint64_t data_bytes) {
    const bool ends_early = std::memchr(text, 0, bytes) != nullptr;  // where the parser would stop
    HeaderReader reader;
    const bool parsed = json::sax_parse(text, text + bytes, &reader);
    const Value &root = reader.root;
    if (!parsed || root.kind != Value::object || ends_early) throw std::runtime_error("its header is no JSON object");
    SafetensorsHeader header;
    for (size_t i = 0; i < root.items.size(); i++) {
        const std::string &name = root.names[i];
        const Value &value = root.items[i];
        if (name != "__metadata__") {
            SafetensorsTensor tensor;
            const std::string wrong = read_entry(value, data_bytes, &tensor);
            if (!wrong.empty()) throw std::runtime_error("the tensor \"" + name + "\" " + wrong);
            header.tensors.emplace(name, std::move(tensor));
            continue;
        }
        for (size_t n = 0; n < value.names.size(); n++) {
            if (value.items[n].kind == Value::string) header.metadata.emplace(value.names[n], value.items[n].text);
        }
    }
    return header;
}

}  // namespace heed
