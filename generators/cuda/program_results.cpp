// What a row's state makes of it: out and lse.
#include "generators/attention/logits.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

Expr ProgramBuilder::some_result_is_nan() {
    Registers found = code.registers("nan_found", Int(32), 1);
    code.set(found, 0, 0);
    for (int i = 0; i < 4 * out_tiles; i++) {
        Expr magnitude = reinterpret<int32_t>(sum_so_far(i)) & 0x7fffffff;
        code.set(found, 0, found[0] | cast<int32_t>(magnitude > 0x7f800000));
    }
    return code.let("nan_found", found[0]);
}

void ProgramBuilder::store_results() {
    for (int r = 0; r < rows_of_thread; r++) {
        code.set(row_sum, r, over_quad(row_sum[r], [](const Expr &a, const Expr &b) { return a + b; }));
    }
    Expr pairs = code.let("pairs", cast<int32_t>(in_pairs(in.out)));
    for (int r = 0; r < rows_of_thread; r++) {
        code.when(row(r) < q_len, [&] { store_result(r, pairs); });
    }
}

void ProgramBuilder::store_result(int r, const Expr &pairs) {
    Expr sinks = in.sink.address(), token = first_q + row(r);
    Registers sink = code.registers("sink", Float(32), 1);
    code.set(sink, 0, negative_infinity());
    code.when(sinks != cast<uint64_t>(0),
              [&] { code.set(sink, 0, load_f32(sinks + element_bytes(head, in.sink.stride(0), 4))); });
    const RowResult result = with_sink(row_max[r] * unit, row_sum[r], sink[0]);
    Expr factor = code.let("factor", result.factor()), lse = code.let("lse", result.lse);
    Expr at = row_address(in.out, sequence, head, token) + cast<uint64_t>(quad * 2 * size);
    store_row(r, factor, pairs, code.let("out_row", at));
    code.when(quad == 0, [&] {
        Expr lse_at = in.lse.address() + element_bytes(sequence, in.lse.stride(3), 4) +
                      element_bytes(head, in.lse.stride(1), 4) + element_bytes(token, in.lse.stride(2), 4);
        code.run(store_f32(lse_at, lse));
    });
}

// Whether pairs of elements may be stored at once.
Expr ProgramBuilder::in_pairs(const Tensor &tensor) const {
    Expr strides = tensor.stride(1) | tensor.stride(2) | tensor.stride(3);
    return (cast<uint32_t>(tensor.address()) % (2 * size) + cast<uint32_t>(strides % 2)) == 0;
}

// `at`: of this thread's first column, 2 * quad.
void ProgramBuilder::store_row(int r, const Expr &factor, const Expr &pairs, const Expr &at) {
    auto value = [&](int n, int e) { return out[logit_register(r, n, e)] * factor; };
    auto address = [&](int n, int e) { return at + cast<uint64_t>((n * 8 + e) * size); };
    auto store_elements = [&] {
        for (int n = 0; n < out_tiles; n++) {
            for (int e = 0; e < 2; e++) {
                code.when(quad * 2 + (n * 8 + e) < cfg.head_dim_v,
                          [&] { code.run(store_u16(address(n, e), pack(cfg.dtype, value(n, e), value(n, e)))); });
            }
        }
    };
    if (cfg.head_dim_v != depth_v) {
        store_elements();
        return;
    }
    code.when(
        pairs != 0,
        [&] {
            for (int n = 0; n < out_tiles; n++) {
                code.run(store_u32(address(n, 0), pack(cfg.dtype, value(n, 0), value(n, 1))));
            }
        },
        store_elements);
}

}  // namespace heed::cuda
