// The directives of a module and of its kernels; statements go to decode().
#include "tests/cuda_device/ptx_parser.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tests/cuda_device/decode.h"
#include "tests/cuda_device/ptx_source.h"

namespace heed::device {
namespace {

// ".shared .align 16 .b8 name[64]": the pieces of one declaration.
struct Declaration {
    Type type;
    uint32_t alignment = 0;
    std::vector<std::string> names;  // as written: "a<6>", "b[64]", "c"
    bool pointer = false;
};

// Words until a name; `text` is everything after the directive.
Declaration parse_declaration(const std::string &text) {
    Declaration declaration;
    size_t at = 0;
    for (;;) {
        at = text.find_first_not_of(" \t\r\n", at);
        if (at == std::string::npos || text[at] != '.') break;
        const size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
        const std::string word = text.substr(at + 1, end - at - 1);
        at = end;
        if (word == "align") {
            at = text.find_first_not_of(" \t\r\n", at);
            const size_t number_end = std::min(text.find_first_of(" \t\r\n", at), text.size());
            int64_t alignment = 0;
            if (at == std::string::npos || !parse_integer(text.substr(at, number_end - at), &alignment) ||
                alignment < 1 || alignment > 1024)
                throw ParseError("'" + text + "' is not understood");
            // The last one of a pointer parameter is that of what it points to.
            if (!declaration.pointer) declaration.alignment = static_cast<uint32_t>(alignment);
            at = number_end;
        } else if (word == "ptr") {
            declaration.pointer = true;
        } else if (declaration.pointer &&
                   (word == "global" || word == "shared" || word == "local" || word == "const")) {
        } else if (parse_type(word).kind != Kind::none && declaration.type.kind == Kind::none) {
            declaration.type = parse_type(word);
        } else {
            throw ParseError("'." + word + "' is not understood");
        }
    }
    if (at != std::string::npos) declaration.names = split_list(text.substr(at));
    if (declaration.type.kind == Kind::none || declaration.names.empty())
        throw ParseError("'" + text + "' is not understood");
    return declaration;
}

// "name[64]", "name[4][16]", "name[]" or "name"; bytes of the whole, 0 for "[]".
uint32_t array_bytes(const std::string &text, Type type, std::string *name) {
    size_t bracket = text.find('[');
    *name = trim(text.substr(0, bracket));
    int64_t count = 1;
    while (bracket != std::string::npos) {
        const size_t end = text.find(']', bracket);
        if (end == std::string::npos) throw ParseError("'" + text + "' is not understood");
        const std::string inside = trim(text.substr(bracket + 1, end - bracket - 1));
        int64_t extent = 0;
        if (!inside.empty() && (!parse_integer(inside, &extent) || extent < 0 || extent > 1 << 20))
            throw ParseError("'" + text + "' is not understood");
        count *= extent;
        if (count > 1 << 20) throw ParseError("'" + *name + "' is too large");
        bracket = text.find('[', end);
    }
    if (type.bits < 8) throw ParseError("'" + text + "' is not understood");
    return static_cast<uint32_t>(count) * static_cast<uint32_t>(type.bits) / 8;
}

class Parser {
public:
    explicit Parser(const std::string &text) : source_(text) {
        size_t begin = 0;
        while (begin <= text.size()) {
            const size_t end = std::min(text.find('\n', begin), text.size());
            program_.lines.push_back(trim(text.substr(begin, end - begin)));
            begin = end + 1;
        }
    }

    Program parse() {
        try {
            while (source_.more()) {
                line_ = source_.line();
                parse_directive();
            }
            if (program_.target == 0) throw ParseError("there is no .target");
        } catch (const ParseError &error) {
            const uint32_t line = error.line != 0 ? error.line : line_;
            const std::string &text = program_.lines[std::min<size_t>(line, program_.lines.size()) - 1];
            throw ParseError("PTX line " + std::to_string(line) + " \"" + text + "\": " + error.what(), line);
        }
        return std::move(program_);
    }

private:
    void parse_directive() {
        const std::string word = source_.word();
        if (word == ".version") {
            const std::string version = trim(source_.until("\n"));
            const size_t dot = version.find('.');
            program_.version = std::atoi(version.c_str()) * 10;
            if (dot != std::string::npos) program_.version += std::atoi(version.c_str() + dot + 1);
        } else if (word == ".target") {
            const std::string target = trim(source_.until(",\n"));
            if (target.compare(0, 3, "sm_") != 0) throw ParseError("'" + target + "' is not understood");
            program_.target = std::atoi(target.c_str() + 3);
            program_.exact_target = std::isdigit(static_cast<unsigned char>(target.back())) == 0;
            source_.until("\n");
        } else if (word == ".address_size") {
            if (trim(source_.until("\n")) != "64") throw ParseError("only 64-bit addresses are supported");
        } else if (word == ".file" || word == ".loc") {
            source_.until("\n");
        } else if (word == ".section") {
            source_.until("{");
            source_.skip_block();
        } else if (word == ".visible" || word == ".weak") {
        } else if (word == ".extern") {
            external_ = true;
            return;
        } else if (word == ".shared") {
            parse_module_shared();
        } else if (word == ".func" && external_) {
            source_.until(";");
            source_.expect(';');
        } else if (word == ".entry") {
            parse_kernel();
        } else {
            throw ParseError("'" + word + "' is not supported");
        }
        external_ = false;
    }

    void parse_module_shared() {
        const Declaration declaration = parse_declaration(source_.until(";"));
        source_.expect(';');
        for (const std::string &text : declaration.names) {
            std::string name;
            const Symbol symbol = shared_variable(declaration, text, &name);
            variables_[name] = symbol;
        }
    }

