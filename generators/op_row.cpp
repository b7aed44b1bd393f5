#include "op_row.h"

#include "bf16_dots.h"
#include "bf16_tiles.h"
#include "cuda_row.h"
#include "ops.h"
#include "options.h"
#include "prefetch_rows.h"

namespace heed {
namespace {

// Of attention_backward: the next block of query rows, which lies behind this one, and its dq. As words a block lies
// there twice, and the loops read the second one.
std::vector<PrefetchRows::Ahead> next_queries(bool are_words) {
    const auto block = [](const std::string &rows) {
        return PrefetchRows::stride(rows) * Halide::Internal::Variable::make(Halide::Int(32), rows + ".extent.2");
    };
    if (!are_words) {
        return {{"q", "q", block("q")}, {"q", "dq_before", block("q")}, {"dout", "dout", block("dout")}};
    }
    std::vector<PrefetchRows::Ahead> ahead;
    for (const int half : {1, 2}) {
        ahead.push_back({"q_pairs", "q_pairs", half * block("q_pairs")});
        ahead.push_back({"q_pairs", "dq_before", (half + 1) * block("q_pairs")});
        ahead.push_back({"dout_pairs", "dout_pairs", half * block("dout_pairs")});
    }
    return ahead;
}

template <typename Kernel>
Halide::Module compile(const OpRow &row, Kernel kernel, void (*schedule)(Kernel &, const Machine &)) {
    schedule(kernel, machine_of(row.target));
    LowerBf16Tiles tiles;
    LowerBf16Dots dots;
    Halide::Pipeline pipeline = kernel.pipeline();
    PrefetchRows prefetch({"dk_tile.s1", "dv_tile.s1"}, next_queries(row.dtype == "bf16"));
    if (row.op == "attention_backward" && row.isa != "amx") pipeline.add_custom_lowering_pass(&prefetch, [] {});
    if (row.isa == "amx") pipeline.add_custom_lowering_pass(&tiles, [] {});
    pipeline.add_custom_lowering_pass(&dots, [] {});
    Halide::Module module = pipeline.compile_to_module(kernel.arguments(), row.name, row.target);
    const int products = row.isa != "amx" ? 0 : row.op == "linear" ? 1 : row.op == "attention_backward" ? 5 : 0;
    if (tiles.lowered != products) {
        throw BadInput(std::to_string(tiles.lowered) + " of the " + std::to_string(products) + " products of " +
                       row.name + " became matrix tiles");
    }
    return module;
}

}  // namespace

bool OpRow::is_cuda_only() const {
    for (const char *name : {"add", "clip", "clip_gradient", "column_sums", "copy_rows", "key_padding", "kv_copy",
                             "layer_norm_gradient", "put_words", "sequences", "transpose"}) {
        if (op == name) return true;
    }
    return op.rfind("attention_backward_", 0) == 0;
}

std::string OpRow::error() const {
    const bool codes = kv_dtype == "i8";
    const std::string wanted_kv = op == "kv_append" ? "i8" : dtype;
    if (kv_dtype != wanted_kv && !(op == "attention_probs" && codes)) {
        return "kv_dtype = '" + kv_dtype + "' is not allowed with op=" + op + ": " + wanted_kv;
    }
    if (is_cuda_isa(isa) ? !has_cuda_op(kernel(), isa, codes) : is_cuda_only())
        return "isa = '" + isa + "' is not allowed with op=" + op;
    if (isa == "sm80" && dtype == "f32") return "dtype = f32 is not allowed with isa=sm80: f16, bf16";
    if ((is_linear() && !is_cuda_isa(isa)) != (rows > 0) || (isa == "amx" ? rows % 16 != 0 || rows > 32 : rows > 12))
        return "rows = " + std::to_string(rows) + " is not allowed with op=" + op + ", isa=" + isa;
    const bool has_words = op == "attention_backward" && has_bf16_dots(isa);
    if (has_bf16_dots(isa) && ((!is_linear() && !has_words) || dtype != "bf16")) {
        return "isa = '" + isa + "' is not allowed with op=" + op + ", dtype=" + dtype;
    }
    if (op == "attention_backward" && !is_cuda_isa(isa) && dtype != (has_words ? "bf16" : "f32"))
        return "dtype = " + dtype + " is not allowed with op=" + op + ", isa=" + isa;
    const bool bytes = op == "dropout_mask" || op == "key_padding" || op == "kv_copy",
               words = op == "put_words" || op == "sequences";
    if (bytes != (dtype == "u8") || words != (dtype == "i32"))
        return "dtype = '" + dtype + "' is not allowed with op=" + op;
    return "";
}

std::string OpRow::registry_line() const {
    int tile_rows = rows, columns = rows > 0 ? linear_tile(machine_of(target), rows).columns : 0;
    if (op == "attention_backward" && !is_cuda_isa(isa)) {
        tile_rows = has_bf16_dots(isa) ? BackwardTilesBlock::queries : BackwardTile::queries;
        columns = has_bf16_dots(isa) ? BackwardTilesBlock::keys : BackwardTile::keys;
    }
    if (head_dim > 0) columns = head_dim;
    return "HEED_OP(" + name + ", " + op + ", " + dtype + ", " + kv_dtype + ", " + isa + ", " +
           std::to_string(tile_rows) + ", " + std::to_string(columns) + ")\n";
}

Halide::Module compile_op(const OpRow &row) {
    const ElementType type = row.dtype == "f16"    ? ElementType::f16
                             : row.dtype == "bf16" ? ElementType::bf16
                                                   : ElementType::f32;
    const ElementType kv_type = row.kv_dtype == "i8" ? ElementType::i8 : type;
    if (row.op == "attention_backward" && has_bf16_dots(row.isa)) {
        return compile(row, AttentionBackwardTilesKernel(),
                       row.isa == "amx" ? schedule_attention_backward_amx : schedule_attention_backward_dots_x86);
    }
    if (row.op == "attention_backward") {
        return compile(row, AttentionBackwardKernel(backward_tile(machine_of(row.target))),
                       schedule_attention_backward_x86);
    }
    if (row.op == "attention_probs") {
        return compile(row, AttentionProbsKernel(type, kv_type), schedule_attention_probs_x86);
    }
    const LinearTile tile = linear_tile(machine_of(row.target), row.rows);
    if (row.op == "linear") return compile(row, LinearKernel(type, tile), schedule_linear_x86);
    if (row.op == "linear_rows") return compile(row, LinearRowsKernel(type, tile), schedule_linear_rows_x86);
    if (row.op == "layer_norm") return compile(row, LayerNormKernel(type), schedule_layer_norm_x86);
    if (row.op == "rope") return compile(row, RopeKernel(type), schedule_rope_x86);
    if (row.op == "kv_append") return compile(row, KvAppendKernel(type), schedule_kv_append_x86);
    if (row.op == "merge_states") return compile(row, MergeStatesKernel(type), schedule_merge_states_x86);
    return compile(row, DropoutMaskKernel(), schedule_dropout_mask_x86);
}

}  // namespace heed
