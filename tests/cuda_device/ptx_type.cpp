#include "tests/cuda_device/ptx_type.h"

#include <algorithm>
#include <cctype>

namespace heed::device {

Type parse_type(const std::string &text) {
    if (text == "pred") return {Kind::predicate, 1};
    if (text == "f16x2") return {Kind::real_pair, 32};
    if (text == "bf16x2") return {Kind::brain_pair, 32};
    if (text == "bf16") return {Kind::brain, 16};
    if (text.size() < 2 || text.size() > 4) return {};
    if (!std::all_of(text.begin() + 1, text.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) return {};
    const int bits = std::stoi(text.substr(1));
    if (text[0] == 'f') return bits == 16 || bits == 32 || bits == 64 ? Type{Kind::real, bits} : Type{};
    const bool has_size = bits == 8 || bits == 16 || bits == 32 || bits == 64;
    if (text[0] == 'b') return has_size || bits == 128 ? Type{Kind::bits, bits} : Type{};
    if (text[0] == 'u') return has_size ? Type{Kind::unsigned_int, bits} : Type{};
    if (text[0] == 's') return has_size ? Type{Kind::signed_int, bits} : Type{};
    return {};
}

Opcode::Opcode(const std::string &text) {
    // "L1::no_allocate" and "shared::cta" are one part each.
    size_t begin = 0;
    while (begin <= text.size()) {
        const size_t end = std::min(text.find('.', begin), text.size());
        parts_.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
}

bool Opcode::take(const char *modifier) {
    const auto found = std::find(parts_.begin() + 1, parts_.end(), modifier);
    if (found == parts_.end()) return false;
    parts_.erase(found);
    return true;
}

void Opcode::take_hints() {
    static const char *const hints[] = {"weak", "relaxed", "acquire", "release", "acq_rel", "volatile",
                                        "cta",  "gpu",     "sys",     "ca",      "cg",      "cs",
                                        "lu",   "cv",      "wb",      "wt",      "nc"};
    for (const char *hint : hints) take(hint);
    parts_.erase(std::remove_if(parts_.begin() + 1, parts_.end(),
                                [](const std::string &part) {
                                    return part.compare(0, 4, "L1::") == 0 || part == "L2::64B" || part == "L2::128B" ||
                                           part == "L2::256B";
                                }),
                 parts_.end());
}

Type Opcode::take_type() {
    if (done()) return {};
    const Type type = parse_type(parts_.back());
    if (type.kind != Kind::none) parts_.pop_back();
    return type;
}

std::string Opcode::take_next() {
    if (done()) return {};
    const std::string next = parts_[1];
    parts_.erase(parts_.begin() + 1);
    return next;
}

}  // namespace heed::device
