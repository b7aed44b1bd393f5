// heed_linear and its weights: checks of the caller's arguments.
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <new>

#include "runtime/float_environment.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/rope_call.h"
#include "runtime/ranges.h"

namespace heed {
namespace {

heed_status check_weight(heed_dtype dtype, int32_t dim_in, int32_t dim_out, const heed_tensor &weight, int64_t stride,
                         const heed_tensor *bias) {
    const Shape shape = {{1, 1, dim_out, dim_in}};
    View view;
    if (stride < dim_in) {
        return fail(HEED_INVALID_ARGUMENT, "row_stride is %" PRId64 "; it must be 0 or at least dim_in, which is %d",
                    stride, dim_in);
    }
    heed_status status = make_view("weight", shape, heed_layout{{0, 0, stride, 1}}, Access::read, &view);
    MemoryRanges ranges;
    if (!status) status = ranges.add("weight", weight, dtype, view.span, Access::read);
    if (!status && bias != nullptr) status = ranges.add("bias", *bias, dtype, dim_out, Access::read);
    return status;
}

// The call's private copy of an entry of outs.
struct Piece {
    heed_linear_out out;
    heed_rope_tables tables;  // when out.rope is not NULL
    View view;
    RopeCall rope;
    char name[32];  // outs[i]
};

// Kernels step from row to row with 32 bits.
heed_status check_row_strides(const char *name, const View &view) {
    for (int i = 0; i < 2; i++) {
        if (view.stride[i] <= INT32_MAX || (i == 0 && view.extent[1] > 1)) continue;
        return fail(HEED_UNSUPPORTED, "%s's stride[%d] is %" PRId64 "; rows must be less than 2^31 elements apart",
                    name, i, view.stride[i]);
    }
    return HEED_OK;
}

heed_status check_piece(const heed_linear_args &a, int32_t index, Piece *piece) {
    *piece = {};
    const heed_linear_out &out = piece->out = a.outs[index];
    if (out.rope != nullptr) piece->tables = *out.rope;
    std::snprintf(piece->name, sizeof(piece->name), "outs[%d]", index);
    char field[64];
    std::snprintf(field, sizeof(field), "%s.num_heads", piece->name);
    heed_status status = check_int(field, out.num_heads, 1, INT32_MAX);
    std::snprintf(field, sizeof(field), "%s.head_dim", piece->name);
    if (!status) status = check_int(field, out.head_dim, 1, INT32_MAX);
    const Shape shape = {{a.batch, a.len, out.num_heads, out.head_dim}};
    if (!status) status = make_view(piece->name, shape, out.layout, Access::write, &piece->view);
    return status ? status : check_row_strides(piece->name, piece->view);
}

heed_status check_disjoint(const Piece &a, const Piece &b, int64_t bytes) {
    const auto begin_a = reinterpret_cast<intptr_t>(a.out.out.data),
               begin_b = reinterpret_cast<intptr_t>(b.out.out.data);
    if (begin_a + a.view.span * bytes <= begin_b || begin_b + b.view.span * bytes <= begin_a) return HEED_OK;
    if ((begin_b - begin_a) % bytes == 0 && interleave(a.view, b.view, (begin_b - begin_a) / bytes)) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT,
                "%s overlaps %s; pieces may only interleave, along one dimension of equal strides", a.name, b.name);
}

heed_rope_args rope_of(const heed_linear_args &a, heed_dtype dtype, const Piece &piece) {
    heed_rope_args rope = {};
    rope.struct_size = sizeof(rope);
    rope.dtype = dtype;
    rope.batch = a.batch;
    rope.len = a.len;
    rope.num_heads = piece.out.num_heads;
    rope.head_dim = piece.out.head_dim;
    rope.x = rope.out = piece.out.out;
    rope.x_layout = rope.out_layout = piece.out.layout;
    rope.tables = piece.tables;
    rope.execution = a.execution;
    return rope;
}

// Rotations read their tables when all pieces have been written.
heed_status check_tables_apart(const heed_rope_args &rope, const Piece &written) {
    MemoryRanges ranges;
    Rotation ignored;
    const int64_t num_tokens = int64_t{rope.batch} * rope.len;
    const int64_t table_rows = rope.tables.positions != nullptr ? rope.tables.max_position : num_tokens;
    heed_status status = add_workspace(rope.execution, &ranges);
    if (!status) status = ranges.add(written.name, written.out.out, rope.dtype, written.view.span, Access::write);
    return status ? status
                  : make_rotation("tables", rope.execution.device, rope.tables, rope.dtype, rope.head_dim, table_rows,
                                  num_tokens, &ranges, &ignored);
}

// Piece i of the call, against x, the workspace and the pieces before it.
heed_status take_piece(const heed_linear_weights &w, const heed_linear_args &a, const View &x, int32_t i,
                       HeapArray<Piece> *pieces) {
    Piece &piece = (*pieces)[i];
    heed_status status = check_piece(a, i, &piece);
    MemoryRanges ranges;
    if (!status) status = add_workspace(a.execution, &ranges);
    if (!status) status = ranges.add(piece.name, piece.out.out, w.dtype, piece.view.span, Access::write);
    if (!status) status = ranges.add("x", a.x, w.dtype, x.span, Access::read);
    for (int32_t j = 0; !status && j < i; j++) status = check_disjoint((*pieces)[j], piece, dtype_bytes(w.dtype));
    if (!status && piece.out.rope != nullptr) status = prepare_rope(rope_of(a, w.dtype, piece), &piece.rope);
    return status;
}

// All pieces of the call, and that they have the weights' columns.
heed_status take_pieces(const heed_linear_weights &w, const heed_linear_args &a, const View &x,
                        HeapArray<Piece> *pieces, HeapArray<LinearPiece> *run) {
    int64_t columns = 0;
    for (int32_t i = 0; i < a.num_outs && columns <= w.dim_out; i++) {
        if (const heed_status status = take_piece(w, a, x, i, pieces)) return status;
        const Piece &piece = (*pieces)[i];
        (*run)[i] = {&w, static_cast<int32_t>(columns), piece.out.out.data, piece.view, no_clip};
        columns += int64_t{piece.out.num_heads} * piece.out.head_dim;
    }
    if (columns == w.dim_out) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "the pieces of outs have %" PRId64 " columns%s; the weights have %d", columns,
                columns > w.dim_out ? " or more" : "", w.dim_out);
}

