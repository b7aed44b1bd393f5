#include "safetensors.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace minilm {
namespace {

using Json = nlohmann::json;

constexpr uint64_t header_length_bytes = 8;
constexpr uint64_t max_header_bytes = 100'000'000;  // the limit of the format's own reader

// Members of a header entry as counts; empty when the entry is not an array of non-negative integers.
std::vector<uint64_t> counts(const Json &entry, const char *key) {
    std::vector<uint64_t> values;
    const auto member = entry.find(key);
    if (member == entry.end() || !member->is_array()) return values;
    for (const Json &value : *member) {
        if (!value.is_number_unsigned()) return {};
        values.push_back(value.get<uint64_t>());
    }
    return values;
}

bool multiply(uint64_t a, uint64_t b, uint64_t *product) { return !__builtin_mul_overflow(a, b, product); }

}  // namespace

Safetensors::Safetensors(const std::string &path) : path_(path), file_(path, std::ios::binary) {
    if (!file_) fail("cannot be opened");
    file_.seekg(0, std::ios::end);
    const std::streamoff end = file_.tellg();
    if (end < 0) fail("has no size");
    const uint64_t file_bytes = static_cast<uint64_t>(end);
    file_.seekg(0);

    unsigned char length_bytes[header_length_bytes];
    if (!file_.read(reinterpret_cast<char *>(length_bytes), sizeof(length_bytes))) fail("is too short");
    uint64_t header_bytes = 0;
    for (size_t i = 0; i < header_length_bytes; i++) header_bytes |= uint64_t{length_bytes[i]} << (8 * i);
    if (header_bytes > max_header_bytes || header_bytes > file_bytes - header_length_bytes) {
        fail("has a header length beyond its end");
    }
    std::string header(header_bytes, '\0');
    if (!file_.read(header.data(), static_cast<std::streamsize>(header_bytes))) fail("cannot be read");
    data_begin_ = header_length_bytes + header_bytes;
    parse_header(header, file_bytes - data_begin_);
}

void Safetensors::parse_header(const std::string &header, uint64_t data_bytes) {
    const Json json = Json::parse(header, nullptr, false);
    if (!json.is_object()) fail("has a header that is not a JSON object");
    for (const auto &[name, entry] : json.items()) {
        if (name == "__metadata__") continue;
        const auto offsets = counts(entry, "data_offsets");
        if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
            fail("has bad data_offsets for '" + name + "'");
        }
        const auto dtype = entry.find("dtype");
        if (dtype == entry.end() || !dtype->is_string()) fail("has no dtype for '" + name + "'");
        entries_[name] = {dtype->get<std::string>(), counts(entry, "shape"), offsets[0], offsets[1]};
    }
}

std::vector<float> Safetensors::read(const std::string &name, const Shape &shape) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) fail("has no tensor '" + name + "'");
    const Entry &entry = found->second;
    if (entry.dtype != "F32" || entry.shape != shape) fail("has another type or shape for '" + name + "'");
    uint64_t bytes = sizeof(float);
    for (const uint64_t extent : shape) {
        if (!multiply(bytes, extent, &bytes)) fail("has too large a shape for '" + name + "'");
    }
    if (bytes != entry.end - entry.begin) fail("has data_offsets that do not fit the shape of '" + name + "'");

    std::vector<float> values(bytes / sizeof(float));
    file_.seekg(static_cast<std::streamoff>(data_begin_ + entry.begin));
    if (!file_.read(reinterpret_cast<char *>(values.data()), static_cast<std::streamsize>(bytes))) {
        fail("cannot be read at '" + name + "'");
    }
    return values;
}

void Safetensors::fail(const std::string &reason) const {
    throw std::runtime_error("safetensors file " + path_ + " " + reason);
}

}  // namespace minilm
