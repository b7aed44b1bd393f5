// What a row's state makes of it: out and lse.
#include "../score_mod.h"
#include "prefill_builder.h"

namespace heed::cuda {

using namespace Halide;

Expr PrefillBuilder::some_result_is_nan() {
    Registers found = code.registers("nan_found", Int(32), 1);
    code.set(found, 0, 0);
    for (int i = 0; i < 4 * tile.m_tiles * out_tiles; i++) {
        Expr magnitude = reinterpret<int32_t>(out[i]) & 0x7fffffff;
        code.set(found, 0, found[0] | cast<int32_t>(magnitude > 0x7f800000));
    }
    return code.let("nan_found", found[0]);
}

void PrefillBuilder::store_results() {
    Expr sinks = in.sink.address();
    Registers sink = code.registers("sink", Float(32), 1);
    code.set(sink, 0, negative_infinity());
    code.when(sinks != cast<uint64_t>(0),
              [&] { code.set(sink, 0, load_f32(sinks + element_bytes(head, in.sink.stride(0), 4))); });
    Expr pairs = code.let("pairs", cast<int32_t>(in_pairs(in.out)));
    for (int r = 0; r < rows_of_thread(); r++) {
        Expr sum = over_quad(row_sum[r], [](const Expr &a, const Expr &b) { return a + b; });
        Expr largest = row_max[r] * unit;
        const RowResult result = with_sink(largest, code.let("sum", sum), sink[0]);
        Expr factor = code.let("factor", result.factor()), lse = code.let("lse", result.lse);
        Expr token = first_q + row(r);
        code.when(row(r) < q_len, [&] {
            store_row(r, factor, pairs,
                      code.let("out_row",
                               row_address(in.out, sequence, head, token) + cast<uint64_t>(first_column() * size)));
            code.when(quad == 0 && column_group == 0, [&] {
                Expr at = in.lse.address() + element_bytes(sequence, in.lse.stride(3), 4) +
                          element_bytes(head, in.lse.stride(1), 4) + element_bytes(token, in.lse.stride(2), 4);
                code.run(store_f32(at, lse));
            });
        });
    }
}

// Two floats as 16-bit elements. Chips before sm_80 have no instruction for it.
Expr PrefillBuilder::packed(const Expr &low, const Expr &high) const {
    if (tile.tensor_cores) return pack(cfg.dtype, low, high);
    auto bits = [&](const Expr &x) { return cast<uint32_t>(from_float(cfg.dtype, x)); };
    return bits(low) | bits(high) << 16;
}

// Whether pairs of elements may be stored at once.
Expr PrefillBuilder::in_pairs(const Tensor &tensor) const {
    Expr strides = tensor.stride(1) | tensor.stride(2) | tensor.stride(3);
    return (cast<uint32_t>(tensor.address()) % (2 * size) + cast<uint32_t>(strides % 2)) == 0;
}

void PrefillBuilder::store_pair(const Expr &at, const Expr &first, const Expr &second) {
    if (size == 4) {
        code.run(store_two_f32(at, first, second));
    } else {
        code.run(store_u32(at, packed(first, second)));
    }
}

void PrefillBuilder::store_element(const Expr &at, const Expr &value) {
    code.run(size == 4 ? store_f32(at, value) : store_u16(at, packed(value, value)));
}

Expr PrefillBuilder::first_column() const { return column_group * (8 * out_tiles) + quad * 2; }

// `at`: of this thread's first column.
void PrefillBuilder::store_row(int r, const Expr &factor, const Expr &pairs, const Expr &at) {
    auto value = [&](int n, int e) { return out[4 * out_index(r / 2, n) + r % 2 * 2 + e] * factor; };
    auto address = [&](int n, int e) { return at + cast<uint64_t>((8 * n + e) * size); };
    auto store_elements = [&] {
        for (int n = 0; n < out_tiles; n++) {
            for (int e = 0; e < 2; e++) {
                code.when(first_column() + (8 * n + e) < head_dim_v,
                          [&] { store_element(address(n, e), value(n, e)); });
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
            for (int n = 0; n < out_tiles; n++) store_pair(address(n, 0), value(n, 0), value(n, 1));
        },
        store_elements);
}

}  // namespace heed::cuda
