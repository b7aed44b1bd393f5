#include "generators/cuda/intrinsics.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// Reads or writes memory, or works with other lanes: stays where it is.
Expr ordered(const char *name, Type type, const std::vector<Expr> &args) {
    return Internal::Call::make(type, name, args, Internal::Call::Extern);
}

Expr pure(const char *name, Type type, const std::vector<Expr> &args) {
    return Internal::Call::make(type, name, args, Internal::Call::PureExtern);
}

const char *of_type(ElementType type, const char *f16, const char *bf16) {
    return type == ElementType::bf16 ? bf16 : f16;
}

}  // namespace

Expr fragment(const Expr &a, const Expr &b, const Expr &c, const Expr &d) {
    return pure(a.type().is_float() ? "heed_fragment_f32" : "heed_fragment_u32", UInt(128), {a, b, c, d});
}
Expr zero_fragment() { return fragment(0.f, 0.f, 0.f, 0.f); }
Expr float_of(const Expr &fragment, int i) {
    const char *const names[] = {"heed_float0", "heed_float1", "heed_float2", "heed_float3"};
    return pure(names[i], Float(32), {fragment});
}
Expr low_half(const Expr &fragment) { return pure("heed_low_half", UInt(64), {fragment}); }
Expr high_half(const Expr &fragment) { return pure("heed_high_half", UInt(64), {fragment}); }
Expr mma(ElementType type, const Expr &a, const Expr &b, const Expr &c) {
    return ordered(of_type(type, "heed_mma_f16", "heed_mma_bf16"), UInt(128), {a, b, c});
}
Expr pack(ElementType type, const Expr &low, const Expr &high) {
    return pure(of_type(type, "heed_pack_f16", "heed_pack_bf16"), UInt(32), {low, high});
}
Expr ones_unless_negative(ElementType type, const Expr &fragment) {
    return ordered(of_type(type, "heed_ones_unless_negative_f16", "heed_ones_unless_negative_bf16"), UInt(128),
                   {fragment});
}
Expr negate_signs(const Expr &fragment, const Expr &mask) {
    return pure("heed_negate_signs", UInt(128), {fragment, mask});
}
Expr neighbouring_codes(ElementType type, const Expr &two_words) {
    return pure(of_type(type, "heed_neighbouring_codes_f16", "heed_neighbouring_codes_bf16"), UInt(128), {two_words});
}
Expr alternate_codes(const Expr &two_words) { return pure("heed_alternate_codes", UInt(128), {two_words}); }

Expr thread_index() { return ordered("heed_thread_index", Int(32), {}); }
Expr block_index() { return ordered("heed_block_index", Int(32), {}); }

Expr shared_begin() { return pure("heed_shared_begin", Int(32), {}); }
Expr load_matrices(const Expr &address) { return ordered("heed_load_matrices", UInt(128), {address}); }
Expr load_matrices_transposed(const Expr &address) {
    return ordered("heed_load_matrices_transposed", UInt(128), {address});
}
Expr load_shared_u16(const Expr &address) { return ordered("heed_load_shared_u16", UInt(32), {address}); }
Expr load_shared_u32(const Expr &address) { return ordered("heed_load_shared_u32", UInt(32), {address}); }
Expr load_shared_u64(const Expr &address) { return ordered("heed_load_shared_u64", UInt(64), {address}); }
Expr load_shared_fragment(const Expr &address) { return ordered("heed_load_shared_fragment", UInt(128), {address}); }
Expr store_shared_u8(const Expr &address, const Expr &value) {
    return ordered("heed_store_shared_u8", Int(32), {address, value});
}
Expr store_shared_u16(const Expr &address, const Expr &value) {
    return ordered("heed_store_shared_u16", Int(32), {address, value});
}
Expr store_shared_u32(const Expr &address, const Expr &value) {
    return ordered("heed_store_shared_u32", Int(32), {address, value});
}
Expr store_shared_u64(const Expr &address, const Expr &value) {
    return ordered("heed_store_shared_u64", Int(32), {address, value});
}
Expr store_shared_fragment(const Expr &address, const Expr &value) {
    return ordered("heed_store_shared_fragment", Int(32), {address, value});
}
Expr copy_async(const Expr &to, const Expr &from, const Expr &bytes) {
    return ordered("heed_copy_async", Int(32), {to, from, bytes});
}
Expr copy_word_async(const Expr &to, const Expr &from, const Expr &bytes) {
    return ordered("heed_copy_word_async", Int(32), {to, from, bytes});
}
Expr commit_copies() { return ordered("heed_commit_copies", Int(32), {}); }
Expr wait_copies() { return ordered("heed_wait_copies", Int(32), {}); }
// Halide's, which LLVM knows to be convergent: it would put a call of a function of ours into both sides of a branch.
// What Halide says of memory to fence is 0 to 3.
Expr barrier() {
    return Internal::Call::make(Int(32), Internal::Call::gpu_thread_barrier, {4}, Internal::Call::Intrinsic);
}
Expr barrier_any(const Expr &on) { return ordered("heed_barrier_any", Int(32), {on}); }

