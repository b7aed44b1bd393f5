// Safetensors: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes. The header names each
// tensor's dtype, shape and data_offsets [begin, end) behind the header. Format: huggingface/safetensors.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

bool unsigned_at(const json &value, uint64_t limit, uint64_t *number) {
    if (!value.is_number_unsigned()) return false;
    *number = value.get<uint64_t>();
    return *number <= limit;
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
std::string read_entry(const json &value, const char *data, uint64_t data_bytes, Entry *entry) {
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets")) {
        return "needs dtype, shape and data_offsets";
    }
    const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
    if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
        return "has a dtype, shape or data_offsets of another kind";
    }
    uint64_t begin = 0, end = 0;
    if (!unsigned_at(offsets[0], data_bytes, &begin) || !unsigned_at(offsets[1], data_bytes, &end) || begin > end) {
        return "has data_offsets " + offsets.dump() + "; they must rise within the " + std::to_string(data_bytes) +
               " bytes of data";
    }
    *entry = {};
    bool has_dtype = false;
    const uint64_t size = element_size(dtype.get<std::string>(), &entry->tensor.dtype, &has_dtype);
    if (!has_dtype) entry->unsupported = "is of dtype " + dtype.get<std::string>() + ", which Heed has not";
    if (shape.size() > 8)
        entry->unsupported = "has " + std::to_string(shape.size()) + " dimensions; at most 8 are allowed";
    uint64_t bytes = size;
    for (size_t i = 0; i < shape.size(); i++) {
        uint64_t extent = 0;
        if (!unsigned_at(shape[i], INT64_MAX, &extent)) {
            return "has the shape " + shape.dump() + "; extents must be integers from 0 on";
        }
        if (__builtin_mul_overflow(bytes, extent, &bytes)) {
            return "has the shape " + shape.dump() + ", whose product 64 bits do not hold";
        }
        if (i < 8) entry->shape[i] = static_cast<int64_t>(extent);
    }
    if (size == 0 || shape.size() > 8) return "";
    if (bytes != end - begin) {
        return "has " + std::to_string(end - begin) + " bytes; " + dtype.get<std::string>() + " of shape " +
               shape.dump() + " has " + std::to_string(bytes);
    }
    const auto address = reinterpret_cast<uintptr_t>(data + begin);
    entry->rank = static_cast<int32_t>(shape.size());
    if (has_dtype && bytes > 0 && address % size != 0)
        entry->unsupported = "is not aligned to its elements in the file";
    entry->tensor.data = const_cast<char *>(data + begin);
    entry->tensor.size = static_cast<int64_t>(bytes / size);
    return "";
}

// Refuses, while the parser runs, names that occur twice (parsers differ in which one they keep) and values that nest
// deeper than the format does (to quote them recurses).
class HeaderCheck {
public:
    bool operator()(int depth, json::parse_event_t event, const json &name) {
        const bool object = event == json::parse_event_t::object_start;
        if ((object || event == json::parse_event_t::array_start) && depth >= most_depth) {
            throw std::runtime_error("its header nests more than 3 deep");
        }
        if (object) names_[depth].clear();
        if (event == json::parse_event_t::key && !names_[depth - 1].insert(name.get<std::string>()).second) {
            throw std::runtime_error("its header has " + name.dump() + " twice");
        }
        return true;
    }

private:
    static constexpr int most_depth = 3;  // header, tensor, shape
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
    const json header = json::parse(start + 8, start + 8 + length, HeaderCheck(), false);
    if (!header.is_object() || ends_early) return corrupt(path, "its header is no JSON object");
    for (const auto &[name, value] : header.items()) {
        if (name == "__metadata__") continue;
        Entry entry;
        const std::string wrong = read_entry(value, start + 8 + length, file->bytes - 8 - length, &entry);
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
