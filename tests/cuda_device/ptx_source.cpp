#include "tests/cuda_device/ptx_source.h"

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace heed::device {

std::string trim(const std::string &text) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::vector<std::string> split_list(const std::string &text) {
    std::vector<std::string> pieces;
    std::string piece;
    int depth = 0;
    for (const char c : text) {
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (c == ',' && depth == 0) {
            pieces.push_back(trim(piece));
            piece.clear();
        } else {
            piece += c;
        }
    }
    piece = trim(piece);
    if (!piece.empty() || !pieces.empty()) pieces.push_back(piece);
    return pieces;
}

bool parse_integer(const std::string &text, int64_t *value) {
    const bool negative = !text.empty() && text[0] == '-';
    std::string digits = negative ? text.substr(1) : text;
    if (!digits.empty() && digits.back() == 'U') digits.pop_back();
    if (digits.empty() || std::isdigit(static_cast<unsigned char>(digits[0])) == 0) return false;
    errno = 0;
    char *end = nullptr;
    const unsigned long long magnitude = std::strtoull(digits.c_str(), &end, 0);
    if (errno != 0 || *end != '\0' || (negative && magnitude > 1ull << 63)) return false;
    *value = static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
    return true;
}

Source::Source(const std::string &text) {
    uint32_t line = 1;
    text_.reserve(text.size() + 1);
    line_of_.reserve(text.size() + 1);
    const auto add = [&](char c) {
        text_ += c;
        line_of_.push_back(line);
        if (c == '\n') line++;
    };
    size_t i = 0;
    while (i < text.size()) {
        const char *at = text.c_str() + i;
        size_t length = 0;
        if (std::strncmp(at, "//", 2) == 0) length = std::strcspn(at, "\n");
        if (std::strncmp(at, "/*", 2) == 0) {
            const char *end = std::strstr(at + 2, "*/");
            length = end == nullptr ? text.size() - i : static_cast<size_t>(end + 2 - at);
        }
        if (length == 0) {
            add(text[i++]);
            continue;
        }
        add(' ');
        for (const size_t end = i + length; i < end; i++)
            if (text[i] == '\n') add('\n');
    }
    add('\0');
}

bool Source::more() {
    while (std::isspace(static_cast<unsigned char>(text_[position_])) != 0) position_++;
    return text_[position_] != '\0';
}

std::string Source::word() {
    more();
    std::string result;
    for (char c = peek();
         std::isalnum(static_cast<unsigned char>(c)) != 0 || (c != '\0' && std::strchr("_$%.", c) != nullptr);
         c = peek()) {
        if (c == '.' && !result.empty()) break;
        result += c;
        position_++;
    }
    return result;
}

std::string Source::until(const char *stops) {
    const size_t begin = position_;
    const uint32_t from = line();
    while (peek() != '\0' && std::strchr(stops, peek()) == nullptr) position_++;
    if (peek() == '\0') fail("the text ends", from);
    return text_.substr(begin, position_ - begin);
}

void Source::expect(char c) {
    if (!more() || peek() != c) fail(std::string("'") + c + "' is missing", line());
    skip();
}

void Source::skip_block() {
    const uint32_t from = line();
    int depth = 0;
    do {
        if (peek() == '\0') fail("the block does not end", from);
        if (peek() == '{') depth++;
        if (peek() == '}') depth--;
        skip();
    } while (depth > 0);
}

void Source::fail(const std::string &what, uint32_t at_line) const { throw ParseError(what, at_line); }

}  // namespace heed::device
