// Safetensors: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes. The header names each
// tensor's dtype, shape and data_offsets [begin, end) behind the header. Format: huggingface/safetensors.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "ranges.h"
#include "status.h"

namespace {

using nlohmann::json;

struct Entry {
    heed_tensor tensor;
    int64_t shape[8];
    int32_t rank;
    std::string unsupported;  // why the tensor has no view; empty when it has one
};

}  // namespace

struct heed_weights_file {
    void *memory = nullptr;
    size_t bytes = 0;
    std::map<std::string, Entry, std::less<>> entries;  // found without a copy of the name

    ~heed_weights_file() {
        if (memory != nullptr) munmap(memory, bytes);
    }
};

namespace heed {
namespace {

constexpr uint64_t most_header_bytes = 100'000'000;  // as the format's own reader

heed_status corrupt(const char *path, const std::string &what) {
    return fail(HEED_INVALID_ARGUMENT, "%s is no safetensors file: %s", path, what.c_str());
}

heed_status map_file(const char *path, heed_weights_file *file) {
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would wait for its writer
    if (descriptor < 0) return fail(HEED_INVALID_ARGUMENT, "cannot open %s: %s", path, std::strerror(errno));
    struct stat info = {};
    const bool known = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
    if (known && info.st_size > 0) {
        file->bytes = static_cast<size_t>(info.st_size);
        file->memory = mmap(nullptr, file->bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (file->memory == MAP_FAILED) file->memory = nullptr;
    }
    close(descriptor);
    if (!known) return fail(HEED_INVALID_ARGUMENT, "%s is not a regular file", path);
    if (file->bytes < 8)
        return corrupt(path, "it has " + std::to_string(file->bytes) + " bytes; at least 8 are needed");
    if (file->memory == nullptr) return fail(HEED_OUT_OF_MEMORY, "cannot map %s", path);
    return HEED_OK;
}

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

// Bytes of an element of a dtype of the format; 0 for an unknown one.
uint64_t element_size(const std::string &name, heed_dtype *dtype, bool *has_dtype) {
    struct Type {
        const char *name;
        uint64_t bytes;
        int dtype;
    };
    static const Type types[] = {{"F32", 4, HEED_F32}, {"F16", 2, HEED_F16}, {"BF16", 2, HEED_BF16}, {"I8", 1, HEED_I8},
                                 {"U8", 1, HEED_U8},   {"BOOL", 1, HEED_U8}, {"I32", 4, HEED_I32},   {"F64", 8, -1},
                                 {"I64", 8, -1},       {"U64", 8, -1},       {"U32", 4, -1},         {"I16", 2, -1},
                                 {"U16", 2, -1},       {"F8_E4M3", 1, -1},   {"F8_E5M2", 1, -1}};
    for (const Type &type : types) {
        if (name != type.name) continue;
        *has_dtype = type.dtype >= 0;
        if (*has_dtype) *dtype = static_cast<heed_dtype>(type.dtype);
        return type.bytes;
    }
    return 0;
}

// What is wrong with the header's entry; empty when nothing is.
std::string read_entry(const Value &value, const char *data, uint64_t data_bytes, Entry *entry) {
    const Value *const dtype = value.find("dtype"), *const shape = value.find("shape"),
                       *const offsets = value.find("data_offsets");
    if (dtype == nullptr || shape == nullptr || offsets == nullptr) return "needs dtype, shape and data_offsets";
    if (dtype->kind != Value::string || shape->kind != Value::array || offsets->kind != Value::array ||
        offsets->items.size() != 2) {
        return "has a dtype, shape or data_offsets of another kind";
    }
    const std::vector<Value> &extents = shape->items;
    uint64_t begin = 0, end = 0;
    if (!unsigned_at(offsets->items[0], data_bytes, &begin) || !unsigned_at(offsets->items[1], data_bytes, &end) ||
        begin > end) {
        return "has data_offsets " + list(*offsets) + "; they must rise within the " + std::to_string(data_bytes) +
               " bytes of data";
    }
    *entry = {};
    bool has_dtype = false;
    const uint64_t size = element_size(dtype->text, &entry->tensor.dtype, &has_dtype);
    if (!has_dtype) entry->unsupported = "is of dtype " + dtype->text + ", which Heed has not";
    if (extents.size() > 8)
        entry->unsupported = "has " + std::to_string(extents.size()) + " dimensions; at most 8 are allowed";
    uint64_t bytes = size;
    for (size_t i = 0; i < extents.size(); i++) {
        uint64_t extent = 0;
        if (!unsigned_at(extents[i], INT64_MAX, &extent)) {
            return "has the shape " + list(*shape) + "; extents must be integers from 0 on";
        }
        if (__builtin_mul_overflow(bytes, extent, &bytes)) {
            return "has the shape " + list(*shape) + ", whose product 64 bits do not hold";
        }
        if (i < 8) entry->shape[i] = static_cast<int64_t>(extent);
    }
    if (size == 0 || extents.size() > 8) return "";
    if (bytes != end - begin) {
        return "has " + std::to_string(end - begin) + " bytes; " + dtype->text + " of shape " + list(*shape) + " has " +
               std::to_string(bytes);
    }
    const auto address = reinterpret_cast<uintptr_t>(data + begin);
    entry->rank = static_cast<int32_t>(extents.size());
    if (has_dtype && bytes > 0 && address % size != 0)
        entry->unsupported = "is not aligned to its elements in the file";
    entry->tensor.data = const_cast<char *>(data + begin);
    entry->tensor.size = static_cast<int64_t>(bytes / size);
    return "";
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

heed_status read_header(const char *path, heed_weights_file *file) {
    const char *const start = static_cast<const char *>(file->memory);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | static_cast<unsigned char>(start[i]);
    if (length > most_header_bytes || length > file->bytes - 8) {
        return corrupt(path, "its header claims " + std::to_string(length) + " bytes; the file has " +
                                 std::to_string(file->bytes));
    }
    const bool ends_early = std::memchr(start + 8, 0, length) != nullptr;  // where the parser would stop
    HeaderReader reader;
    const bool parsed = json::sax_parse(start + 8, start + 8 + length, &reader);
    if (!parsed || reader.root.kind != Value::object || ends_early)
        return corrupt(path, "its header is no JSON object");
    const Value &header = reader.root;
    for (size_t i = 0; i < header.items.size(); i++) {
        const std::string &name = header.names[i];
        if (name == "__metadata__") continue;
        Entry entry;
        const std::string wrong = read_entry(header.items[i], start + 8 + length, file->bytes - 8 - length, &entry);
        if (!wrong.empty()) return corrupt(path, "the tensor \"" + name + "\" " + wrong);
        file->entries.emplace(name, entry);
    }
    return HEED_OK;
}

}  // namespace
}  // namespace heed

extern "C" {

heed_status heed_weights_open(const char *path, heed_weights_file **file) {
    if (file == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_weights_open: file is NULL");
    *file = nullptr;
    if (path == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_weights_open: path is NULL");
    try {
        auto opened = std::make_unique<heed_weights_file>();
        heed_status status = heed::map_file(path, opened.get());
        if (!status) status = heed::read_header(path, opened.get());
        if (!status) *file = opened.release();
        return status;
    } catch (const std::bad_alloc &) {
        return heed::fail(HEED_OUT_OF_MEMORY, "heed_weights_open: out of memory");
    } catch (const std::exception &error) {
        return heed::fail(HEED_INVALID_ARGUMENT, "%s is no safetensors file: %s", path, error.what());
    }
}

void heed_weights_close(heed_weights_file *file) { delete file; }

heed_status heed_weights_find(const heed_weights_file *file, const char *name, heed_tensor *tensor, int64_t shape[8],
                              int32_t *rank) {
    if (file == nullptr || name == nullptr || tensor == nullptr || shape == nullptr || rank == nullptr) {
        return heed::fail(HEED_INVALID_ARGUMENT, "heed_weights_find: an argument is NULL");
    }
    const auto found = file->entries.find(name);
    if (found == file->entries.end()) {
        return heed::fail(HEED_INVALID_ARGUMENT, "the file has no tensor \"%s\" among its %zu", name,
                          file->entries.size());
    }
    const Entry &entry = found->second;
    if (!entry.unsupported.empty()) {
        return heed::fail(HEED_UNSUPPORTED, "the tensor \"%s\" %s", name, entry.unsupported.c_str());
    }
    *tensor = entry.tensor;
    std::memcpy(shape, entry.shape, sizeof(entry.shape));
    *rank = entry.rank;
    return HEED_OK;
}

}  // extern "C"
