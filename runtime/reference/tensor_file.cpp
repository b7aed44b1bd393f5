#include "runtime/reference/tensor_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/files/safetensors.h"
#include "runtime/reference/invalid_input.h"

namespace heed_reference {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t most_header_bytes = 1 << 20;  // the tree of its JSON takes up to a hundred times as many

struct TypeName {
    ElementType type;
    const char *name;
    size_t bytes;
};

constexpr TypeName types[] = {
    {ElementType::f32, "F32", 4}, {ElementType::f16, "F16", 2}, {ElementType::bf16, "BF16", 2},
    {ElementType::u8, "U8", 1},   {ElementType::i8, "I8", 1},   {ElementType::boolean, "BOOL", 1},
    {ElementType::i32, "I32", 4}, {ElementType::i64, "I64", 8},
};

const TypeName &entry_of(ElementType type) {
    const auto found = std::find_if(std::begin(types), std::end(types), [&](const auto &t) { return t.type == type; });
    if (found == std::end(types)) throw std::logic_error("unknown element type");
    return *found;
}

// For a dtype that an array may have.
ElementType type_named(const std::string &dtype, const std::string &array) {
    std::string allowed;
    for (const TypeName &type : types) {
        if (dtype == type.name) return type.type;
        allowed += (allowed.empty() ? "" : ", ") + std::string(type.name);
    }
    throw InvalidInput(array + " holds " + dtype + "; it must hold one of " + allowed);
}

std::string read_bytes(std::ifstream &in, uint64_t count, const std::string &file) {
    std::string bytes(count, '\0');
    if (!in.read(bytes.data(), static_cast<std::streamsize>(count))) throw InvalidInput(file + ": cannot be read");
    return bytes;
}

heed::SafetensorsHeader read_header(std::ifstream &in, uint64_t file_bytes, const std::string &file, uint64_t *data) {
    try {
        const std::string start = read_bytes(in, std::min(file_bytes, heed::safetensors_prefix), file);
        const auto *bytes = reinterpret_cast<const unsigned char *>(start.data());
        const uint64_t length = heed::safetensors_header_bytes(bytes, file_bytes);
        if (length > most_header_bytes) {
            throw std::runtime_error("its header has " + std::to_string(length) + " bytes; at most " +
                                     std::to_string(most_header_bytes) + " are read");
        }
        *data = heed::safetensors_prefix + length;
        return heed::read_safetensors_header(read_bytes(in, length, file).data(), length, file_bytes - *data);
    } catch (const InvalidInput &) {
        throw;
    } catch (const std::runtime_error &error) {
        throw InvalidInput(file + " is no safetensors file: " + error.what());
    }
}

}  // namespace

size_t element_bytes(ElementType type) { return entry_of(type).bytes; }
const char *element_name(ElementType type) { return entry_of(type).name; }

std::string shape_text(const std::vector<int64_t> &shape) {
    std::string text = "(";
    for (size_t i = 0; i < shape.size(); i++) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + (shape.size() == 1 ? ",)" : ")");
}

Array make_array(ElementType type, const std::vector<int64_t> &shape) {
    Array array{type, shape, {}};
    auto bytes = static_cast<int64_t>(element_bytes(type));
    bool fits = true, empty = false;
    for (const int64_t extent : shape) {
        empty = empty || extent == 0;
        fits = fits && !__builtin_mul_overflow(bytes, extent, &bytes);
    }
    if (!fits && !empty) throw std::bad_alloc();
    array.data.resize(empty ? 0 : static_cast<size_t>(bytes));
    return array;
}

Array to_int32(const Array &array, const std::string &name) {
    if (array.type == ElementType::i32) return array;
    if (array.type != ElementType::i64) {
        throw InvalidInput(name + " holds " + element_name(array.type) + "; it must hold I32, or I64 that fits");
    }
    Array narrow = make_array(ElementType::i32, array.shape);
    for (int64_t i = 0; i < array.size(); i++) {
        const int64_t value = array.as<int64_t>()[i];
        if (value != static_cast<int32_t>(value)) {
            throw InvalidInput(name + " has " + std::to_string(value) + " at " + std::to_string(i) +
                               "; it must fit int32");
        }
        narrow.as<int32_t>()[i] = static_cast<int32_t>(value);
    }
    return narrow;
}

TensorFile read_tensors(const fs::path &path) {
    const std::string name = path.string();
    std::error_code error;
    std::ifstream in;
    if (fs::is_regular_file(path, error)) in.open(path, std::ios::binary);
    const uint64_t file_bytes = in.is_open() ? fs::file_size(path, error) : 0;
    if (error || !in.is_open()) throw InvalidInput(name + ": no readable file");
    uint64_t data = 0, allowed = file_bytes;
    heed::SafetensorsHeader header = read_header(in, file_bytes, name, &data);
    TensorFile file{std::move(header.metadata), {}};
    for (const auto &[tensor, stored] : header.tensors) {
        Array array{type_named(stored.dtype, tensor), stored.shape, {}};
        if (stored.shape.size() > heed::most_safetensors_rank) {
            throw InvalidInput(tensor + " has " + std::to_string(stored.shape.size()) +
                               " axes; it must have at most 8");
        }
        const uint64_t bytes = stored.end - stored.begin;
        if (bytes > allowed) throw InvalidInput(name + ": its tensors overlap");
        allowed -= bytes;
        array.data.resize(bytes);
        in.seekg(static_cast<std::streamoff>(data + stored.begin));
        if (!in.read(array.as<char>(), static_cast<std::streamsize>(bytes))) {
            throw InvalidInput(name + ": cannot be read");
        }
        file.arrays.emplace(tensor, std::move(array));
    }
    return file;
}

void write_tensors(const fs::path &path, const TensorFile &file) {
    std::vector<const std::pair<const std::string, Array> *> arrays;
    for (const auto &array : file.arrays) arrays.push_back(&array);
    std::stable_sort(arrays.begin(), arrays.end(), [](const auto *a, const auto *b) {
        return element_bytes(a->second.type) > element_bytes(b->second.type);
    });
    nlohmann::json header;
    header["__metadata__"] = file.metadata;
    uint64_t end = 0;
    for (const auto *array : arrays) {
        const uint64_t begin = end;
        end += array->second.data.size();
        header[array->first] = {{"dtype", element_name(array->second.type)},
                                {"shape", array->second.shape},
                                {"data_offsets", {begin, end}}};
    }
    std::string text = header.dump();
    while ((heed::safetensors_prefix + text.size()) % 64 != 0) text += ' ';
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    for (int n = 0; n < 8; n++) out.put(static_cast<char>(text.size() >> (8 * n) & 255));
    out << text;
    for (const auto *array : arrays) {
        out.write(array->second.as<char>(), static_cast<std::streamsize>(array->second.data.size()));
    }
    out.close();
    if (!out) throw InvalidInput(path.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace heed_reference
