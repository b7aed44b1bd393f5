#include "npy.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "invalid_input.h"

namespace heed_cli {
namespace {

namespace fs = std::filesystem;

constexpr char magic[] = "\x93NUMPY";
constexpr size_t magic_bytes = 6;

struct TypeRow {
    ElementType type;
    const char *descr, *name;
    size_t bytes;
};

constexpr TypeRow types[] = {
    {ElementType::f32, "<f4", "float32", 4}, {ElementType::f16, "<f2", "float16", 2},
    {ElementType::u16, "<u2", "uint16", 2},  {ElementType::u8, "|u1", "uint8", 1},
    {ElementType::i8, "|i1", "int8", 1},     {ElementType::boolean, "|b1", "bool", 1},
    {ElementType::i32, "<i4", "int32", 4},   {ElementType::i64, "<i8", "int64", 8},
};

const TypeRow &row_of(ElementType type) {
    for (const TypeRow &row : types) {
        if (row.type == type) return row;
    }
    throw std::logic_error("unknown element type");
}

// The dictionary of a header: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
class Header {
public:
    Header(const std::string &text, const std::string &file) : text_(text), file_(file) {}

    Array parse() {
        Array array;
        bool seen[3] = {};
        expect('{');
        while (!accept('}')) {
            const std::string key = quoted();
            expect(':');
            const int field = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : -1;
            if (field < 0 || seen[field]) fail("has the unknown or repeated key '" + key + "'");
            seen[field] = true;
            if (field == 0) array.type = type();
            if (field == 1 && boolean()) fail("is in Fortran order; it must be in C order");
            if (field == 2) array.shape = shape();
            if (!accept(',') && peek() != '}') fail("lacks ',' or '}'");
        }
        if (peek() != '\0') fail("goes on after '}'");
        if (!seen[0] || !seen[1] || !seen[2]) fail("must have descr, fortran_order and shape");
        return array;
    }

private:
    [[noreturn]] void fail(const std::string &what) const { throw InvalidInput(file_ + ": the header " + what); }

    char peek() {
        while (at_ < text_.size() && std::strchr(" \t\n", text_[at_]) != nullptr) at_++;
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    bool accept(char c) {
        const bool found = peek() == c;
        at_ += found ? 1 : 0;
        return found;
    }
    void expect(char c) {
        if (!accept(c)) fail(std::string("lacks '") + c + "'");
    }
    std::string quoted() {
        const char quote = peek();
        const size_t end = text_.find(quote, at_ + 1);
        if ((quote != '\'' && quote != '"') || end == std::string::npos) fail("lacks a quoted word");
        const std::string word = text_.substr(at_ + 1, end - at_ - 1);
        at_ = end + 1;
        return word;
    }
    bool boolean() {
        peek();
        for (const std::string word : {"True", "False"}) {
            if (text_.compare(at_, word.size(), word) == 0) {
                at_ += word.size();
                return word == "True";
            }
        }
        fail("has a fortran_order that is neither True nor False");
    }
    ElementType type() {
        if (peek() == '[') fail("describes structures; elements must be plain numbers");
        const std::string descr = quoted();
        std::string allowed;
        for (const TypeRow &row : types) {
            if (descr == row.descr) return row.type;
            allowed += std::string(allowed.empty() ? "" : ", ") + row.name + " " + row.descr;
        }
        fail("has descr '" + descr + "'; it must be one of " + allowed);
    }
    std::vector<int64_t> shape() {
        std::vector<int64_t> extents;
        expect('(');
        while (!accept(')')) {
            int64_t extent = 0;
            if (peek() < '0' || peek() > '9') fail("has a shape with an extent that is no whole number");
            for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; at_++) {
                if (extent > (std::numeric_limits<int64_t>::max() - 9) / 10) fail("has a shape past 2^63");
                extent = extent * 10 + (text_[at_] - '0');
            }
            extents.push_back(extent);
            if (extents.size() > 32) fail("has a shape of more than 32 extents");
            if (!accept(',') && peek() != ')') fail("lacks ',' or ')'");
        }
        return extents;
    }

    const std::string &text_;
    const std::string &file_;
    size_t at_ = 0;
};

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

size_t element_bytes(ElementType type) { return row_of(type).bytes; }
const char *element_name(ElementType type) { return row_of(type).name; }

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

    const Array described = Header(header, file).parse();
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
    std::string header = std::string("{'descr': '") + row_of(array.type).descr +
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
