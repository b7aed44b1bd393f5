// Loads, stores, atomics, asynchronous copies.
#include "tests/cuda_device/decode.h"
#include "tests/cuda_device/lane_ops.h"
#include "tests/cuda_device/ptx_source.h"

namespace heed::device {
namespace {

Space take_space(Opcode &opcode) {
    if (opcode.take("global")) return Space::global;
    if (opcode.take("shared") || opcode.take("shared::cta")) return Space::shared;
    if (opcode.take("local")) return Space::local;
    return Space::generic;
}

int take_count(Opcode &opcode) { return opcode.take("v2") ? 2 : opcode.take("v4") ? 4 : 1; }

void set_address(Instruction &instruction, const Address &address, Space space) {
    instruction.space = space;
    instruction.wide_address = address.wide;
    instruction.immediate = address.offset;
}

// Registers may be wider than what is in memory, but floats not.
int element_bits(KernelBuilder &builder, const std::string &text, Type type) {
    const int bits = builder.register_bits(text);
    if (bits == 0 || bits == type.bits) return type.bits;
    if (bits < type.bits || bits > 64 || type.floating() || bits < 16)
        throw ParseError("'" + text + "' has a wrong width");
    return bits;
}

// Registers of a load or a store: one by one, or in braces; one of 128 bits counts as two.
struct Elements {
    std::vector<Operand> operands;
    int register_bits = 0, memory_bits = 0;
};

Elements find_elements(KernelBuilder &builder, const std::string &text, Type type, int count, bool are_results) {
    Elements found;
    found.memory_bits = type.bits;
    if (type.bits == 128) {
        if (count != 1) throw ParseError("the instruction is not supported");
        const auto [low, high] = builder.halves(text);
        found.operands = {low, high};
        found.memory_bits = found.register_bits = 64;
        return found;
    }
    const std::vector<std::string> pieces = elements(text);
    if (static_cast<int>(pieces.size()) != count || count * type.bits > 128)
        throw ParseError("the number of elements is wrong");
    for (const std::string &piece : pieces) {
        const int bits = piece == "_" ? found.register_bits : element_bits(builder, piece, type);
        if (found.register_bits != 0 && bits != found.register_bits) throw ParseError("registers of several widths");
        found.register_bits = bits;
    }
    if (found.register_bits == 0) found.register_bits = type.bits < 16 ? 16 : type.bits;
    // Bytes live in registers of 16 bits and more.
    if (found.register_bits < 16) found.register_bits = 16;
    for (const std::string &piece : pieces)
        found.operands.push_back(are_results ? builder.result(piece, found.register_bits)
                                             : builder.source(piece, found.register_bits, type.floating()));
    return found;
}

void set_elements(Instruction &instruction, const Elements &found, bool sign_extends) {
    instruction.num_elements = static_cast<uint8_t>(found.operands.size());
    instruction.bytes = static_cast<uint8_t>(found.memory_bits / 8);
    instruction.register_bits = static_cast<uint8_t>(found.register_bits);
    instruction.sign_extends = sign_extends;
}

void decode_load(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    expect_operands(s, 2, 2);
    opcode.take_hints();
    const bool parameter = opcode.take("param");
    const Space space = parameter ? Space::generic : take_space(opcode);
    const int count = take_count(opcode);
    const Type type = opcode.take_type();
    if (type.kind == Kind::none || type.kind == Kind::predicate || type.pair())
        throw ParseError("the instruction is not supported");
    const Elements found = find_elements(builder, s.operands[0], type, count, true);
    const bool sign_extends = type.is_signed();
    if (parameter) {
        const uint32_t bytes = static_cast<uint32_t>(found.operands.size()) * found.memory_bits / 8;
        const uint32_t offset = builder.parameter_offset(s.operands[1], bytes);
        Instruction &load = builder.emit(Op::load_param, found.operands, {});
        set_elements(load, found, sign_extends);
        load.immediate = offset;
        return;
    }
    const Address address = builder.address(s.operands[1], space);
    Instruction &load = builder.emit(Op::load, found.operands, {address.base});
    set_elements(load, found, sign_extends);
    set_address(load, address, space);
}

void decode_store(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    expect_operands(s, 2, 2);
    opcode.take_hints();
    const Space space = take_space(opcode);
    const int count = take_count(opcode);
    const Type type = opcode.take_type();
    if (type.kind == Kind::none || type.kind == Kind::predicate || type.pair())
        throw ParseError("the instruction is not supported");
    const Elements found = find_elements(builder, s.operands[1], type, count, false);
    const Address address = builder.address(s.operands[0], space);
    std::vector<Operand> sources = {address.base};
    sources.insert(sources.end(), found.operands.begin(), found.operands.end());
    Instruction &store = builder.emit(Op::store, {}, sources);
    set_elements(store, found, false);
    set_address(store, address, space);
}

AtomicKind atomic_kind(Opcode &opcode, Type type) {
    const bool is_signed = type.is_signed();
    if (opcode.take("add")) {
        if (type.is(Kind::real, 32)) return AtomicKind::add_f32;
        if (type.number() && !(is_signed && type.bits == 64)) return AtomicKind::add;
    }
    if (type.kind == Kind::bits) {
        if (opcode.take("exch")) return AtomicKind::exchange;
        if (opcode.take("cas")) return AtomicKind::compare;
        if (opcode.take("and")) return AtomicKind::and_;
        if (opcode.take("or")) return AtomicKind::or_;
        if (opcode.take("xor")) return AtomicKind::xor_;
    }
    if (type.number()) {
        if (opcode.take("min")) return is_signed ? AtomicKind::min_signed : AtomicKind::min;
        if (opcode.take("max")) return is_signed ? AtomicKind::max_signed : AtomicKind::max;
    }
    throw ParseError("the instruction is not supported");
}

// atom.global.add.u32 d, [a], b{, c}; red is the same without d.
void decode_atomic(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    const bool reduces = opcode.name() == "red";
    opcode.take_hints();
    if (!opcode.take("global")) throw ParseError("atomics are supported in global memory only");
    const Type type = opcode.take_type();
    if (type.bits != 32 && type.bits != 64) throw ParseError("the instruction is not supported");
    const AtomicKind kind = atomic_kind(opcode, type);
    const size_t num = 3 - (reduces ? 1 : 0) + (kind == AtomicKind::compare ? 1 : 0);
    expect_operands(s, num, num);
    const size_t first = reduces ? 0 : 1;
    const Operand result = reduces ? builder.temporary(type.bits) : builder.result(s.operands[0], type.bits);
    const Address address = builder.address(s.operands[first], Space::global);
    std::vector<Operand> sources = {address.base};
    for (size_t i = first + 1; i < num; i++)
        sources.push_back(builder.source(s.operands[i], type.bits, type.floating()));
    Instruction &atomic = builder.emit(Op::atomic, {result}, sources);
    atomic.kind = static_cast<uint8_t>(kind);
    atomic.bytes = static_cast<uint8_t>(type.bits / 8);
    set_address(atomic, address, Space::global);
}

// cp.async.cg.shared.global [dst], [src], 16{, src_size}
void decode_copy_async(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    expect_operands(s, 3, 4);
    const bool all_levels = opcode.take("ca"), global_level = !all_levels && opcode.take("cg");
    const bool spaces = (opcode.take("shared") || opcode.take("shared::cta")) && opcode.take("global");
    opcode.take_hints();
    int64_t bytes = 0;
    const bool has_bytes = parse_integer(s.operands[2], &bytes);
    const bool right_bytes = bytes == 16 || (all_levels && (bytes == 4 || bytes == 8));
    if (!spaces || !(all_levels || global_level) || !has_bytes || !right_bytes)
        throw ParseError("the instruction is not supported");
    const Address to = builder.address(s.operands[0], Space::shared);
    const Address from = builder.address(s.operands[1], Space::global);
    std::vector<Operand> sources = {to.base, from.base};
    // One immediate per instruction: the source's offset is added beforehand.
    if (from.offset != 0) {
        sources[1] = builder.temporary(64);
        Opcode add("add.u64");
        builder.emit_lanes(find_integer_op(add).op, sources[1],
                           {from.base, builder.constant(64, static_cast<uint64_t>(from.offset))});
    }
    const bool has_size = s.operands.size() == 4;
    if (has_size) sources.push_back(builder.source(s.operands[3], 32));
    Instruction &copy = builder.emit(Op::copy_async, {}, sources);
    set_address(copy, to, Space::shared);
    copy.bytes = static_cast<uint8_t>(bytes);
    copy.has_size = has_size;
}

void decode_async(KernelBuilder &builder, const Statement &s, Opcode &opcode, int target) {
    expect_target(target, 80);
    if (!opcode.take("async")) throw ParseError("the instruction is not supported");
    if (opcode.take("commit_group")) {
        expect_operands(s, 0, 0);
        builder.emit(Op::commit_group, {}, {});
    } else if (opcode.take("wait_all")) {
        expect_operands(s, 0, 0);
        builder.emit(Op::wait_group, {}, {}).immediate = -1;
    } else if (opcode.take("wait_group")) {
        expect_operands(s, 1, 1);
        int64_t pending = 0;
        if (!parse_integer(s.operands[0], &pending) || pending < 0)
            throw ParseError("'" + s.operands[0] + "' is no number");
        builder.emit(Op::wait_group, {}, {}).immediate = pending;
    } else {
        decode_copy_async(builder, s, opcode);
    }
}

}  // namespace

bool decode_memory(KernelBuilder &builder, const Statement &s, int target) {
    Opcode opcode(s.opcode);
    const std::string name = opcode.name();
    if (name == "ld")
        decode_load(builder, s, opcode);
    else if (name == "st")
        decode_store(builder, s, opcode);
    else if (name == "atom" || name == "red")
        decode_atomic(builder, s, opcode);
    else if (name == "cp")
        decode_async(builder, s, opcode, target);
    else
        return false;
    if (!opcode.done()) throw ParseError("a part of '" + s.opcode + "' is not understood");
    return true;
}

}  // namespace heed::device
