#include "npy.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "invalid_input.h"
#include "npy_header.h"

namespace heed_cli {
namespace {

namespace fs = std::filesystem;

constexpr char magic[] = "\x93NUMPY";
constexpr size_t magic_bytes = 6;

// Bytes of an array; false when they do not fit 63 bits.
bool count_bytes(const Array &array, uint64_t *bytes) {
    int64_t count = static_cast<int64_t>(element_bytes(array.type));
    bool fits = true, empty = false;
    for (const int64_t extent : array.shape) {
        empty = empty || extent == 0;
        fits = fits && !__builtin_mul_overflow(count, extent, &count);
    }
    *bytes = empty ? 0 : static_cast<uint64_t>(count);
    return fits || empty;
}

std::string read_bytes(std::ifstream &in, size_t count, const std::string &file) {
    std::string bytes(count, '\0');
    if (!in.read(bytes.data(), static_cast<std::streamsize>(count))) {
        throw InvalidInput(file + ": ends within its header");
    }
    return bytes;
}

}  // namespace

std::string shape_text(const std::vector<int64_t> &shape) {
    std::string text = "(";
    for (size_t i = 0; i < shape.size(); i++) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + (shape.size() == 1 ? ",)" : ")");
}

Array make_array(ElementType type, const std::vector<int64_t> &shape) {
    Array array{type, shape, {}};
    uint64_t bytes = 0;
    if (!count_bytes(array, &bytes)) throw std::bad_alloc();
    array.data.resize(bytes);
    return array;
}

Array read_npy(const fs::path &path) {
    const std::string file = path.filename().string();
    std::error_code error;
    std::ifstream in;
    if (fs::is_regular_file(path, error)) in.open(path, std::ios::binary);
    const uint64_t file_bytes = in.is_open() ? fs::file_size(path, error) : 0;
    if (error || !in.is_open()) throw InvalidInput(path.string() + ": no readable file");

    const std::string start = read_bytes(in, magic_bytes + 2, file);
    const int version = static_cast<unsigned char>(start[magic_bytes]);
    if (start.compare(0, magic_bytes, magic) != 0)
        throw InvalidInput(file + ": no .npy file, its magic number is wrong");
    if (version != 1 && version != 2) {
        throw InvalidInput(file + ": .npy version is " + std::to_string(version) + "; it must be 1 or 2");
    }
    uint64_t header_bytes = 0;
    const std::string length = read_bytes(in, version == 1 ? 2 : 4, file);
    for (size_t i = length.size(); i-- > 0;) header_bytes = header_bytes << 8 | static_cast<unsigned char>(length[i]);
    const uint64_t data_begin = start.size() + length.size() + header_bytes;
    if (data_begin > file_bytes) throw InvalidInput(file + ": ends within its header");
    const std::string header = read_bytes(in, header_bytes, file);

    const Array described = parse_npy_header(header, file);
    uint64_t bytes = 0;
    if (!count_bytes(described, &bytes) || bytes != file_bytes - data_begin) {
        throw InvalidInput(file + ": holds " + std::to_string(file_bytes - data_begin) + " bytes of data; shape " +
                           shape_text(described.shape) + " of " + element_name(described.type) + " needs " +
                           std::to_string(bytes));
    }
    Array array = make_array(described.type, described.shape);
    if (!in.read(array.as<char>(), static_cast<std::streamsize>(bytes))) throw InvalidInput(file + ": cannot be read");
    return array;
}

Array to_int32(const Array &array, const std::string &name) {
    if (array.type == ElementType::i32) return array;
    if (array.type != ElementType::i64) {
        throw InvalidInput(name + " holds " + element_name(array.type) + "; it must hold int32, or int64 that fits");
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

void write_npy(const fs::path &path, const Array &array) {
    std::string header = std::string("{'descr': '") + npy_descr(array.type) +
                         "', 'fortran_order': False, 'shape': " + shape_text(array.shape) + ", }";
    const size_t preamble = magic_bytes + 4;
    header.append(63 - (preamble + header.size()) % 64, ' ');
    header += '\n';
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(magic, magic_bytes);
    const char fields[] = {1, 0, static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
    out.write(fields, sizeof(fields));
    out << header;
    out.write(array.as<char>(), static_cast<std::streamsize>(array.data.size()));
    out.close();
    if (!out) throw InvalidInput(path.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace heed_cli
