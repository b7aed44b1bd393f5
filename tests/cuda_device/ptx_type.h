// Types and opcodes of PTX, as text is decoded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heed::device {

enum class Kind : uint8_t { none, predicate, bits, unsigned_int, signed_int, real, brain, real_pair, brain_pair };

// f16x2 is a real_pair of 32 bits, bf16 a brain of 16.
struct Type {
    Kind kind = Kind::none;
    int bits = 0;

    bool is(Kind k, int b) const { return kind == k && bits == b; }
    bool integer() const { return kind == Kind::bits || kind == Kind::unsigned_int || kind == Kind::signed_int; }
    bool number() const { return kind == Kind::unsigned_int || kind == Kind::signed_int; }
    bool floating() const { return kind == Kind::real || kind == Kind::brain; }
    bool pair() const { return kind == Kind::real_pair || kind == Kind::brain_pair; }
    bool is_signed() const { return kind == Kind::signed_int; }
};

// "f32"; Kind::none when the text is no type.
Type parse_type(const std::string &text);

// "mad.lo.s32", taken apart from both ends; whatever is left when an instruction is decoded was not understood.
class Opcode {
public:
    explicit Opcode(const std::string &text);

    const std::string &name() const { return parts_.front(); }
    // Removes the modifier. False where there is none.
    bool take(const char *modifier);
    // Removes the modifiers that only say how well something is cached or ordered.
    void take_hints();
    // Removes the last part; Kind::none, and nothing removed, where it is no type.
    Type take_type();
    // The next modifier, or an empty string.
    std::string take_next();
    bool done() const { return parts_.size() == 1; }

private:
    std::vector<std::string> parts_;
};

}  // namespace heed::device
