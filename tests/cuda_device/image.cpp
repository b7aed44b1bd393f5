// Images that cuModuleLoadData takes: PTX text, or a fatbin with PTX in it.
#include <cstring>

#include "tests/cuda_device/state.h"

namespace heed::device {
namespace {

constexpr uint32_t fatbin_magic = 0xba55ed50;

template <typename T>
T read(const uint8_t *at) {
    T value;
    std::memcpy(&value, at, sizeof(value));
    return value;
}

// The container: magic, u16 version, u16 bytes of this header, u64 bytes of what follows. An entry: u16 kind (1: PTX,
// 2: ELF), u16 version, u32 bytes of its header, u64 bytes of the payload, u32 bytes when compressed (0: it is not),
// ..., at 28 u32 architecture.
std::string find_in_fatbin(const uint8_t *image, CUresult *code, bool *any_chip) {
    const uint8_t *at = image + read<uint16_t>(image + 6);
    const uint8_t *const end = at + read<uint64_t>(image + 8);
    std::string ptx;
    const int capability = state().capability;
    bool compressed = false, runs = false;
    while (end - at >= 64) {
        const auto kind = read<uint16_t>(at);
        const uint64_t header = read<uint32_t>(at + 4), payload = read<uint64_t>(at + 8);
        const auto architecture = static_cast<int>(read<uint32_t>(at + 28));
        const auto left = static_cast<uint64_t>(end - at);
        if (header < 64 || header > left || payload > left - header) {
            *code = cuda_invalid_image;
            throw ParseError("an entry of the fatbin is larger than the fatbin");
        }
        // Machine code runs on later chips of the same generation, PTX on all later ones.
        const bool serves = architecture <= capability && (kind == 1 || architecture / 10 == capability / 10);
        runs |= serves;
        *any_chip |= serves && kind != 1;
        if (kind == 1) {
            compressed = read<uint32_t>(at + 16) != 0;
            const char *text = reinterpret_cast<const char *>(at + header);
            ptx = std::string(text, strnlen(text, payload));
        }
        at += header + payload;
    }
    *code = cuda_invalid_image;
    if (compressed) throw ParseError("the PTX in the fatbin is compressed: make it with --compress=false");
    *code = cuda_no_binary_for_gpu;
    if (!runs) throw ParseError("the fatbin has no code for sm_" + std::to_string(capability));
    *code = cuda_invalid_image;
    if (ptx.empty()) throw ParseError("the fatbin has no PTX, which this device runs in place of machine code");
    return ptx;
}

std::string replace(const std::string &text) {
    const State &s = state();
    std::string result;
    size_t begin = 0;
    int occurrence = 0;
    bool replaced = false;
    for (size_t at = text.find(s.replace_from); at != std::string::npos; at = text.find(s.replace_from, begin)) {
        const bool here = s.replace_occurrence < 0 || s.replace_occurrence == occurrence;
        result += text.substr(begin, at - begin) + (here ? s.replace_to : s.replace_from);
        replaced |= here;
        begin = at + s.replace_from.size();
        occurrence++;
    }
    if (!replaced)
        throw ParseError("heed_device_replace: \"" + s.replace_from + "\" is " + std::to_string(occurrence) +
                         " times in the PTX");
    return result + text.substr(begin);
}

}  // namespace

std::string find_ptx(const void *image, CUresult *code, bool *any_chip) {
    const auto *bytes = static_cast<const uint8_t *>(image);
    const bool is_fatbin = bytes[0] == 0x50 && bytes[1] == 0xed && bytes[2] == 0x55 && bytes[3] == 0xba &&
                           read<uint32_t>(bytes) == fatbin_magic;
    if (bytes[0] == 0x7f && bytes[1] == 'E' && bytes[2] == 'L' && bytes[3] == 'F') {
        *code = cuda_invalid_image;
        throw ParseError("the image is a cubin, and this device needs PTX");
    }
    const std::string text =
        is_fatbin ? find_in_fatbin(bytes, code, any_chip) : std::string(static_cast<const char *>(image));
    *code = cuda_invalid_ptx;
    return state().replaces ? replace(text) : text;
}

}  // namespace heed::device