heed_status linear(const heed_linear_weights &w, const heed_linear_args &a) {
    const Backend &backend = backend_of(a.execution.device);
    OpMemory memory = backend.list_memory(a.execution);
    HeapArray<Piece> pieces;
    HeapArray<LinearPiece> run;
    HeapArray<float> scratch;
    View x;
    heed_status status = make_view("x", Shape{{a.batch, a.len, 1, w.dim_in}}, a.x_layout, Access::read, &x);
    if (!status) status = check_row_strides("x", x);
    if (!status) status = pieces.allocate("heed_linear", a.num_outs);
    if (!status) status = run.allocate("heed_linear", a.num_outs);
    if (!status) status = take_pieces(w, a, x, &pieces, &run);
    if (status || x.span == 0) return status;
    for (int32_t i = 0; i < a.num_outs; i++) {
        for (int32_t j = 0; !status && pieces[i].out.rope != nullptr && j < a.num_outs; j++) {
            status = check_tables_apart(rope_of(a, w.dtype, pieces[i]), pieces[j]);
        }
    }
    const LinearCall call = {"heed_linear", a.x.data, x, run.data(), a.num_outs, &a.execution};
    const int32_t threads = op_threads(&a.execution, std::numeric_limits<double>::infinity());
    const int64_t floats = backend.linear_scratch(w, int64_t{a.batch} * a.len, threads);
    if (!status && floats > 0) status = scratch.allocate("heed_linear", floats, &memory);
    if (!status) status = backend.linear(call, scratch.data());
    for (int32_t i = 0; !status && i < a.num_outs; i++) {
        if (pieces[i].out.rope != nullptr) status = run_rope(rope_of(a, w.dtype, pieces[i]), pieces[i].rope);
    }
    return status;
}