Expr advance(const Expr &address, const Expr &bytes) { return pure("heed_advance", UInt(64), {address, bytes}); }
Expr load_fragment(const Expr &address) { return ordered("heed_load_fragment", UInt(128), {address}); }
Expr load_fragment_if(const Expr &address, const Expr &on) {
    return ordered("heed_load_fragment_if", UInt(128), {address, on});
}
Expr load_u8_if(const Expr &address, const Expr &on) { return ordered("heed_load_u8_if", UInt(32), {address, on}); }
Expr load_u16_if(const Expr &address, const Expr &on) { return ordered("heed_load_u16_if", UInt(32), {address, on}); }
Expr load_u32_if(const Expr &address, const Expr &on) { return ordered("heed_load_u32_if", UInt(32), {address, on}); }
Expr load_u8(const Expr &address) { return ordered("heed_load_u8", UInt(32), {address}); }
Expr load_u16(const Expr &address) { return ordered("heed_load_u16", UInt(32), {address}); }
Expr load_i32(const Expr &address) { return ordered("heed_load_i32", Int(32), {address}); }
Expr store_fragment(const Expr &address, const Expr &value) {
    return ordered("heed_store_fragment", Int(32), {address, value});
}
Expr store_u8(const Expr &address, const Expr &value) { return ordered("heed_store_u8", Int(32), {address, value}); }
Expr store_u16(const Expr &address, const Expr &value) { return ordered("heed_store_u16", Int(32), {address, value}); }
Expr store_u32(const Expr &address, const Expr &value) { return ordered("heed_store_u32", Int(32), {address, value}); }
Expr store_u64(const Expr &address, const Expr &value) { return ordered("heed_store_u64", Int(32), {address, value}); }
Expr store_u32_if_zero(const Expr &address, const Expr &value) {
    return ordered("heed_store_u32_if_zero", Int(32), {address, value});
}

Expr from_lane(const Expr &x, int mask) {
    return ordered(("heed_from_lane_" + std::to_string(mask)).c_str(), Float(32), {x});
}
Expr any_lane(const Expr &on) { return ordered("heed_any_lane", Int(32), {on}); }
Expr add_infinity(const Expr &x, bool negative) {
    return pure(negative ? "heed_subtract_infinity" : "heed_add_infinity", Float(32), {x});
}

