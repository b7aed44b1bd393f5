// What a row's state makes of it: out and lse.
#include "generators/attention/logits.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

Expr ProgramBuilder::some_result_is_nan() {
    Registers found = code.registers("nan_found", Int(32), 1);
    code.set(found, 0, 0);
    for (int i = 0; i < 4 * tile.m_tiles * out_tiles; i++) {
        Expr magnitude = reinterpret<int32_t>(sum_so_far(i)) & 0x7fffffff;
        code.set(found, 0, found[0] | cast<int32_t>(magnitude > 0x7f800000));
    }
    return code.let("nan_found", found[0]);
}

// For codes two tiles share 16 columns, in turns.
int ProgramBuilder::column_of_pair(int pair) const { return has_codes ? pair / 2 * 16 + pair % 2 * 2 : pair * 8; }

// Element e of a pair of neighbouring columns, which begins at first_column() + column_of_pair(pair).
Expr ProgramBuilder::result(int r, int pair, int e) const {
    const int n = has_codes ? pair / 2 * 2 + e : pair, of_tile = has_codes ? pair % 2 : e;
    Expr x = out[4 * (r / 2 * result_tiles + n) + r % 2 * 2 + of_tile];
    if (has_codes && tile.key_groups == 1) x = x * value_units[r];
    return cfg.has_dropout ? x * in.dropout_scale : x;
}

void ProgramBuilder::sum_quads() {
    for (int r = 0; r < rows_of_thread(); r++) {
        code.set(row_sum, r, over_quad(row_sum[r], [](const Expr &a, const Expr &b) { return a + b; }));
    }
}

// The warps that share rows leave their states in shared memory; each then makes a part of the columns of their sum.
// Fragments are as the lanes hold them.
void ProgramBuilder::merge_key_groups() {
    constexpr int fragment_bytes = 16, tile_bytes = 32 * fragment_bytes;
    const int warps = tile.row_groups() * tile.column_groups, rows = tile.rows();
    auto row_state = [&](const Expr &key_group, int r) {
        return shared_at + shared.k + (key_group * rows + warp_rows + group + 8 * r) * bytes_of_row_state;
    };
    auto states = [&](const Expr &warp) {
        return shared_at + shared.states + warp * (tile.m_tiles * out_tiles * tile_bytes) + lane * fragment_bytes;
    };
    code.run(barrier());  // K and V are used up
    code.when(quad == 0 && column_group == 0, [&] {
        for (int r = 0; r < rows_of_thread(); r++) {
            code.run(store_shared_u32(row_state(key_group, r), reinterpret<uint32_t>(row_max[r])));
            code.run(store_shared_u32(row_state(key_group, r) + 4, reinterpret<uint32_t>(row_sum[r])));
            if (has_codes) {
                code.run(store_shared_u32(row_state(key_group, r) + 8, reinterpret<uint32_t>(value_units[r])));
            }
        }
    });
    Expr mine = code.let("my_state", states(warp));
    for (int t = 0; t < tile.m_tiles * out_tiles; t++) {
        Expr four = fragment(out[4 * t], out[4 * t + 1], out[4 * t + 2], out[4 * t + 3]);
        code.run(store_shared_fragment(mine + t * tile_bytes, code.let("state", four)));
    }
    code.run(barrier());

    std::vector<std::vector<Expr>> factor(rows_of_thread());
    for (int r = 0; r < rows_of_thread(); r++) {
        auto load = [&](int g, int part) {
            return code.let("of_group", reinterpret<float>(load_shared_u32(row_state(g, r) + 4 * part)));
        };
        std::vector<Expr> maxima;
        for (int g = 0; g < tile.key_groups; g++) maxima.push_back(load(g, 0));
        Expr largest = maxima[0], sum = 0.f;
        for (int g = 1; g < tile.key_groups; g++) largest = maximum(largest, maxima[g]);
        largest = code.let("largest", largest);
        Expr base = code.let("base", select(is_negative_infinity(largest), 0.f, largest));
        for (int g = 0; g < tile.key_groups; g++) {
            factor[r].push_back(code.let("factor", exp2((maxima[g] - base) * unit)));
            sum += load(g, 1) * factor[r][g];
            if (has_codes) factor[r][g] = code.let("factor", factor[r][g] * load(g, 2));
        }
        code.set(row_max, r, largest);
        code.set(row_sum, r, sum);
    }
    Expr parts = code.let("parts", states(warp % warps) + key_group * (result_tiles * tile_bytes));
    for (int m = 0; m < tile.m_tiles; m++) {
        for (int n = 0; n < result_tiles; n++) {
            std::vector<Expr> sums(4, Expr(0.f));
            for (int g = 0; g < tile.key_groups; g++) {
                const int at = ((g * warps * tile.m_tiles + m) * out_tiles + n) * tile_bytes;
                Expr part = code.let("part", load_shared_fragment(parts + at));
                for (int i = 0; i < 4; i++) sums[i] += float_of(part, i) * factor[2 * m + i / 2][g];
            }
            for (int i = 0; i < 4; i++) code.set(out, 4 * (m * result_tiles + n) + i, sums[i]);
        }
    }
}

