#include "tests/cuda_device/decode.h"

#include "tests/cuda_device/lane_ops.h"
#include "tests/cuda_device/ptx_source.h"

namespace heed::device {
namespace {

bool is_vector(const std::string &text) { return !text.empty() && text[0] == '{'; }

void decode_lanes(KernelBuilder &builder, const Statement &s, const LaneOpInfo &info) {
    const auto num_sources = static_cast<size_t>(info.num_sources);
    expect_operands(s, num_sources + 1, num_sources + 1);
    std::vector<Operand> sources;
    for (size_t i = 0; i < num_sources; i++) {
        const std::string &text = s.operands[i + 1];
        const Type type = info.sources[i];
        const int bits = info.loose && builder.register_bits(text) != 0 ? builder.register_bits(text) : type.bits;
        sources.push_back(bits == 1 ? builder.predicate(text) : builder.source(text, bits, type.kind == Kind::real));
    }
    if (info.has_descriptor) sources.push_back(builder.constant(32, info.descriptor));
    const std::string &to = s.operands[0];
    const int result_bits = info.loose && builder.register_bits(to) != 0 ? builder.register_bits(to) : info.result.bits;
    builder.emit_lanes(info.op, builder.result(to, result_bits), sources);
    builder.kernel().code.back().divides = info.divides;
}

void decode_copy(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    const Type type = opcode.take_type();
    expect_operands(s, 2, 2);
    const std::string &to = s.operands[0], &from = s.operands[1];
    if (type.bits == 128) {
        const auto low_and_high = [&builder](const std::string &text) -> std::vector<Operand> {
            if (!is_vector(text)) return {builder.halves(text).first, builder.halves(text).second};
            const std::vector<std::string> pieces = elements(text);
            if (pieces.size() != 2) throw ParseError("'" + text + "' should have two elements");
            return {builder.source(pieces[0], 64), builder.source(pieces[1], 64)};
        };
        const std::vector<Operand> results = low_and_high(to), sources = low_and_high(from);
        if (results[0] < num_specials || results[1] < num_specials) throw ParseError("'" + to + "' is no result");
        for (size_t i = 0; i < 2; i++) builder.emit_lanes(copy_op(64), results[i], {sources[i]});
        return;
    }
    if (is_vector(to)) {
        const std::vector<std::string> pieces = elements(to);
        const int bits = type.bits / static_cast<int>(pieces.size());
        const Operand whole = builder.source(from, type.bits);
        for (size_t i = 0; i < pieces.size(); i++)
            if (pieces[i] != "_")
                builder.emit_lanes(extract_op(type.bits, bits, static_cast<int>(i)), builder.result(pieces[i], bits),
                                   {whole});
        return;
    }
    const Operand result = builder.result(to, type.bits);
    if (!is_vector(from)) {
        builder.emit_lanes(copy_op(type.bits), result, {builder.source(from, type.bits, type.kind == Kind::real)});
        return;
    }
    const std::vector<std::string> texts = elements(from);
    std::vector<Operand> pieces;
    for (const std::string &text : texts)
        pieces.push_back(builder.source(text, type.bits / static_cast<int>(texts.size())));
    if (pieces.size() == 4 && type.bits == 64) {
        const Operand low = builder.temporary(32), high = builder.temporary(32);
        builder.emit_lanes(join_op(32), low, {pieces[0], pieces[1]});
        builder.emit_lanes(join_op(32), high, {pieces[2], pieces[3]});
        pieces = {low, high};
    }
    if (pieces.size() != 2) throw ParseError("'" + from + "' is not supported");
    builder.emit_lanes(join_op(type.bits), result, pieces);
}

// setp.lt.and.s32 p|q, a, b, c: p = (a < b) and c, q = not (a < b) and c.
void decode_compare(KernelBuilder &builder, const Statement &s, Opcode &opcode, int target) {
    const bool combines_and = opcode.take("and"), combines_or = !combines_and && opcode.take("or");
    const bool combines_xor = !combines_and && !combines_or && opcode.take("xor");
    const bool combines = combines_and || combines_or || combines_xor;
    const LaneOpInfo info = find_compare_op(opcode);
    if (info.sources[0].kind == Kind::brain) expect_target(target, 90);
    expect_operands(s, combines ? 4 : 3, combines ? 4 : 3);
    const std::vector<std::string> results = alternatives(s.operands[0]);
    const bool real = info.sources[0].kind == Kind::real;
    const Operand a = builder.source(s.operands[1], info.sources[0].bits, real);
    const Operand b = builder.source(s.operands[2], info.sources[1].bits, real);
    if (!combines && results.size() == 1) {
        builder.emit_lanes(info.op, builder.result(results[0], 1), {a, b});
        return;
    }
    const Operand comparison = builder.temporary(1), condition = combines ? builder.predicate(s.operands[3]) : 0;
    builder.emit_lanes(info.op, comparison, {a, b});
    const auto emit = [&](const std::string &text, bool negated) {
        const Operand result = builder.result(text, 1);
        const LaneOp op = combines_and  ? predicate_and_op(negated)
                          : combines_or ? predicate_or_op(negated)
                          : combines    ? predicate_xor_op(negated)
                          : negated     ? predicate_not_op()
                                        : copy_op(1);
        builder.emit_lanes(op, result,
                           combines ? std::vector<Operand>{comparison, condition} : std::vector<Operand>{comparison});
    };
    // The condition may be one of the results.
    const bool second_first = results.size() == 2 && combines && s.operands[3] == results[0];
    if (second_first) emit(results[1], true);
    emit(results[0], false);
    if (results.size() == 2 && !second_first) emit(results[1], true);
}

// cvta.shared.u64: from the space's own address to the generic one; .to: back.
void decode_cvta(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    expect_operands(s, 2, 2);
    const bool back = opcode.take("to");
    const bool global = opcode.take("global"), shared = !global && opcode.take("shared");
    const bool local = !global && !shared && opcode.take("local");
    const Type type = opcode.take_type();
    if (!type.is(Kind::unsigned_int, 64) || !(global || shared || local))
        throw ParseError("the instruction is not supported");
    const Operand result = builder.result(s.operands[0], 64), source = builder.source(s.operands[1], 64);
    if (global) {
        builder.emit_lanes(copy_op(64), result, {source});
        return;
    }
    const uint64_t window = shared ? shared_window : local_window;
    Opcode add("add.u64");
    builder.emit_lanes(find_integer_op(add).op, result, {source, builder.constant(64, back ? 0 - window : window)});
}

void decode_lookup(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    expect_operands(s, 5, 5);
    int64_t table = 0;
    if (!opcode.take_type().is(Kind::bits, 32) || !parse_integer(s.operands[4], &table) || table < 0 || table > 255)
        throw ParseError("the instruction is not supported");
    builder.emit_lanes(
        lookup_op(static_cast<uint8_t>(table)), builder.result(s.operands[0], 32),
        {builder.source(s.operands[1], 32), builder.source(s.operands[2], 32), builder.source(s.operands[3], 32)});
}

void decode_insert(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    expect_operands(s, 5, 5);
    const Operand position = builder.source(s.operands[3], 32), length = builder.source(s.operands[4], 32);
    const Operand both = builder.temporary(64);
    builder.emit_lanes(join_op(64), both, {position, length});
    const LaneOpInfo info = find_bit_op(opcode);
    builder.emit_lanes(
        info.op, builder.result(s.operands[0], info.result.bits),
        {builder.source(s.operands[1], info.result.bits), builder.source(s.operands[2], info.result.bits), both});
}

LaneOpInfo find_lanes(Opcode &opcode, const Statement &s, KernelBuilder &builder) {
    if (opcode.name() == "cvt") {
        expect_operands(s, 2, 3);
        return find_convert_op(opcode, builder.register_bits(s.operands[0]), builder.register_bits(s.operands[1]));
    }
    for (LaneOpInfo (*find)(Opcode &) : {&find_integer_op, &find_bit_op, &find_float_op, &find_half_op}) {
        Opcode attempt = opcode;
        const LaneOpInfo info = find(attempt);
        if (info.op == nullptr) continue;
        opcode = attempt;
        return info;
    }
    return {};
}

// Conversions to pairs and bf16 came with sm_80, most of bf16 with sm_90.
int needed_target(const std::string &name, const LaneOpInfo &info) {
    const auto is_brain = [](Type type) { return type.kind == Kind::brain || type.kind == Kind::brain_pair; };
    if (name == "cvt") {
        const bool from_float = info.sources[0].is(Kind::real, 32);
        if (is_brain(info.sources[0]) || (is_brain(info.result) && !from_float)) return 90;
        return is_brain(info.result) || info.result.pair() ? 80 : 0;
    }
    if (!is_brain(info.sources[0])) return 0;
    return name == "add" || name == "sub" || name == "mul" ? 90 : 80;
}

void decode_control(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    if (opcode.name() == "bra") {
        expect_operands(s, 1, 1);
        builder.emit_branch(s.operands[0], opcode.take("uni"));
        return;
    }
    expect_operands(s, 0, 0);
    if (opcode.name() == "ret") opcode.take("uni");
    builder.emit(opcode.name() == "trap" ? Op::trap : Op::exit, {}, {});
}

}  // namespace

void expect_operands(const Statement &s, size_t at_least, size_t at_most) {
    if (s.operands.size() < at_least || s.operands.size() > at_most)
        throw ParseError("the number of operands is wrong");
}

void expect_target(int target, int needed) {
    if (target < needed) throw ParseError("the instruction needs .target sm_" + std::to_string(needed));
}

std::vector<std::string> elements(const std::string &text) {
    if (!is_vector(text)) return {text};
    const std::vector<std::string> pieces = split_list(text.substr(1, text.size() - 2));
    if (text.back() != '}' || pieces.empty()) throw ParseError("'" + text + "' is not understood");
    return pieces;
}

std::vector<std::string> alternatives(const std::string &text) {
    const size_t bar = text.find('|');
    if (bar == std::string::npos) return {text};
    return {trim(text.substr(0, bar)), trim(text.substr(bar + 1))};
}

void decode(KernelBuilder &builder, const Statement &s, int target) {
    builder.begin(s);
    Opcode opcode(s.opcode);
    const std::string name = opcode.name();
    if (name == "bra" || name == "ret" || name == "exit" || name == "trap") {
        decode_control(builder, s, opcode);
    } else if (name == "mov") {
        decode_copy(builder, s, opcode);
    } else if (name == "setp") {
        decode_compare(builder, s, opcode, target);
    } else if (name == "cvta") {
        decode_cvta(builder, s, opcode);
    } else if (name == "lop3") {
        decode_lookup(builder, s, opcode);
    } else if (name == "bfi") {
        decode_insert(builder, s, opcode);
    } else if (decode_memory(builder, s, target) || decode_warp(builder, s, target)) {
        builder.end();
        return;
    } else {
        const LaneOpInfo info = find_lanes(opcode, s, builder);
        if (info.op == nullptr) throw ParseError("the instruction is not supported");
        expect_target(target, needed_target(name, info));
        decode_lanes(builder, s, info);
    }
    if (!opcode.done()) throw ParseError("a part of '" + s.opcode + "' is not understood");
    builder.end();
}

}  // namespace heed::device
