// A kernel while it is decoded: its names, constants and micro-operations.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_device/program.h"
#include "tests/cuda_device/ptx_type.h"

namespace heed::device {

// What a name means.
struct Symbol {
    enum Kind { register_, parameter, static_shared, dynamic_shared, local } kind = register_;
    int bits = 0;                       // of a register
    Operand low = 0, high = 0;          // a register; `high` for those of 128 bits
    uint32_t bytes = 0, alignment = 1;  // of a variable
    int64_t offset = -1;                // of a variable; -1: not placed yet
};

// One statement of a kernel's body.
struct Statement {
    uint32_t line = 0;
    std::string guard;  // "%p1" or "!%p1"; empty: none
    std::string opcode;
    std::vector<std::string> operands;
};

struct Address {
    Operand base = 0;
    bool wide = true;  // the base has 64 bits
    int64_t offset = 0;
};

// Errors are thrown as ParseError without the line.
class KernelBuilder {
public:
    // `variables`: the module's, by name.
    KernelBuilder(std::string name, const std::map<std::string, Symbol> &variables);

    void add_parameter(const std::string &name, uint32_t bytes, uint32_t alignment);
    void open_scope();
    void close_scope();
    void declare(const std::string &name, const Symbol &symbol);
    void declare_register(const std::string &name, int bits);
    void label(const std::string &name);
    // Where micro-operations of one statement begin; they end with the next call.
    void begin(const Statement &statement);
    void end();
    Kernel finish();
    Kernel &kernel() { return kernel_; }

    // Width of a register, 0 where the text is none. `what` must have `bits`; "_" is a result nobody reads.
    int register_bits(const std::string &text);
    Operand result(const std::string &text, int bits);
    // A register, special register, number or address of a variable. `real`: numbers are 0f... or 0d...
    Operand source(const std::string &text, int bits, bool real = false);
    // "%p" or "!%p".
    Operand predicate(const std::string &text);
    // Both halves of a 128-bit register.
    std::pair<Operand, Operand> halves(const std::string &text);
    Operand constant(int bits, uint64_t value);
    Operand temporary(int bits);
    Address address(const std::string &text, Space space);
    // "[name+8]" of a parameter: its offset.
    uint32_t parameter_offset(const std::string &text, uint32_t bytes);

    Instruction &emit(Op op, const std::vector<Operand> &results, const std::vector<Operand> &sources);
    void emit_lanes(LaneOp op, Operand result, const std::vector<Operand> &sources);
    void emit_branch(const std::string &label, bool uniform);

private:
    using Scope = std::map<std::string, Symbol>;
    struct Jump {
        size_t instruction;
        int scope;
        std::string label;
        uint32_t line;
    };
    struct Fixup {
        size_t constant;
        Symbol *symbol;
        int64_t offset;
    };

    Symbol *find(const std::string &name);
    Symbol *find_variable(const std::string &name);
    Operand variable_address(Symbol *symbol, int64_t offset, int bits);
    void keep_factors();
    void resolve_jumps();
    void place_variables();

    Kernel kernel_;
    std::deque<Scope> scopes_;                           // all that were ever opened
    std::vector<int> parents_;                           // of scopes_
    int scope_ = -1;                                     // innermost
    std::vector<std::map<std::string, size_t>> labels_;  // by scope
    std::vector<Jump> jumps_;
    std::vector<Fixup> fixups_;
    std::vector<int> register_bits_;  // of virtual registers
    std::vector<std::pair<int, uint64_t>> constants_;
    std::map<std::pair<int, uint64_t>, Operand> constant_of_;
    Operand guard_ = 0;
    bool guarded_ = false, guard_negated_ = false;
    uint32_t line_ = 0;
    size_t statement_begin_ = 0;
    std::string opcode_;
};

// Gives virtual registers their places in a warp's register file, and constants theirs.
void assign_slots(Kernel &kernel, const std::vector<int> &register_bits,
                  const std::vector<std::pair<int, uint64_t>> &constants);

}  // namespace heed::device
