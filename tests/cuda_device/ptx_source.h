// PTX text without its comments, read piece by piece.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda_device/program.h"

namespace heed::device {

std::string trim(const std::string &text);
// Splits at commas outside of braces and brackets; pieces are trimmed.
std::vector<std::string> split_list(const std::string &text);
// Decimal, hexadecimal or octal, negative too. False where the text is no integer or does not fit 64 bits.
bool parse_integer(const std::string &text, int64_t *value);

class Source {
public:
    explicit Source(const std::string &text);

    // Skips white space. False at the end.
    bool more();
    char peek() const { return text_[position_]; }
    void skip() { position_++; }
    uint32_t line() const { return line_of_[position_]; }
    // A name, a directive or a number; empty where something else follows.
    std::string word();
    // Up to one of these characters, which stays.
    std::string until(const char *stops);
    // Skips this character. Anything else is an error.
    void expect(char c);
    // Skips a block of braces, which follows.
    void skip_block();
    [[noreturn]] void fail(const std::string &what, uint32_t at_line) const;

private:
    std::string text_;
    std::vector<uint32_t> line_of_;  // of every character
    size_t position_ = 0;
};

}  // namespace heed::device