    Symbol shared_variable(const Declaration &declaration, const std::string &text, std::string *name) {
        Symbol symbol;
        symbol.bytes = array_bytes(text, declaration.type, name);
        symbol.kind = external_ ? Symbol::dynamic_shared : Symbol::static_shared;
        symbol.alignment =
            declaration.alignment != 0 ? declaration.alignment : static_cast<uint32_t>(declaration.type.bits / 8);
        if (external_ != (symbol.bytes == 0)) throw ParseError("'" + text + "' is not supported");
        return symbol;
    }

    void parse_kernel() {
        KernelBuilder builder(source_.word(), variables_);
        source_.expect('(');
        const std::string parameters = trim(source_.until(")"));
        source_.expect(')');
        if (!parameters.empty())
            for (const std::string &text : split_list(parameters)) parse_parameter(builder, text);
        parse_limits(builder);
        source_.expect('{');
        builder.open_scope();
        parse_body(builder);
        program_.kernels.push_back(builder.finish());
    }

    void parse_parameter(KernelBuilder &builder, const std::string &text) {
        if (text.compare(0, 6, ".param") != 0) throw ParseError("'" + text + "' is not understood");
        const Declaration declaration = parse_declaration(text.substr(6));
        std::string name;
        const uint32_t bytes = array_bytes(declaration.names[0], declaration.type, &name);
        const auto natural = static_cast<uint32_t>(declaration.type.bits / 8);
        builder.add_parameter(name, bytes, declaration.alignment > natural ? declaration.alignment : natural);
    }

    // .maxntid and the like, between a kernel's parameters and its body.
    void parse_limits(KernelBuilder &builder) {
        while (source_.more() && source_.peek() == '.') {
            line_ = source_.line();
            const std::string word = source_.word();
            const std::vector<std::string> numbers = split_list(trim(source_.until(".{")));
            if (word != ".maxntid" && word != ".reqntid") {
                if (word != ".minnctapersm" && word != ".maxnreg" && word != ".maxnctapersm" && word != ".pragma")
                    throw ParseError("'" + word + "' is not supported");
                continue;
            }
            int *limits = word == ".maxntid" ? builder.kernel().max_threads : builder.kernel().required_threads;
            for (size_t i = 0; i < 3; i++) limits[i] = i < numbers.size() ? std::atoi(numbers[i].c_str()) : 1;
        }
    }

    void parse_body(KernelBuilder &builder) {
        int depth = 1;
        while (depth > 0) {
            if (!source_.more()) throw ParseError("the kernel does not end");
            line_ = source_.line();
            if (source_.peek() == '{') {
                source_.skip();
                builder.open_scope();
                depth++;
            } else if (source_.peek() == '}') {
                source_.skip();
                builder.close_scope();
                depth--;
            } else if (source_.peek() == '.') {
                parse_body_directive(builder);
            } else {
                parse_statement(builder);
            }
        }
    }

    void parse_body_directive(KernelBuilder &builder) {
        const std::string word = source_.word();
        if (word == ".loc" || word == ".file") {
            source_.until("\n");
            return;
        }
        const std::string text = source_.until(";");
        source_.expect(';');
        if (word == ".pragma") return;
        if (word == ".reg") {
            declare_registers(builder, parse_declaration(text));
        } else if (word == ".shared" || word == ".local") {
            const Declaration declaration = parse_declaration(text);
            for (const std::string &variable : declaration.names) {
                std::string name;
                Symbol symbol = shared_variable(declaration, variable, &name);
                if (word == ".local") symbol.kind = Symbol::local;
                builder.declare(name, symbol);
            }
        } else {
            throw ParseError("'" + word + "' is not supported in a kernel");
        }
    }

    static void declare_registers(KernelBuilder &builder, const Declaration &declaration) {
        if (declaration.type.bits == 8) throw ParseError("registers of 8 bits are not supported");
        for (const std::string &text : declaration.names) {
            const size_t angle = text.find('<');
            if (angle == std::string::npos) {
                builder.declare_register(text, declaration.type.bits);
                continue;
            }
            const int count = std::atoi(text.c_str() + angle + 1);
            if (count < 1 || count > 1 << 20) throw ParseError("'" + text + "' is not understood");
            for (int i = 0; i < count; i++)
                builder.declare_register(trim(text.substr(0, angle)) + std::to_string(i), declaration.type.bits);
        }
    }

    void parse_statement(KernelBuilder &builder) {
        Statement statement;
        statement.line = line_;
        if (source_.peek() == '@') {
            source_.skip();
            source_.more();
            const bool negated = source_.peek() == '!';
            if (negated) source_.skip();
            statement.guard = (negated ? "!" : "") + source_.word();
        }
        std::string text = source_.word();
        const bool ends = std::isspace(static_cast<unsigned char>(source_.peek())) != 0;
        source_.more();
        if (statement.guard.empty() && source_.peek() == ':') {
            source_.skip();
            builder.label(text);
            return;
        }
        if (text.empty()) throw ParseError("a statement is not understood");
        text = trim(text + (ends ? " " : "") + source_.until(";"));
        source_.expect(';');
        const size_t blank = std::min(text.find_first_of(" \t\r\n"), text.size());
        statement.opcode = text.substr(0, blank);
        statement.operands = split_list(text.substr(blank));
        decode(builder, statement, program_.target);
    }

    Source source_;
    Program program_;
    std::map<std::string, Symbol> variables_;
    bool external_ = false;
    uint32_t line_ = 1;  // of the statement that is parsed
};

}  // namespace

Program parse_ptx(const std::string &text) { return Parser(text).parse(); }

}  // namespace heed::device
