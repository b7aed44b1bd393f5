// The rewriter replaces each call of an intrinsic by its instructions, and refuses what it does not know.
#include "generators/cuda/ptx_rewriter.h"

#include <gtest/gtest.h>

#include "generators/cuda/intrinsics.h"
#include "generators/cuda/warpgroup.h"

namespace heed::cuda {
namespace {

std::string module_of(const std::string &declarations, const std::string &body) {
    return ".version 7.0\n.target sm_70\n.address_size 64\n" + declarations +
           ".visible .entry kernel(\n\t.param .u64 kernel_param_0\n)\n{\n" + body + "\tret;\n}\n";
}

const char *const exp2_declaration =
    ".extern .func  (.param .b32 func_retval0) heed_exp2\n(\n\t.param .b32 heed_exp2_param_0\n)\n;\n";

std::string exp2_call(const std::string &result, const std::string &argument, int number) {
    const std::string id = std::to_string(number);
    return "\t{ // callseq " + id + ", 0\n\t.param .b32 \tparam0;\n\tst.param.b32 \t[param0], " + argument +
           ";\n\t.param .b32 \tretval0;\n\tcall.uni (retval0), heed_exp2, (param0);\n\tld.param.b32 \t" + result +
           ", [retval0];\n\t} // callseq " + id + "\n";
}

RewrittenPtx rewrite(const std::string &declarations, const std::string &body) {
    return rewrite_ptx(module_of(declarations, body), {80, 128});
}

// The sentence with which the text is refused; "" when it is not.
std::string refusal(const std::string &ptx) {
    try {
        rewrite_ptx(ptx, {80, 128});
        return "";
    } catch (const std::runtime_error &error) {
        return error.what();
    }
}

TEST(PtxRewriter, ReplacesEachCall) {
    const RewrittenPtx result = rewrite(exp2_declaration, exp2_call("%r2", "%r1", 0) + exp2_call("%r3", "%r2", 1));
    EXPECT_EQ(result.intrinsics, (std::map<std::string, int>{{"heed_exp2", 2}}));
    EXPECT_NE(result.text.find("ex2.approx.ftz.f32 %r2, %r1;\nex2.approx.ftz.f32 %r3, %r2;\n"), std::string::npos)
        << result.text;
    EXPECT_EQ(result.text.find("call"), std::string::npos) << result.text;
    EXPECT_EQ(result.text.find(".extern .func"), std::string::npos) << result.text;
}

TEST(PtxRewriter, StatesVersionTargetAndThreads) {
    const std::string text = rewrite("", "").text;
    for (const char *line : {".version 7.8\n", ".target sm_80\n", ".maxntid 128, 1, 1\n.minnctapersm 1\n{\n",
                             ".extern .shared .align 16 .b8 heed_shared[];\n"}) {
        EXPECT_NE(text.find(line), std::string::npos) << line << " is missing in\n" << text;
    }
    EXPECT_EQ(text.find("sm_70"), std::string::npos);
}

TEST(PtxRewriter, Takes128BitOperandsInAnyOrder) {
    const std::string declaration =
        ".extern .func  (.param .align 16 .b8 func_retval0[16]) heed_negate_signs\n(\n)\n;\n";
    const std::string call = "\t{ // callseq 0, 0\n\t.param .align 16 .b8 \tparam0[16];\n\t.param .b32 \tparam1;\n"
                             "\tst.param.b32 \t[param1], %r7;\n\tst.param.v2.b64 \t[param0], {%rd1, %rd2};\n"
                             "\t.param .align 16 .b8 \tretval0[16];\n"
                             "\tcall.uni (retval0), heed_negate_signs, (param0, param1);\n"
                             "\tld.param.v2.b64 \t{%rd3, %rd4}, [retval0];\n\t} // callseq 0\n";
    const std::string text = rewrite(declaration, call).text;
    EXPECT_NE(text.find("mov.b64 m, {%r7, %r7};\nxor.b64 %rd3, %rd1, m;\nxor.b64 %rd4, %rd2, m;\n"), std::string::npos)
        << text;
}

TEST(PtxRewriter, RefusesWhatItDoesNotKnow) {
    const std::string call = exp2_call("%r2", "%r1", 0);
    std::string unknown = call, narrow = call, extra = call, sine = exp2_declaration;
    unknown.replace(unknown.find("heed_exp2"), 9, "heed_exp3");
    narrow.replace(narrow.find(", %r1;"), 6, ", {%r1, %r2};");
    extra.insert(extra.find("\tcall.uni"), "\tmov.b32 \t%r9, 0;\n");
    sine.replace(sine.find("heed_exp2"), 9, "__nv_sinf");
    const struct {
        std::string ptx, sentence;
    } cases[] = {
        {module_of(exp2_declaration, unknown), "call of a function that is not declared: heed_exp3"},
        {module_of("", call), "call of a function that is not declared: heed_exp2"},
        {module_of(sine, ""), "function that is no intrinsic"},
        {module_of(exp2_declaration, ""), "declared and not called: heed_exp2"},
        {module_of(exp2_declaration, narrow), "operand of another width: heed_exp2"},
        {module_of(exp2_declaration, extra), "unknown statement of a call: mov.b32"},
        {module_of("", "\tcall.uni f;\n"), "call outside a call sequence"},
        {module_of("", "\t.local .align 16 .b8 \t__local_depot0[64];\n"), "an array was indexed with a variable"},
        {module_of("", "") + "{\n}\n", "want one .version, .target and kernel, found: 1, 1, 2"},
        {".version 7.0\n", "want one .version, .target and kernel, found: 1, 0, 0"},
    };
    for (const auto &c : cases)
        EXPECT_NE(refusal(c.ptx).find(c.sentence), std::string::npos) << refusal(c.ptx) << "\n" << c.sentence;
}

// Each template names arguments in order, with halves or without, and balances its braces.
void expect_well_formed(const std::map<std::string, std::string> &templates) {
    for (const auto &[name, text] : templates) {
        int depth = 0;
        for (size_t i = 0; i < text.size(); i++) {
            depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
            ASSERT_GE(depth, 0) << name;
            EXPECT_TRUE(text[i] != '$' || text[i + 1] == 'r' || isdigit(text[i + 1])) << name;
        }
        EXPECT_EQ(depth, 0) << name;
        EXPECT_EQ(text.back(), '\n') << name;
    }
}

TEST(Intrinsics, TemplatesAreWellFormed) {
    expect_well_formed(intrinsic_templates());
    expect_well_formed(warpgroup_templates());
}

}  // namespace
}  // namespace heed::cuda
