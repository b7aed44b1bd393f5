#include "generators/cuda/ptx_rewriter.h"

#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "generators/cuda/intrinsics.h"
#include "generators/cuda/warpgroup.h"

namespace heed::cuda {

namespace {

// PTX ISA 7.8: what sm_90 needs; driver 520 and newer read it. 8.0, of driver 525: what sm_90a needs.
const char *version_of(const RewriteOptions &options) { return options.warpgroups ? "8.0" : "7.8"; }

[[noreturn]] void refuse(const std::string &what, const std::string &line) {
    throw std::runtime_error("PTX rewriter: " + what + ": " + line);
}

bool starts_with(const std::string &text, const std::string &prefix) { return text.rfind(prefix, 0) == 0; }

std::string trimmed(const std::string &line) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) return "";
    return line.substr(begin, line.find_last_not_of(" \t") - begin + 1);
}

// The registers of an operand: "%r1", or "{%rd1, %rd2}".
std::vector<std::string> registers_of(const std::string &operand) {
    std::vector<std::string> result;
    std::string name;
    for (char c : operand + ",") {
        if (c == ',') {
            if (!name.empty()) result.push_back(name);
            name.clear();
        } else if (c != '{' && c != '}' && c != ' ' && c != '\t') {
            name += c;
        }
    }
    return result;
}

struct IntrinsicCall {
    std::string name;
    std::map<int, std::vector<std::string>> arguments;  // in any order
    std::vector<std::string> result;
};

// One statement between "{ // callseq" and "} // callseq".
void read_statement(const std::string &line, IntrinsicCall &call) {
    static const std::regex parameter(R"(st\.param(\.v2)?\.b\d+\s+\[param(\d+)\], (.+);)");
    static const std::regex target(R"(call\.uni( \(retval0\),)?\s*(\w+),?\s*(\((param\d+(, param\d+)*)?\))?;)");
    static const std::regex result(R"(ld\.param(\.v2)?\.b\d+\s+(.+), \[retval0\];)");
    static const std::regex declaration(R"(\.param\s+(\.align \d+ )?\.b\d+\s+(param\d+|retval0)(\[\d+\])?;)");
    std::smatch match;
    if (std::regex_match(line, match, parameter)) {
        std::vector<std::string> &argument = call.arguments[std::stoi(match[2])];
        if (!argument.empty()) refuse("parameter given twice", line);
        argument = registers_of(match[3]);
    } else if (std::regex_match(line, match, target)) {
        call.name = match[2];
    } else if (std::regex_match(line, match, result)) {
        call.result = registers_of(match[2]);
    } else if (!std::regex_match(line, declaration)) {
        refuse("unknown statement of a call", line);
    }
}

const std::string &operand(const std::vector<std::string> &registers, size_t part, const IntrinsicCall &call) {
    if (part >= registers.size()) refuse("operand of another width", call.name);
    return registers[part];
}

const std::string &template_of(const std::string &name) {
    for (const auto templates : {intrinsic_templates, warpgroup_templates}) {
        const auto found = templates().find(name);
        if (found != templates().end()) return found->second;
    }
    refuse("call of an unknown function", name);
}

// The template with the operands of the call: $0 .. $9 and $r, with .0 or .1 after them in 128-bit values.
std::string expand(const IntrinsicCall &call) {
    const std::string &text = template_of(call.name);
    std::string result;
    for (size_t i = 0; i < text.size(); i++) {
        if (text[i] != '$') {
            result += text[i];
            continue;
        }
        const char which = text[++i];
        const auto argument = call.arguments.find(which - '0');
        if (which != 'r' && argument == call.arguments.end()) refuse("too few arguments", call.name);
        const std::vector<std::string> &registers = which == 'r' ? call.result : argument->second;
        const bool halves = i + 2 < text.size() && text[i + 1] == '.' && (text[i + 2] == '0' || text[i + 2] == '1');
        if (registers.size() != (halves ? 2 : 1)) refuse("operand of another width", call.name);
        result += operand(registers, halves ? text[i + 2] - '0' : 0, call);
        if (halves) i += 2;
    }
    return result;
}

class Rewriter {
public:
    explicit Rewriter(const RewriteOptions &options) : options(options) {}

    void line(const std::string &line) {
        const std::string statement = trimmed(line);
        if (in_call) {
            inside_call(statement);
        } else if (in_declaration || starts_with(statement, ".extern .func")) {
            declaration(statement);
        } else if (starts_with(statement, "{ // callseq")) {
            in_call = true;
            call = IntrinsicCall{};
        } else if (starts_with(statement, ".version")) {
            versions++;
            text << ".version " << version_of(options) << "\n";
        } else if (starts_with(statement, ".target")) {
            targets++;
            text << ".target " << target_of(options.capability, options) << "\n";
        } else if (starts_with(statement, ".address_size")) {
            text << line << "\n\n.extern .shared .align " << (options.warpgroups ? 1024 : 16)
                 << " .b8 heed_shared[];\n";
        } else if (line == "{") {
            kernels++;
            text << ".maxntid " << options.threads << ", 1, 1\n.minnctapersm " << options.blocks << "\n{\n"
                 << (options.warpgroups ? warpgroup_registers() : "");
        } else if (statement.find("call") == 0) {
            refuse("call outside a call sequence", line);
        } else if (line.find(".local") != std::string::npos) {
            refuse("memory of a thread's own: an array was indexed with a variable", line);
        } else {
            text << line << "\n";
        }
    }

    RewrittenPtx finish() {
        if (versions != 1 || targets != 1 || kernels != 1) {
            refuse("want one .version, .target and kernel, found",
                   std::to_string(versions) + ", " + std::to_string(targets) + ", " + std::to_string(kernels));
        }
        for (const std::string &name : declared) {
            if (counts.count(name) == 0) refuse("declared and not called", name);
        }
        return {text.str(), counts};
    }

private:
    const RewriteOptions options;
    std::ostringstream text;
    std::map<std::string, int> counts;
    std::set<std::string> declared;
    int versions = 0, targets = 0, kernels = 0;
    bool in_call = false, in_declaration = false;
    IntrinsicCall call;

    void inside_call(const std::string &statement) {
        if (!starts_with(statement, "} // callseq")) {
            if (!statement.empty()) read_statement(statement, call);
            return;
        }
        if (declared.count(call.name) == 0) refuse("call of a function that is not declared", call.name);
        text << expand(call);
        counts[call.name]++;
        in_call = false;
    }

    // ".extern .func (.param ..) name" and its parameters up to ";".
    void declaration(const std::string &statement) {
        static const std::regex name(R"(\b(heed_\w+))");
        std::smatch match;
        if (!in_declaration) {
            if (!std::regex_search(statement, match, name)) refuse("function that is no intrinsic", statement);
            declared.insert(match[1]);
        }
        in_declaration = statement.empty() || statement.back() != ';';
    }
};

}  // namespace

std::string target_of(int capability, const RewriteOptions &options) {
    return "sm_" + std::to_string(capability) + (options.warpgroups ? "a" : "");
}

RewrittenPtx rewrite_ptx(const std::string &ptx, const RewriteOptions &options) {
    Rewriter rewriter(options);
    std::istringstream lines(ptx.substr(0, ptx.find('\0')));
    for (std::string line; std::getline(lines, line);) {
        rewriter.line(line);
    }
    return rewriter.finish();
}

}  // namespace heed::cuda
