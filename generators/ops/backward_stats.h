#pragma once
// What gradients of attention know of a row of queries beforehand: lse in log2 and delta = dout . out. Rows that see no
// key, and rows after a sequence's last one, have an lse under which every weight is 0. From that, dsink.

#include "generators/attention/backward_rows.h"
#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/common/device_memory.h"
#include "generators/contract/cuda_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(BackwardStatsDeviceArguments, HEED_CUDA_BACKWARD_STATS)

struct BackwardStatsDevice : BackwardStatsDeviceArguments, Results {
    Halide::Var row{"row"};
    Halide::RDom over_d;
    Halide::Func lse_of{"lse_of"}, sees{"sees"}, delta{"delta"};  // (row)
    Halide::RDom all;                                             // lane of a warp, row of stats

    explicit BackwardStatsDevice(ElementType type)
        : BackwardStatsDeviceArguments({type}), over_d(0, head_dim, "over_d"),
          all(0, 32, 0, batch * num_heads * stat_rows, "all") {
        const Place at = place_of(row);
        const Expr exists = at.row < table_field(at.sequence, sequence_q_len, max_q_len),
                   token = table_field(at.sequence, sequence_first_q, 0) + at.row;
        const auto row_of = [&](const Expr &first, const Expr &b, const Expr &t, const Expr &h) {
            return after(after(after(first, at.sequence, b), token, t), at.head, h);
        };
        lse_of(row) = load_at_if(exists, Halide::Float(32), row_of(lse, lse_batch, lse_token, lse_head), 0);
        sees(row) = exists && !is_negative_infinity(lse_of(row));
        over_d.where(sees(row));
        const auto element = [&](const Expr &first) {
            return float_at(type, row_of(first, out_batch, out_token, out_head), over_d);
        };
        delta(row) += element(out) * select(has_delta(element(out)), element(dout), 0.f);

        const Expr r = all.y, of_lse = select(sees(r), lse_of(r) * log2_e, backward_no_key);
        // No select by lane: Halide would compute delta in the lanes alone that it is for, and all must exchange it.
        const Expr to = after(stats, r, Expr(backward_stat_bytes)), is_first = all.x == 0;
        add(store_at_if(is_first, to, 0, of_lse) + store_at_if(is_first, to, 1, delta(r)));
    }

private:
    using Expr = Halide::Expr;

    struct Place {
        Expr sequence, head, row;
    };
    Place place_of(const Expr &number) const {
        const Expr line = number / stat_rows, sequence = line / num_heads;
        return {sequence, line - sequence * num_heads, number - line * stat_rows};
    }

    Expr table_field(const Expr &sequence, SequenceField field, const Expr &of_all) const {
        const Expr on = tasks != Halide::cast<uint64_t>(0);
        return select(on, load_at_if(on, Halide::Int(32), tasks, sequence * num_sequence_fields + field), of_all);
    }
};

HEED_KERNEL_ARGUMENTS(BackwardSinksDeviceArguments, HEED_CUDA_BACKWARD_SINKS)

// A warp adds up every eighth 32 rows of a head, a lane one of them; then the warps' sums are added.
struct BackwardSinksDevice : BackwardSinksDeviceArguments, Results {
    static constexpr int warps = 8;
    Halide::Var copy{"copy"}, warp{"warp"}, head{"head"};
    Halide::RDom over_rows;                 // lane, round, sequence
    Halide::RDom over_warps;                // warp
    Halide::Func of_warp{"of_warp"};        // (warp, head)
    Halide::Func all_copies{"all_copies"};  // (copy, warp, head): in every lane of a warp, the same
    Halide::Func total{"total"};            // (head)
    Halide::RDom all;                       // thread, head

    BackwardSinksDevice()
        : over_rows(0, 32, 0, ceil_div(stat_rows, 32 * warps), 0, batch, "over_rows"),
          over_warps(0, warps, "over_warps"), all(0, 1, 0, num_heads, "all") {
        using Halide::Expr;
        const Expr i = (over_rows.y * warps + warp) * 32 + over_rows.x, bytes = Expr(backward_stat_bytes);
        over_rows.where(i < stat_rows);
        const Expr at = after(after(stats, (over_rows.z * num_heads + head) * stat_rows, bytes), i, bytes);
        const auto stat = [&](int which) { return float_at(ElementType::f32, at, which); };
        const Expr of_sink = float_at(ElementType::f32, sink, head);
        of_warp(warp, head) += exp2_on_device(fused_on_device(of_sink, log2_e, -stat(0))) * stat(1);
        all_copies(copy, warp, head) = of_warp(warp, head);
        total(head) += all_copies(0, over_warps, head);
        add(store_at(dsink, all.y, 0.f - total(all.y)));
    }
};

}  // namespace heed
