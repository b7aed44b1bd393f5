// Instructions that a warp or a block executes together.
#include "tests/cuda_device/decode.h"
#include "tests/cuda_device/ptx_source.h"

namespace heed::device {
namespace {

void decode_barrier(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    const bool has_scope = opcode.take("cta");
    if (opcode.name() == "bar" && !has_scope && opcode.take("warp")) {
        expect_operands(s, 1, 1);
        if (!opcode.take("sync")) throw ParseError("the instruction is not supported");
        builder.emit(Op::warp_barrier, {}, {builder.source(s.operands[0], 32)});
        return;
    }
    // Barriers that are not .aligned must be reached by whole warps too.
    opcode.take("aligned");
    const bool reduces = opcode.take("red");
    if (!reduces && !opcode.take("sync")) throw ParseError("the instruction is not supported");
    opcode.take("all");
    const size_t id = reduces ? 1 : 0;
    expect_operands(s, reduces ? 3 : 1, reduces ? 3 : 1);
    if (s.operands[id] != "0") throw ParseError("barriers other than 0 are not supported");
    if (!reduces) {
        builder.emit(Op::barrier, {}, {}).kind = static_cast<uint8_t>(BarrierKind::sync);
        return;
    }
    const bool counts = opcode.take("popc"), any = !counts && opcode.take("or"),
               all = !counts && !any && opcode.take("and");
    const Type type = opcode.take_type();
    if (counts ? !type.is(Kind::unsigned_int, 32) : type.kind != Kind::predicate || !(any || all))
        throw ParseError("the instruction is not supported");
    const Operand predicate = builder.predicate(s.operands[2]);
    Instruction &barrier = builder.emit(Op::barrier, {builder.result(s.operands[0], type.bits)}, {predicate});
    barrier.kind = static_cast<uint8_t>(counts ? BarrierKind::count : any ? BarrierKind::any : BarrierKind::all);
}

// shfl.sync.bfly.b32 d|p, a, b, c, mask
void decode_shuffle(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    expect_operands(s, 5, 5);
    const bool up = opcode.take("up"), down = opcode.take("down"), index = opcode.take("idx"),
               butterfly = opcode.take("bfly");
    if (!opcode.take("sync") || up + down + index + butterfly != 1 || !opcode.take_type().is(Kind::bits, 32))
        throw ParseError("the instruction is not supported");
    const std::vector<std::string> results = alternatives(s.operands[0]);
    std::vector<Operand> sources;
    for (size_t i = 1; i < 5; i++) sources.push_back(builder.source(s.operands[i], 32));
    const Operand in_range = results.size() == 2 ? builder.result(results[1], 1) : builder.temporary(1);
    Instruction &shuffle = builder.emit(Op::shuffle, {builder.result(results[0], 32), in_range}, sources);
    shuffle.kind = static_cast<uint8_t>(up      ? ShuffleKind::up
                                        : down  ? ShuffleKind::down
                                        : index ? ShuffleKind::index
                                                : ShuffleKind::butterfly);
}

// vote.sync.any.pred p, q, mask; vote.sync.ballot.b32 d, q, mask
void decode_vote(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    expect_operands(s, 3, 3);
    const bool any = opcode.take("any"), all = opcode.take("all"), uniform = opcode.take("uni"),
               ballot = opcode.take("ballot");
    const Type type = opcode.take_type();
    const bool right_type = ballot ? type.is(Kind::bits, 32) : type.kind == Kind::predicate;
    if (!opcode.take("sync") || any + all + uniform + ballot != 1 || !right_type)
        throw ParseError("the instruction is not supported");
    const Operand predicate = builder.predicate(s.operands[1]), mask = builder.source(s.operands[2], 32);
    Instruction &vote = builder.emit(Op::vote, {builder.result(s.operands[0], type.bits)}, {predicate, mask});
    vote.kind = static_cast<uint8_t>(any       ? VoteKind::any
                                     : all     ? VoteKind::all
                                     : uniform ? VoteKind::uniform
                                               : VoteKind::ballot);
}

// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r0, r1, r2, r3}, [a]
void decode_load_matrix(KernelBuilder &builder, const Statement &s, Opcode &opcode, int target) {
    expect_target(target, 75);
    expect_operands(s, 2, 2);
    const bool fixed = opcode.take("sync") && opcode.take("aligned") && opcode.take("m8n8");
    const int count = opcode.take("x1") ? 1 : opcode.take("x2") ? 2 : opcode.take("x4") ? 4 : 0;
    const bool transposed = opcode.take("trans");
    const bool shared = opcode.take("shared") || opcode.take("shared::cta");
    const std::vector<std::string> pieces = elements(s.operands[0]);
    if (!fixed || count == 0 || !shared || !opcode.take_type().is(Kind::bits, 16) ||
        static_cast<int>(pieces.size()) != count)
        throw ParseError("the instruction is not supported");
    std::vector<Operand> results;
    for (const std::string &piece : pieces) results.push_back(builder.result(piece, 32));
    const Address address = builder.address(s.operands[1], Space::shared);
    Instruction &load = builder.emit(Op::load_matrix, results, {address.base});
    load.space = Space::shared;
    load.wide_address = address.wide;
    load.immediate = address.offset;
    load.num_elements = static_cast<uint8_t>(count);
    load.kind = transposed ? 1 : 0;
}

// mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0..d3}, {a0..a3}, {b0, b1}, {c0..c3}
void decode_mma(KernelBuilder &builder, const Statement &s, Opcode &opcode, int target) {
    expect_target(target, 80);
    expect_operands(s, 4, 4);
    const bool fixed = opcode.take("sync") && opcode.take("aligned") && opcode.take("m16n8k16") && opcode.take("row") &&
                       opcode.take("col");
    const Type c = opcode.take_type(), b = opcode.take_type(), a = opcode.take_type(), d = opcode.take_type();
    const bool half = a.is(Kind::real, 16) && b.is(Kind::real, 16);
    const bool brain = a.is(Kind::brain, 16) && b.is(Kind::brain, 16);
    if (!fixed || !(half || brain) || !c.is(Kind::real, 32) || !d.is(Kind::real, 32))
        throw ParseError("the instruction is not supported");
    static constexpr size_t counts[] = {4, 4, 2, 4};
    std::vector<Operand> results, sources;
    for (size_t i = 0; i < 4; i++) {
        const std::vector<std::string> pieces = elements(s.operands[i]);
        if (pieces.size() != counts[i]) throw ParseError("the number of elements is wrong");
        for (const std::string &piece : pieces) {
            if (i == 0)
                results.push_back(builder.result(piece, 32));
            else
                sources.push_back(builder.source(piece, 32, i == 3));
        }
    }
    builder.emit(Op::mma, results, sources).kind = brain ? 1 : 0;
}

// wgmma.mma_async.sync.aligned.m64nNk16.f32.f16.f16 {d..}, {a0..a3} or a-descriptor, b-descriptor, p, 1, 1, (0,) 0 or 1
void decode_warpgroup_mma(KernelBuilder &builder, const Statement &s, Opcode &opcode) {
    expect_operands(s, 7, 8);
    const std::vector<std::string> sums = elements(s.operands[0]), a = elements(s.operands[1]);
    const std::string shape = "m64n" + std::to_string(2 * sums.size()) + "k16";
    const bool fixed = opcode.take("sync") && opcode.take("aligned") && opcode.take(shape.c_str());
    const Type type_b = opcode.take_type(), type_a = opcode.take_type(), type_d = opcode.take_type();
    const bool half = type_a.is(Kind::real, 16) && type_b.is(Kind::real, 16);
    const bool brain = type_a.is(Kind::brain, 16) && type_b.is(Kind::brain, 16);
    const bool has_fragments = a.size() == 4;
    const std::vector<std::string> flags(s.operands.begin() + 4, s.operands.end());
    const bool known = flags[0] == "1" && flags[1] == "1" && (has_fragments ? flags.size() == 3 : flags[2] == "0") &&
                       (flags.back() == "0" || flags.back() == "1");
    if (!fixed || !(half || brain) || !type_d.is(Kind::real, 32) || !known || sums.size() % 4 != 0 || sums.size() > 128)
        throw ParseError("the instruction is not supported");
    std::vector<Operand> results, sources;
    for (const std::string &sum : sums) {
        results.push_back(builder.result(sum, 32));
        sources.push_back(builder.source(sum, 32, true));
    }
    sources.push_back(builder.source(s.operands[2], 64));
    sources.push_back(builder.predicate(s.operands[3]));
    for (const std::string &piece : a) sources.push_back(builder.source(piece, has_fragments ? 32 : 64));
    Instruction &mma = builder.emit(Op::warpgroup_mma, results, sources);
    mma.kind = brain ? 1 : 0;
    mma.num_elements = static_cast<uint8_t>(sums.size() / 4);
    mma.has_fragments = has_fragments;
    mma.transposes = flags.back() == "1";
}

void decode_warpgroup(KernelBuilder &builder, const Statement &s, Opcode &opcode, int target) {
    expect_target(target, 90);
    if (opcode.take("mma_async")) return decode_warpgroup_mma(builder, s, opcode);
    const bool waits = opcode.take("wait_group"), commits = !waits && opcode.take("commit_group");
    expect_operands(s, waits ? 1 : 0, waits ? 1 : 0);
    if ((!waits && !commits && !opcode.take("fence")) || !opcode.take("sync") || !opcode.take("aligned"))
        throw ParseError("the instruction is not supported");
    const Op op = waits ? Op::wait_products : commits ? Op::commit_products : Op::warp_barrier;
    Instruction &i = builder.emit(op, {}, {builder.constant(32, 0xffffffff)});
    if (waits) i.kind = static_cast<uint8_t>(std::stoi(s.operands[0]));
}

}  // namespace

bool decode_warp(KernelBuilder &builder, const Statement &s, int target) {
    Opcode opcode(s.opcode);
    const std::string name = opcode.name();
    if (name == "bar" || name == "barrier") {
        decode_barrier(builder, s, opcode);
    } else if (name == "shfl") {
        decode_shuffle(builder, s, opcode);
    } else if (name == "vote") {
        decode_vote(builder, s, opcode);
    } else if (name == "ldmatrix") {
        decode_load_matrix(builder, s, opcode, target);
    } else if (name == "mma") {
        decode_mma(builder, s, opcode, target);
    } else if (name == "wgmma") {
        decode_warpgroup(builder, s, opcode, target);
    } else if (name == "activemask") {
        expect_operands(s, 1, 1);
        if (!opcode.take_type().is(Kind::bits, 32)) throw ParseError("the instruction is not supported");
        builder.emit(Op::active_mask, {builder.result(s.operands[0], 32)}, {});
    } else if (name == "membar" || name == "fence") {
        // Blocks run one after another or on a machine that keeps the order of stores.
        expect_operands(s, 0, 0);
        opcode.take_hints();
        opcode.take("gl");
        opcode.take("sc");
        if (opcode.take("proxy") && !opcode.take("async")) throw ParseError("the instruction is not supported");
        opcode.take("shared::cta");
        builder.emit(Op::nothing, {}, {});
    } else {
        return false;
    }
    if (!opcode.done()) throw ParseError("a part of '" + s.opcode + "' is not understood");
    return true;
}

}  // namespace heed::device
