#include "npy_header.h"

#include <cstring>
#include <limits>
#include <stdexcept>

#include "invalid_input.h"

namespace heed_cli {
namespace {

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
        std::string word = text_.substr(at_ + 1, end - at_ - 1);
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

}  // namespace

size_t element_bytes(ElementType type) { return row_of(type).bytes; }
const char *element_name(ElementType type) { return row_of(type).name; }
const char *npy_descr(ElementType type) { return row_of(type).descr; }

Array parse_npy_header(const std::string &text, const std::string &file) { return Header(text, file).parse(); }

}  // namespace heed_cli