void ProgramBuilder::store_results() {
    sum_quads();
    if (tile.key_groups > 1) merge_key_groups();
    Expr pairs = code.let("pairs", cast<int32_t>(in_pairs(in.out)));
    for (int r = 0; r < rows_of_thread(); r++) {
        code.when(row(r) < num_rows, [&] {
            if (!cfg.has_gqa) return store_result(r, pairs);
            code.when(
                in.num_splits == 1, [&] { store_result(r, pairs); }, [&] { store_state(r); });
        });
    }
}

void ProgramBuilder::store_result(int r, const Expr &pairs) {
    const Query query = this->query(r);
    Expr sinks = in.sink.address(), token = first_q + query.position;
    Registers sink = code.registers("sink", Float(32), 1);
    code.set(sink, 0, negative_infinity());
    code.when(sinks != cast<uint64_t>(0),
              [&] { code.set(sink, 0, load_f32(sinks + element_bytes(query.head, in.sink.stride(0), 4))); });
    const RowResult result = with_sink(row_max[r] * unit, row_sum[r], sink[0]);
    Expr factor = code.let("factor", result.factor()), lse = code.let("lse", result.lse);
    Expr at = row_address(in.out, sequence, query.head, token, size) + cast<uint64_t>(first_column() * size);
    store_row(r, factor, pairs, code.let("out_row", at));
    code.when(quad == 0 && column_group == 0 && key_group == 0, [&] {
        Expr lse_at = in.lse.address() + element_bytes(sequence, in.lse.stride(3), 4) +
                      element_bytes(query.head, in.lse.stride(1), 4) + element_bytes(token, in.lse.stride(2), 4);
        code.run(store_f32(lse_at, lse));
    });
}

// The state of a split: see kernel.h. Without a key its output is not written, and not read.
void ProgramBuilder::store_state(int r) {
    const Query query = this->query(r);
    Expr at = code.let("state", in.states.address() + element_bytes(sequence, in.states.stride(3), 4) +
                                    element_bytes(first_q + query.position, in.states.stride(2), 4) +
                                    element_bytes(query.head * in.num_splits + split, in.states.stride(1), 4));
    code.when(!is_zero(row_sum[r]), [&] {
        for (int n = 0; n < result_tiles; n++) {
            Expr column = first_column() + column_of_pair(n);
            code.when(column < head_dim_v, [&] {
                code.run(store_two_f32(at + cast<uint64_t>(column * 4), result(r, n, 0), result(r, n, 1)));
            });
        }
    });
    code.when(quad == 0 && column_group == 0 && key_group == 0, [&] {
        Expr maximum_at = at + element_bytes(in.states.extent(0) - 2, 1, 4);
        code.run(store_two_f32(maximum_at, row_max[r] * unit, row_sum[r]));
    });
}

// Whether pairs of elements may be stored at once.
Expr ProgramBuilder::in_pairs(const Tensor &tensor) const {
    Expr strides = tensor.stride(1) | tensor.stride(2) | tensor.stride(3);
    return (cast<uint32_t>(tensor.address()) % (2 * size) + cast<uint32_t>(strides % 2)) == 0;
}

Expr ProgramBuilder::first_column() const {
    return column_group * (8 * out_tiles) + key_group * (8 * result_tiles) + quad * (has_codes ? 4 : 2);
}

// `at`: of this thread's first column.
void ProgramBuilder::store_row(int r, const Expr &factor, const Expr &pairs, const Expr &at) {
    auto value = [&](int n, int e) { return result(r, n, e) * factor; };
    auto address = [&](int n, int e) { return at + cast<uint64_t>((column_of_pair(n) + e) * size); };
    auto store_elements = [&] {
        for (int n = 0; n < result_tiles; n++) {
            for (int e = 0; e < 2; e++) {
                code.when(first_column() + (column_of_pair(n) + e) < head_dim_v,
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
            for (int n = 0; n < result_tiles; n++) {
                code.run(store_u32(address(n, 0), pack(cfg.dtype, value(n, 0), value(n, 1))));
            }
        },
        store_elements);
}

}  // namespace heed::cuda