// Makes weights of what the caller gives, once that is checked: fill(source, weights to be filled).
template <typename Fill>
heed_status new_weights(const char *name, heed_dtype dtype, int32_t dim_in, int32_t dim_out, const heed_tensor *weight,
                        int64_t row_stride, const heed_tensor *bias, heed_linear_weights **weights, const Fill &fill) {
    const DefaultFloatEnvironment environment;
    const int64_t stride = row_stride == 0 ? dim_in : row_stride;
    heed_status status = check_given(name, "weights", weights);
    if (!status) *weights = nullptr;
    if (!status) status = check_given(name, "weight", weight);
    if (!status) status = check_float_dtype("dtype", dtype);
    if (!status) status = check_int("dim_in", dim_in, 1, INT32_MAX);
    if (!status) status = check_int("dim_out", dim_out, 1, INT32_MAX);
    if (!status) status = check_weight(dtype, dim_in, dim_out, *weight, stride, bias);
    if (status) return status;
    std::unique_ptr<heed_linear_weights> made(new (std::nothrow) heed_linear_weights());
    if (made == nullptr) return fail(HEED_OUT_OF_MEMORY, "%s: out of memory", name);
    const auto rows = WeightSource::row_major(weight->data, dim_in, dim_out, stride);
    status = fill(LinearSource{dtype, dim_in, dim_out, rows, bias == nullptr ? nullptr : bias->data}, made.get());
    if (!status) *weights = made.release();
    return status;
}

}  // namespace
}  // namespace heed

extern "C" {

heed_status heed_linear_pack(heed_dtype dtype, int32_t dim_in, int32_t dim_out, const heed_tensor *weight,
                             int64_t row_stride, const heed_tensor *bias, heed_linear_weights **weights) {
    constexpr const char *name = "heed_linear_pack";
    const auto pack = [](const heed::LinearSource &source, heed_linear_weights *w) {
        return heed::pack_linear(name, source, w);
    };
    return heed::new_weights(name, dtype, dim_in, dim_out, weight, row_stride, bias, weights, pack);
}

heed_status heed_linear_on_device(heed_dtype dtype, int32_t dim_in, int32_t dim_out, const heed_tensor *weight,
                                  int64_t row_stride, const heed_tensor *bias, heed_linear_weights **weights) {
    const auto refer = [](const heed::LinearSource &source, heed_linear_weights *w) {
        heed::refer_to(source, w);
        return HEED_OK;
    };
    return heed::new_weights("heed_linear_on_device", dtype, dim_in, dim_out, weight, row_stride, bias, weights, refer);
}

void heed_linear_weights_destroy(heed_linear_weights *weights) { delete weights; }

heed_status heed_linear(const heed_linear_weights *weights, const heed_linear_args *args) {
    const heed::DefaultFloatEnvironment environment;
    heed_status status = heed::check_given("heed_linear", "weights", weights);
    if (!status) status = heed::check_given("heed_linear", "args", "heed_linear_args", args);
    if (status) return status;
    const heed_linear_args a = *args;
    status = heed::check_execution(&a.execution);
    if (!status) status = heed::check_int("batch", a.batch, 0, INT32_MAX);
    if (!status) status = heed::check_int("len", a.len, 0, INT32_MAX);
    if (!status) status = heed::check_int("num_outs", a.num_outs, 1, INT32_MAX);
    if (!status && a.outs == nullptr) status = heed::fail(HEED_INVALID_ARGUMENT, "outs is NULL");
    if (!status && a.execution.device != weights->device) {
        status =
            heed::fail(HEED_INVALID_ARGUMENT,
                       "execution.device is %s; the weights are for %s (on CUDA they come from heed_linear_on_device)",
                       heed::device_name(a.execution.device), heed::device_name(weights->device));
    }
    return status ? status : heed::linear(*weights, a);
}

}  // extern "C"