namespace {

std::string mma_template(const std::string &types) {
    return "{\n.reg .b32 a0, a1, a2, a3, b0, b1, c0, c1, c2, c3;\n"
           "mov.b64 {a0, a1}, $0.0;\nmov.b64 {a2, a3}, $0.1;\nmov.b64 {b0, b1}, $1;\n"
           "mov.b64 {c0, c1}, $2.0;\nmov.b64 {c2, c3}, $2.1;\n"
           "mma.sync.aligned.m16n8k16.row.col.f32." +
           types +
           ".f32 {c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3};\n"
           "mov.b64 $r.0, {c0, c1};\nmov.b64 $r.1, {c2, c3};\n}\n";
}

std::string float_template(int i) {
    return "{\n.reg .b32 x0, x1;\nmov.b64 {x0, x1}, $0." + std::to_string(i / 2) + ";\nmov.b32 $r, x" +
           std::to_string(i % 2) + ";\n}\n";
}

std::string matrices_template(const std::string &transposed) {
    return "{\n.reg .b32 x0, x1, x2, x3;\n"
           "ldmatrix.sync.aligned.m8n8.x4" +
           transposed + ".shared.b16 {x0, x1, x2, x3}, [$0];\nmov.b64 $r.0, {x0, x1};\nmov.b64 $r.1, {x2, x3};\n}\n";
}

// Two codes of a register as 16-bit numbers. f16: 1024 + code + 128 is an exponent's byte above the code's, less 1152.
// bf16: 128 plus the lower seven bits, less 128 or, below zero, 256.
std::string two_codes(ElementType type, const std::string &to, const std::string &word, const char *selector) {
    if (type == ElementType::f16) {
        return "xor.b32 x, " + word + ", 0x80808080;\nprmt.b32 x, x, 0x64646464, " + selector +
               ";\nmov.b32 c, 0x64806480;\nsub.rn.f16x2 " + to + ", x, c;\n";
    }
    return "prmt.b32 x, " + word + ", 0x43434343, " + selector +
           ";\nand.b32 c, x, 0xff80ff80;\nand.b32 x, x, 0xff7fff7f;\nmov.b32 y, 0xbf80bf80;\nfma.rn.bf16x2 " + to +
           ", c, y, x;\n";
}

std::string codes_template(ElementType type, bool alternate) {
    const char *const first = alternate ? "0x4240" : "0x4140", *const last = alternate ? "0x4341" : "0x4342";
    std::string text = "{\n.reg .b32 w0, w1, c, x, y, r00, r01, r10, r11;\nmov.b64 {w0, w1}, $0;\n";
    for (const char *word : {"0", "1"}) {
        const std::string of_word = std::string("w") + word, to = std::string("r") + word;
        text += two_codes(type, to + "0", of_word, first) + two_codes(type, to + "1", of_word, last);
    }
    return text + (alternate ? "mov.b64 $r.0, {r00, r10};\nmov.b64 $r.1, {r01, r11};\n}\n"
                             : "mov.b64 $r.0, {r00, r01};\nmov.b64 $r.1, {r10, r11};\n}\n");
}

std::string copy_template(const std::string &level, const std::string &bytes) {
    return "{\n.reg .b64 from;\ncvta.to.global.u64 from, $1;\ncp.async." + level + ".shared.global [$0], [from], " +
           bytes + ", $2;\n}\n";
}

std::string narrow_load_if(const std::string &load) {
    return "{\n.reg .pred on;\n.reg .b64 at;\n.reg .b16 x;\ncvta.to.global.u64 at, $0;\nsetp.ne.s32 on, $1, 0;\n"
           "mov.b16 x, 0;\n@on " +
           load + " x, [at];\ncvt.u32.u16 $r, x;\n}\n";
}

std::string at_global(const std::string &before, const std::string &after) {
    return "{\n.reg .b64 at;\ncvta.to.global.u64 at, $0;\n" + before + "[at]" + after + ";\n}\n";
}

std::string load_if(const std::string &zero, const std::string &load) {
    return "{\n.reg .pred on;\n.reg .b64 at;\ncvta.to.global.u64 at, $0;\nsetp.ne.s32 on, $1, 0;\n" + zero + "@on " +
           load + ", [at];\n}\n";
}

std::string narrow(const std::string &type, const std::string &load) {
    return "{\n.reg .b64 at;\n.reg .b16 x;\ncvta.to.global.u64 at, $0;\n" + load + " x, [at];\ncvt.u32." + type +
           " $r, x;\n}\n";
}

std::string from_lane_template(int mask) {
    return "shfl.sync.bfly.b32 $r, $0, " + std::to_string(mask) + ", 31, 0xffffffff;\n";
}

std::string ones_template(const std::string &one) {
    std::string text =
        "{\n.reg .b64 signs, ones;\nmov.b64 ones, 0x0001000100010001;\nmul.lo.u64 ones, ones, " + one + ";\n";
    for (const char *half : {"0", "1"}) {
        text += std::string("shr.u64 signs, $0.") + half + ", 15;\nand.b64 signs, signs, 0x0001000100010001;\n" +
                "mul.lo.u64 signs, signs, " + one + ";\nsub.s64 $r." + half + ", ones, signs;\n";
    }
    return text + "}\n";
}

std::map<std::string, std::string> make_templates() {
    return {
        {"heed_fragment_f32", "mov.b64 $r.0, {$0, $1};\nmov.b64 $r.1, {$2, $3};\n"},
        {"heed_fragment_u32", "mov.b64 $r.0, {$0, $1};\nmov.b64 $r.1, {$2, $3};\n"},
        {"heed_float0", float_template(0)},
        {"heed_float1", float_template(1)},
        {"heed_float2", float_template(2)},
        {"heed_float3", float_template(3)},
        {"heed_low_half", "mov.b64 $r, $0.0;\n"},
        {"heed_high_half", "mov.b64 $r, $0.1;\n"},
        {"heed_mma_f16", mma_template("f16.f16")},
        {"heed_mma_bf16", mma_template("bf16.bf16")},
        {"heed_pack_f16", "cvt.rn.f16x2.f32 $r, $1, $0;\n"},
        {"heed_pack_bf16", "cvt.rn.bf16x2.f32 $r, $1, $0;\n"},
        {"heed_ones_unless_negative_f16", ones_template("0x3c00")},
        {"heed_ones_unless_negative_bf16", ones_template("0x3f80")},
        {"heed_negate_signs", "{\n.reg .b64 m;\nmov.b64 m, {$1, $1};\nxor.b64 $r.0, $0.0, m;\n"
                              "xor.b64 $r.1, $0.1, m;\n}\n"},
        {"heed_neighbouring_codes_f16", codes_template(ElementType::f16, false)},
        {"heed_neighbouring_codes_bf16", codes_template(ElementType::bf16, false)},
        {"heed_alternate_codes", codes_template(ElementType::f16, true)},
        {"heed_load_matrices", matrices_template("")},
        {"heed_load_matrices_transposed", matrices_template(".trans")},
        {"heed_load_shared_u16", "{\n.reg .b16 x;\nld.shared.b16 x, [$0];\ncvt.u32.u16 $r, x;\n}\n"},
        {"heed_load_shared_u32", "ld.shared.b32 $r, [$0];\n"},
        {"heed_load_shared_u64", "ld.shared.b64 $r, [$0];\n"},
        {"heed_load_shared_fragment", "ld.shared.v2.b64 {$r.0, $r.1}, [$0];\n"},
        {"heed_store_shared_u8", "{\n.reg .b16 x;\ncvt.u16.u32 x, $1;\nst.shared.b8 [$0], x;\n}\n"},
        {"heed_store_shared_u16", "{\n.reg .b16 x;\ncvt.u16.u32 x, $1;\nst.shared.b16 [$0], x;\n}\n"},
        {"heed_store_shared_u32", "st.shared.b32 [$0], $1;\n"},
        {"heed_store_shared_u64", "st.shared.b64 [$0], $1;\n"},
        {"heed_store_shared_fragment", "st.shared.v2.b64 [$0], {$1.0, $1.1};\n"},
        {"heed_copy_async", copy_template("cg", "16")},
        {"heed_copy_word_async", copy_template("ca", "4")},
        {"heed_commit_copies", "cp.async.commit_group;\n"},
        {"heed_wait_copies", "cp.async.wait_group 0;\n"},
        {"heed_barrier_any", "{\n.reg .pred on, any;\nsetp.ne.s32 on, $0, 0;\nbar.red.or.pred any, 0, on;\n"
                             "selp.b32 $r, 1, 0, any;\n}\n"},
        {"heed_advance", "add.u64 $r, $0, $1;\n"},
        {"heed_load_fragment", at_global("ld.global.v2.b64 {$r.0, $r.1}, ", "")},
        {"heed_load_fragment_if", load_if("mov.b64 $r.0, 0;\nmov.b64 $r.1, 0;\n", "ld.global.v2.b64 {$r.0, $r.1}")},
        {"heed_load_u8_if", narrow_load_if("ld.global.u8")},
        {"heed_load_u16_if", narrow_load_if("ld.global.b16")},
        {"heed_load_u32_if", load_if("mov.b32 $r, 0;\n", "ld.global.b32 $r")},
        {"heed_load_u8", narrow("u8", "ld.global.u8")},
        {"heed_load_u16", narrow("u16", "ld.global.b16")},
        {"heed_load_i32", at_global("ld.global.b32 $r, ", "")},
        {"heed_store_fragment", at_global("st.global.v2.b64 ", ", {$1.0, $1.1}")},
        {"heed_store_u8", "{\n.reg .b64 at;\n.reg .b16 x;\ncvta.to.global.u64 at, $0;\ncvt.u16.u32 x, $1;\n"
                          "st.global.b8 [at], x;\n}\n"},
        {"heed_store_u16", "{\n.reg .b64 at;\n.reg .b16 x;\ncvta.to.global.u64 at, $0;\ncvt.u16.u32 x, $1;\n"
                           "st.global.b16 [at], x;\n}\n"},
        {"heed_store_u32", at_global("st.global.b32 ", ", $1")},
        {"heed_store_u64", at_global("st.global.b64 ", ", $1")},
        {"heed_store_u32_if_zero", "{\n.reg .b64 at;\n.reg .b32 x;\ncvta.to.global.u64 at, $0;\n"
                                   "atom.global.cas.b32 x, [at], 0, $1;\n}\n"},
        {"heed_exp2", "ex2.approx.ftz.f32 $r, $0;\n"},
        {"heed_fma", "fma.rn.f32 $r, $0, $1, $2;\n"},
        {"heed_reciprocal", "rcp.approx.ftz.f32 $r, $0;\n"},
        {"heed_maximum", "max.f32 $r, $0, $1;\n"},
        {"heed_magnitude", "abs.f32 $r, $0;\n"},
        {"heed_from_lane_1", from_lane_template(1)},
        {"heed_from_lane_2", from_lane_template(2)},
        {"heed_from_lane_4", from_lane_template(4)},
        {"heed_from_lane_8", from_lane_template(8)},
        {"heed_from_lane_16", from_lane_template(16)},
        {"heed_any_lane", "{\n.reg .pred on, any;\nsetp.ne.s32 on, $0, 0;\nvote.sync.any.pred any, on, 0xffffffff;\n"
                          "selp.b32 $r, 1, 0, any;\n}\n"},
        {"heed_thread_index", "mov.u32 $r, %tid.x;\n"},
        {"heed_block_index", "mov.u32 $r, %ctaid.x;\n"},
        {"heed_shared_begin", "mov.b32 $r, heed_shared;\n"},
        {"heed_add_infinity", "add.f32 $r, $0, 0f7F800000;\n"},
        {"heed_subtract_infinity", "add.f32 $r, $0, 0fFF800000;\n"},
    };
}

}  // namespace

const std::map<std::string, std::string> &intrinsic_templates() {
    static const std::map<std::string, std::string> templates = make_templates();
    return templates;
}

}  // namespace heed::cuda
