// Safetensors: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes. The header names each
// tensor's dtype, shape and data_offsets [begin, end) after the header. Format: huggingface/safetensors. Nothing in a
// file is trusted: memory is bounded by its size.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace heed {

constexpr uint64_t safetensors_prefix = 8;   // bytes before the header
constexpr size_t most_safetensors_rank = 8;  // of tensors whose bytes are checked

struct SafetensorsTensor {
    std::string dtype;  // as the file names it, known or not
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;  // within the data; of a known dtype and rank as many bytes as the shape needs
};

struct SafetensorsHeader {
    std::map<std::string, SafetensorsTensor, std::less<>> tensors;  // found without a copy of the name
    std::map<std::string, std::string> metadata;                    // strings of __metadata__
};

// Bytes of an element of a dtype of the format; 0 for an unknown one.
uint64_t safetensors_element_bytes(const std::string &dtype);

// The header's length, of a file that starts with these bytes (at least safetensors_prefix where it has as many).
// Throws std::runtime_error, as below: "its header claims ...", to follow "FILE is no safetensors file: ".
uint64_t safetensors_header_bytes(const unsigned char *start, uint64_t file_bytes);

// `data_bytes` come after the header. Refuses names that occur twice, and values that nest deeper than the format does.
SafetensorsHeader read_safetensors_header(const char *text, uint64_t bytes, uint64_t data_bytes);

}  // namespace heed
