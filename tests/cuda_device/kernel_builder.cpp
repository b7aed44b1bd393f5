#include "tests/cuda_device/kernel_builder.h"

#include <cstring>
#include <set>

#include "tests/cuda_device/lane_ops.h"
#include "tests/cuda_device/ptx_source.h"

namespace heed::device {
namespace {

uint32_t align_up(uint32_t value, uint32_t alignment) { return (value + alignment - 1) / alignment * alignment; }

const char *const special_names[num_specials] = {"%tid.x",    "%tid.y",    "%tid.z",   "%ntid.x",  "%ntid.y",
                                                 "%ntid.z",   "%ctaid.x",  "%ctaid.y", "%ctaid.z", "%nctaid.x",
                                                 "%nctaid.y", "%nctaid.z", "%laneid",  "%warpid"};

// "0f3F800000" or "0d3FF0000000000000".
bool parse_real(const std::string &text, int bits, uint64_t *value) {
    const char letter = bits == 64 ? 'd' : 'f';
    if (text.size() != (bits == 64 ? 18u : 10u) || text[0] != '0' || std::tolower(text[1]) != letter) return false;
    char *end = nullptr;
    *value = std::strtoull(text.c_str() + 2, &end, 16);
    return *end == '\0';
}

// "name+8", "name+-8" or "name".
void split_offset(const std::string &text, std::string *name, int64_t *offset) {
    const size_t plus = text.find('+');
    *name = trim(text.substr(0, plus));
    *offset = 0;
    if (plus != std::string::npos && !parse_integer(trim(text.substr(plus + 1)), offset))
        throw ParseError("'" + text + "' is no address");
}

std::string inside_brackets(const std::string &text) {
    if (text.size() < 3 || text.front() != '[' || text.back() != ']') throw ParseError("'" + text + "' is no address");
    return text.substr(1, text.size() - 2);
}

}  // namespace

KernelBuilder::KernelBuilder(std::string name, const std::map<std::string, Symbol> &variables) {
    kernel_.name = std::move(name);
    open_scope();
    scopes_[0] = variables;
    register_bits_.assign(num_specials, 32);
    for (int i = 0; i < num_specials; i++) {
        Symbol symbol;
        symbol.bits = 32;
        symbol.low = i;
        scopes_[0][special_names[i]] = symbol;
    }
}

void KernelBuilder::add_parameter(const std::string &name, uint32_t bytes, uint32_t alignment) {
    Parameter parameter{name, bytes, alignment, align_up(kernel_.parameter_bytes, alignment)};
    kernel_.parameter_bytes = parameter.offset + bytes;
    kernel_.parameters.push_back(parameter);
    Symbol symbol;
    symbol.kind = Symbol::parameter;
    symbol.bytes = bytes;
    symbol.offset = parameter.offset;
    declare(name, symbol);
}

void KernelBuilder::open_scope() {
    scopes_.emplace_back();
    labels_.emplace_back();
    parents_.push_back(scope_);
    scope_ = static_cast<int>(scopes_.size()) - 1;
}

void KernelBuilder::close_scope() { scope_ = parents_[static_cast<size_t>(scope_)]; }

void KernelBuilder::declare(const std::string &name, const Symbol &symbol) {
    if (!scopes_[static_cast<size_t>(scope_)].emplace(name, symbol).second)
        throw ParseError("'" + name + "' is declared twice");
}

void KernelBuilder::declare_register(const std::string &name, int bits) {
    Symbol symbol;
    symbol.bits = bits;
    symbol.low = temporary(bits == 128 ? 64 : bits);
    if (bits == 128) symbol.high = temporary(64);
    declare(name, symbol);
}

void KernelBuilder::label(const std::string &name) {
    if (!labels_[static_cast<size_t>(scope_)].emplace(name, kernel_.code.size()).second)
        throw ParseError("label '" + name + "' is there twice");
}

Symbol *KernelBuilder::find(const std::string &name) {
    for (int scope = scope_; scope >= 0; scope = parents_[static_cast<size_t>(scope)]) {
        auto &names = scopes_[static_cast<size_t>(scope)];
        const auto found = names.find(name);
        if (found != names.end()) return &found->second;
    }
    return nullptr;
}

Symbol *KernelBuilder::find_variable(const std::string &name) {
    Symbol *symbol = find(name);
    return symbol == nullptr || symbol->kind == Symbol::register_ ? nullptr : symbol;
}

int KernelBuilder::register_bits(const std::string &text) {
    const Symbol *symbol = find(text);
    return symbol == nullptr || symbol->kind != Symbol::register_ ? 0 : symbol->bits;
}

Operand KernelBuilder::temporary(int bits) {
    register_bits_.push_back(bits);
    return static_cast<Operand>(register_bits_.size()) - 1;
}

Operand KernelBuilder::constant(int bits, uint64_t value) {
    const std::pair<int, uint64_t> key(bits == 64 ? 64 : 32, bits == 64 ? value : value & 0xffffffff);
    const auto [at, is_new] = constant_of_.emplace(key, ~static_cast<Operand>(constants_.size()));
    if (is_new) constants_.push_back(key);
    return at->second;
}

Operand KernelBuilder::result(const std::string &text, int bits) {
    if (text == "_" && bits != 0) return temporary(bits);
    const int has = register_bits(text);
    if (has == 0 || has != bits) throw ParseError("'" + text + "' is no register of " + std::to_string(bits) + " bits");
    const Operand operand = find(text)->low;
    if (operand < num_specials) throw ParseError("'" + text + "' cannot be written");
    return operand;
}

Operand KernelBuilder::source(const std::string &text, int bits, bool real) {
    if (bits != 1 && bits != 16 && bits != 32 && bits != 64) throw ParseError("the instruction is not supported");
    const int has = register_bits(text);
    if (has != 0) {
        if (has != bits)
            throw ParseError("'" + text + "' has " + std::to_string(has) + " bits, not " + std::to_string(bits));
        return find(text)->low;
    }
    uint64_t raw = 0;
    if ((bits == 32 || bits == 64) && parse_real(text, bits, &raw)) return constant(bits, raw);
    int64_t value = 0;
    if (text == "WARP_SZ" && bits == 32) return constant(32, warp_size);
    if (!real && parse_integer(text, &value)) {
        if (bits == 1) return constant(32, value != 0 ? ~0u : 0u);
        if (bits < 64 && (value >= 1ll << bits || value < -(1ll << (bits - 1))))
            throw ParseError("'" + text + "' does not fit " + std::to_string(bits) + " bits");
        return constant(bits, static_cast<uint64_t>(value) & (bits == 64 ? ~0ull : (1ull << bits) - 1));
    }
    std::string name;
    int64_t offset = 0;
    if (text.find('+') == std::string::npos)
        name = text;
    else
        split_offset(text, &name, &offset);
    Symbol *symbol = find_variable(name);
    if (symbol == nullptr || symbol->kind == Symbol::parameter || bits < 32)
        throw ParseError("'" + text + "' is not understood here");
    return variable_address(symbol, offset, bits);
}

// A constant: the address in the variable's own space, which finish() knows.
Operand KernelBuilder::variable_address(Symbol *symbol, int64_t offset, int bits) {
    if (symbol->kind != Symbol::dynamic_shared && symbol->offset < 0) {
        uint32_t &used = symbol->kind == Symbol::local ? kernel_.local_bytes : kernel_.static_shared_bytes;
        used = align_up(used, symbol->alignment);
        symbol->offset = used;
        used += symbol->bytes;
    }
    fixups_.push_back({constants_.size(), symbol, offset});
    constants_.emplace_back(bits, 0);
    return ~static_cast<Operand>(constants_.size() - 1);
}

void KernelBuilder::place_variables() {
    uint32_t dynamic_alignment = 1;
    for (const Fixup &fixup : fixups_)
        if (fixup.symbol->kind == Symbol::dynamic_shared && fixup.symbol->alignment > dynamic_alignment)
            dynamic_alignment = fixup.symbol->alignment;
    kernel_.static_shared_bytes = align_up(kernel_.static_shared_bytes, dynamic_alignment);
    for (const Fixup &fixup : fixups_) {
        const bool dynamic = fixup.symbol->kind == Symbol::dynamic_shared;
        const int64_t offset = dynamic ? kernel_.static_shared_bytes : fixup.symbol->offset;
        const uint32_t base = fixup.symbol->kind == Symbol::local ? local_base : shared_base;
        constants_[fixup.constant].second = static_cast<uint64_t>(base + offset + fixup.offset);
    }
}

Operand KernelBuilder::predicate(const std::string &text) {
    if (text.empty() || text[0] != '!') return source(text, 1);
    const Operand negated = temporary(1);
    emit_lanes(predicate_not_op(), negated, {source(trim(text.substr(1)), 1)});
    return negated;
}

std::pair<Operand, Operand> KernelBuilder::halves(const std::string &text) {
    if (register_bits(text) != 128) throw ParseError("'" + text + "' is no register of 128 bits");
    const Symbol *symbol = find(text);
    return {symbol->low, symbol->high};
}

Address KernelBuilder::address(const std::string &text, Space space) {
    std::string name;
    Address address;
    split_offset(inside_brackets(text), &name, &address.offset);
    const int bits = register_bits(name);
    Symbol *symbol = find_variable(name);
    if (symbol != nullptr) {
        const bool local = symbol->kind == Symbol::local;
        if (symbol->kind == Symbol::parameter || space != (local ? Space::local : Space::shared))
            throw ParseError("'" + name + "' is not in the space of the access");
        address.base = variable_address(symbol, 0, 64);
        return address;
    }
    const bool narrow_allowed = space == Space::shared || space == Space::local;
    if (bits != 64 && !(bits == 32 && narrow_allowed))
        throw ParseError("'" + name + "' holds no address of this space");
    address.wide = bits == 64;
    address.base = find(name)->low;
    return address;
}

uint32_t KernelBuilder::parameter_offset(const std::string &text, uint32_t bytes) {
    std::string name;
    int64_t offset = 0;
    split_offset(inside_brackets(text), &name, &offset);
    const Symbol *symbol = find(name);
    if (symbol == nullptr || symbol->kind != Symbol::parameter) throw ParseError("'" + name + "' is no parameter");
    if (offset < 0 || offset + bytes > symbol->bytes) throw ParseError("reads past the parameter '" + name + "'");
    return static_cast<uint32_t>(symbol->offset + offset);
}

Instruction &KernelBuilder::emit(Op op, const std::vector<Operand> &results, const std::vector<Operand> &sources) {
    Instruction instruction;
    instruction.op = op;
    instruction.line = line_;
    instruction.operands = static_cast<uint32_t>(kernel_.operands.size());
    instruction.num_results = static_cast<uint16_t>(results.size());
    instruction.num_operands = static_cast<uint16_t>(results.size() + sources.size());
    instruction.predicated = guarded_;
    instruction.negated = guard_negated_;
    instruction.predicate = guard_;
    kernel_.operands.insert(kernel_.operands.end(), results.begin(), results.end());
    kernel_.operands.insert(kernel_.operands.end(), sources.begin(), sources.end());
    kernel_.code.push_back(instruction);
    kernel_.opcodes.push_back(opcode_);
    return kernel_.code.back();
}

void KernelBuilder::emit_lanes(LaneOp op, Operand result, const std::vector<Operand> &sources) {
    if (op == nullptr) throw ParseError("the instruction is not supported");
    // Every lane operation gets three sources, so that warps need not look.
    std::vector<Operand> three = sources;
    while (three.size() < 3) three.push_back(sources.back());
    Instruction &instruction = emit(Op::lanes, {result}, three);
    instruction.lane_op = op;
    instruction.register_bits = static_cast<uint8_t>(register_bits_[static_cast<size_t>(result)]);
    instruction.bytes = instruction.register_bits == 64 ? 8 : 4;
}

void KernelBuilder::emit_branch(const std::string &label, bool uniform) {
    jumps_.push_back({kernel_.code.size(), scope_, label, line_});
    emit(Op::branch, {}, {}).uniform = uniform;
}

void KernelBuilder::begin(const Statement &statement) {
    line_ = statement.line;
    opcode_ = statement.opcode;
    statement_begin_ = kernel_.code.size();
    guarded_ = !statement.guard.empty();
    guard_negated_ = guarded_ && statement.guard[0] == '!';
    if (guarded_) guard_ = source(trim(statement.guard.substr(guard_negated_ ? 1 : 0)), 1);
}

void KernelBuilder::end() {
    for (size_t i = statement_begin_; i + 1 < kernel_.code.size(); i++) {
        Instruction &instruction = kernel_.code[i];
        instruction.counted = false;
        if (guarded_ && instruction.num_results > 0 && kernel_.operands[instruction.operands] == guard_)
            throw ParseError("the instruction writes its own predicate");
    }
    guarded_ = guard_negated_ = false;
}

void KernelBuilder::resolve_jumps() {
    for (const Jump &jump : jumps_) {
        for (int scope = jump.scope; scope >= 0; scope = parents_[static_cast<size_t>(scope)]) {
            const auto &labels = labels_[static_cast<size_t>(scope)];
            const auto found = labels.find(jump.label);
            if (found == labels.end()) continue;
            kernel_.code[jump.instruction].target = static_cast<int32_t>(found->second);
            break;
        }
        if (kernel_.code[jump.instruction].target < 0)
            throw ParseError("there is no label '" + jump.label + "'", jump.line);
    }
}

// A product that is under way reads the registers of its first factor until somebody waits for it.
void KernelBuilder::keep_factors() {
    std::set<Operand> factors;
    for (const Instruction &i : kernel_.code) {
        const Operand *const end = kernel_.operands.data() + i.operands + i.num_operands;
        if (i.op == Op::warpgroup_mma && i.has_fragments) factors.insert(end - 4, end);
    }
    for (Instruction &i : kernel_.code) {
        if (i.op != Op::wait_products) continue;
        i.operands = static_cast<uint32_t>(kernel_.operands.size());
        i.num_operands = static_cast<uint16_t>(factors.size());
        kernel_.operands.insert(kernel_.operands.end(), factors.begin(), factors.end());
    }
}

Kernel KernelBuilder::finish() {
    opcode_ = "ret";
    emit(Op::exit, {}, {}).counted = false;
    keep_factors();
    resolve_jumps();
    place_variables();
    assign_slots(kernel_, register_bits_, constants_);
    return std::move(kernel_);
}

}  // namespace heed::device
