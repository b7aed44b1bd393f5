#pragma once
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace minilm {

using Shape = std::vector<uint64_t>;

// Reads f32 tensors of a .safetensors file: a header length (8 bytes, little-endian), a JSON header, the data.
// The file is not trusted: every length and offset is checked before it is used. Errors throw std::runtime_error.
class Safetensors {
public:
    explicit Safetensors(const std::string &path);

    // A copy of tensor `name`, row-major; it must be f32 and have exactly this shape.
    std::vector<float> read(const std::string &name, const Shape &shape);

private:
    struct Entry {
        std::string dtype;
        Shape shape;
        uint64_t begin, end;  // bytes, relative to data_begin_
    };

    void parse_header(const std::string &header, uint64_t data_bytes);
    [[noreturn]] void fail(const std::string &reason) const;

    std::string path_;
    std::ifstream file_;
    uint64_t data_begin_ = 0;
    std::map<std::string, Entry> entries_;
};

}  // namespace minilm
