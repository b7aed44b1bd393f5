// Arrays of a safetensors file, by name, with the strings of its __metadata__.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace heed_reference {

enum class ElementType { f32, f16, bf16, u8, i8, boolean, i32, i64 };

size_t element_bytes(ElementType type);
const char *element_name(ElementType type);  // as safetensors calls it, "BF16"

struct Array {
    ElementType type = ElementType::f32;
    std::vector<int64_t> shape;       // C order
    std::vector<unsigned char> data;  // element_bytes(type) * product of the shape

    int64_t size() const { return static_cast<int64_t>(data.size() / element_bytes(type)); }
    template <typename T>
    T *as() {
        return reinterpret_cast<T *>(data.data());
    }
    template <typename T>
    const T *as() const {
        return reinterpret_cast<const T *>(data.data());
    }
};

// Zeros. Throws std::bad_alloc or std::length_error where the memory is missing.
Array make_array(ElementType type, const std::vector<int64_t> &shape);

std::string shape_text(const std::vector<int64_t> &shape);  // "(2, 3)"

// i32, or i64 whose values fit. `name` is for the message. Throws InvalidInput.
Array to_int32(const Array &array, const std::string &name);

struct TensorFile {
    std::map<std::string, std::string> metadata;
    std::map<std::string, Array> arrays;
};

// Trusts nothing in the file: allocates no more than its size and what a header of 1 MiB takes. Throws InvalidInput.
TensorFile read_tensors(const std::filesystem::path &path);

// Larger elements first, from a multiple of 64 bytes on and without gaps, so that each array is aligned. Throws
// InvalidInput when the file cannot be written whole; what was written stays.
void write_tensors(const std::filesystem::path &path, const TensorFile &file);

}  // namespace heed_reference
