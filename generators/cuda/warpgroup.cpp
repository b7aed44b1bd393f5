#include "generators/cuda/warpgroup.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int most_columns = 256;
const char *const score_register = "heed_s", *const sum_register = "heed_o", *const weight_register = "heed_w";

// Reads or writes memory or registers of the kernel: stays where it is.
Expr ordered(const std::string &name, Type type, const std::vector<Expr> &args) {
    return Internal::Call::make(type, name, args, Internal::Call::Extern);
}

std::string of_width(const std::string &name, const std::string &type, int columns) {
    return "heed_" + name + "_" + type + "_" + std::to_string(columns);
}

std::string of_width(const char *name, ElementType type, int columns) {
    return of_width(name, type == ElementType::bf16 ? "bf16" : "f16", columns);
}

std::string registers(const std::string &name, int first, int count) {
    std::string list;
    for (int i = first; i < first + count; i++) list += (i == first ? "" : ", ") + name + std::to_string(i);
    return "{" + list + "}";
}

std::string product(const std::string &type, int columns, const std::string &sums) {
    return "wgmma.mma_async.sync.aligned.m64n" + std::to_string(columns) + "k16.f32." + type + "." + type + " " +
           registers(sums, 0, columns / 2) + ", ";
}

std::string scores_template(const std::string &type, int columns, bool first) {
    return "{\n.reg .pred more;\nsetp.ne.b32 more, " + std::string(first ? "0" : "1") + ", 0;\n" +
           product(type, columns, score_register) + "$0, $1, more, 1, 1, 0, 0;\n}\n";
}

// A product whose first matrix is the weights adds to the sums in these registers, or overwrites them.
std::string weights_template(const std::string &type, int columns, int first_term, const char *sums, bool adds) {
    return "{\n.reg .pred more;\nsetp.ne.b32 more, " + std::string(adds ? "1" : "0") + ", 0;\n" +
           product(type, columns, sums) + registers(weight_register, first_term / 4, 4) + ", $0, more, 1, 1, 1;\n}\n";
}

std::string of_terms(const char *name, const std::string &type, int columns, int first_term) {
    return of_width(name, type, columns) + "_" + std::to_string(first_term);
}
std::string of_terms(const char *name, ElementType type, int columns, int first_term) {
    return of_terms(name, type == ElementType::bf16 ? "bf16" : "f16", columns, first_term);
}

}  // namespace

Expr chunk_in_panels(const Expr &row, const Expr &chunk, int rows) {
    constexpr int of_row = panel_row_bytes / 16;
    return (chunk / of_row * rows + row) * of_row + ((chunk % of_row) ^ (row % of_row));
}

Expr matrix_descriptor(const Expr &address, int next_panel) {
    constexpr uint64_t next_eight_rows = 8 * panel_row_bytes / 16, swizzle_of_128 = 1;
    const uint64_t layout = static_cast<uint64_t>(next_panel / 16) << 16 | next_eight_rows << 32 | swizzle_of_128 << 62;
    return cast<uint64_t>(cast<uint32_t>(address) >> 4) | Internal::make_const(UInt(64), static_cast<int64_t>(layout));
}

Expr multiply_scores(ElementType type, int columns, const Expr &a, const Expr &b, bool first) {
    return ordered(of_width(first ? "first_scores" : "more_scores", type, columns), Int(32), {a, b});
}
Expr multiply_sums(ElementType type, int columns, int first_term, const Expr &b) {
    return ordered(of_terms("more_sums", type, columns, first_term), Int(32), {b});
}
Expr multiply_counts(ElementType type, int columns, int first_term, const Expr &b) {
    return ordered(of_terms("counts", type, columns, first_term), Int(32), {b});
}
Expr begin_products() { return ordered("heed_begin_products", Int(32), {}); }
Expr commit_products() { return ordered("heed_commit_products", Int(32), {}); }
Expr wait_products(int groups) { return ordered("heed_wait_products_" + std::to_string(groups), Int(32), {}); }

Expr score(int i) { return ordered("heed_score_" + std::to_string(i), Float(32), {}); }
Expr sum(int i) { return ordered("heed_sum_" + std::to_string(i), Float(32), {}); }
Expr set_sum(int i, const Expr &value) { return ordered("heed_set_sum_" + std::to_string(i), Int(32), {value}); }

Expr set_weights(int i, const Expr &pair) { return ordered("heed_set_weights_" + std::to_string(i), Int(32), {pair}); }

Expr copies_for_products() { return ordered("heed_copies_for_products", Int(32), {}); }

namespace {

std::map<std::string, std::string> make_templates_of_warpgroups() {
    std::map<std::string, std::string> all = {{"heed_begin_products", "wgmma.fence.sync.aligned;\n"},
                                              {"heed_commit_products", "wgmma.commit_group.sync.aligned;\n"},
                                              {"heed_wait_products_0", "wgmma.wait_group.sync.aligned 0;\n"},
                                              {"heed_wait_products_1", "wgmma.wait_group.sync.aligned 1;\n"},
                                              {"heed_copies_for_products", "fence.proxy.async.shared::cta;\n"}};
    for (const char *type : {"f16", "bf16"}) {
        for (int columns = 8; columns <= most_columns; columns += 8) {
            all[of_width("first_scores", type, columns)] = scores_template(type, columns, true);
            all[of_width("more_scores", type, columns)] = scores_template(type, columns, false);
            for (int term = 0; term < most_columns; term += 16) {
                all[of_terms("more_sums", type, columns, term)] =
                    weights_template(type, columns, term, sum_register, true);
                if (columns > panel_columns) continue;
                all[of_terms("counts", type, columns, term)] =
                    weights_template(type, columns, term, score_register, term > 0);
            }
        }
    }
    for (int i = 0; i < most_columns / 2; i++) {
        const std::string n = std::to_string(i);
        all["heed_score_" + n] = "mov.b32 $r, " + (score_register + n) + ";\n";
        all["heed_sum_" + n] = "mov.b32 $r, " + (sum_register + n) + ";\n";
        all["heed_set_sum_" + n] = "mov.b32 " + (sum_register + n) + ", $0;\n";
        all["heed_set_weights_" + n] = "mov.b32 " + (weight_register + n) + ", $0;\n";
    }
    return all;
}

}  // namespace

const std::map<std::string, std::string> &warpgroup_templates() {
    static const std::map<std::string, std::string> templates = make_templates_of_warpgroups();
    return templates;
}

std::string warpgroup_registers() {
    const std::string count = "<" + std::to_string(most_columns / 2) + ">;\n";
    return ".reg .f32 " + (score_register + count) + ".reg .f32 " + (sum_register + count) + ".reg .b32 " +
           (weight_register + count);
}

}  // namespace heed::cuda
