// Tiles of gradients in floats, for tensors of any type.
#include "runtime/cpu/backward_keys.h"
#include "runtime/view.h"

namespace heed {
namespace {

struct FloatScratch {
    float *k_, *k_lanes_, *v_lanes_, *grads_[2];

    FloatScratch(const heed_problem &p, const BackwardLayout &layout, Parts *scratch) {
        const int64_t keys = layout.tile->columns;
        scratch->take(keys * layout.head_dim, &k_);
        scratch->take(keys * p.head_dim, &k_lanes_);
        scratch->take(keys * p.head_dim_v, &v_lanes_);
        for (float *&tile : grads_) scratch->take(keys * layout.tile->rows, &tile);
    }
};

class FloatTiles : public BackwardKeys, private FloatScratch {
public:
    FloatTiles(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, Parts *scratch)
        : BackwardKeys(call, sequence, task, scratch, false), FloatScratch(p_, layout_, scratch) {}

private:
    bool nonfinite_keys_ = false;

    KernelBuffer lanes_of(float *data, int32_t elements) const {
        constexpr int32_t chunk = backward_chunk;
        return packed_buffer(data, HEED_F32, {chunk, elements, keys_ / chunk});
    }

    int load_keys(int32_t key, char (&message)[512]) override {
        const ProblemViews &views = call_.plan.views;
        bool finite = true, any = true;
        const int code =
            load_chunks(call_, rows_at(call_.args.k, views.k, key, p_.head_dim), nullptr,
                        chunked_buffer(k_, layout_.head_dim, keys_), lanes_of(k_lanes_, p_.head_dim), &finite, message);
        nonfinite_keys_ = !finite;
        if (code != 0) return code;
        return load_chunks(call_, rows_at(call_.args.v, views.v, key, p_.head_dim_v), nullptr, {},
                           lanes_of(v_lanes_, p_.head_dim_v), &any, message);
    }

    int call_tile(int32_t head, int32_t row, int32_t key, char (&message)[512]) override {
        const int64_t first = packed_row(head, row);
        const bool wants_bias = call_.gradients.dbias.data != nullptr;  // of every logit
        const int32_t num_rows = static_cast<int32_t>(last_row(row)) + 1 - row,
                      num_keys = wants_bias ? count_at(key) : seen_at(row, key);
        const auto rows = static_cast<int32_t>(round_up(num_rows, backward_row_unit)),
                   key_rows = static_cast<int32_t>(round_up(num_keys, backward_row_unit)),
                   columns = static_cast<int32_t>(round_up(key_rows, backward_chunk));
        const auto rows_of = [&](int64_t at, int32_t elements) {
            return chunked_buffer(call_.at<float>(at) + first * elements, elements, queries_);
        };
        const auto grads_of = [&](float *data) { return KernelBuffer{data, HEED_F32, 2, {columns, rows}, {1, keys_}}; };
        const auto written = [](KernelBuffer buffer, int32_t extent) {
            buffer.extent[1] = extent;
            return buffer;
        };
        const int32_t head_dim = layout_.head_dim, head_dim_v = layout_.head_dim_v;
        BackwardTileArguments arguments;
        arguments.q = rows_of(layout_.q, head_dim);
        arguments.dout = rows_of(layout_.dout, head_dim_v);
        arguments.k = chunked_buffer(k_, head_dim, keys_);
        arguments.k_lanes = lanes_of(k_lanes_, p_.head_dim);
        arguments.v_lanes = lanes_of(v_lanes_, p_.head_dim_v);
        set_logits({head, row, key, count_at(key)}, &arguments);
        arguments.dq_before = chunked_buffer(dq_at(head, row), head_dim, queries_);
        arguments.dk_before = chunked_buffer(dk_, head_dim, keys_);
        arguments.dv_before = chunked_buffer(dv_, head_dim_v, keys_);
        arguments.hides_nonfinite = nonfinite_keys_ || nonfinite_rows(head, row);
        arguments.num_rows = num_rows;
        arguments.num_keys = num_keys;
        // Where nothing caps the logits both gradients are the same numbers, and one place less stays in the
        // L1 cache.
        const bool one_place = !wants_bias && (features_of(p_) & feature_softcap) == 0;
        arguments.weights = grads_of(grads_[0]);
        arguments.score_grads = grads_of(grads_[1]);
        arguments.logit_grads = grads_of(one_place ? grads_[1] : logit_grads_);
        arguments.dq = written(arguments.dq_before, rows);
        arguments.dk = written(arguments.dk_before, key_rows);
        arguments.dv = written(arguments.dv_before, key_rows);
        return call_op_kernel(*layout_.tile, arguments, message);
    }
};

}  // namespace

void take_float_tiles(const heed_problem &problem, const BackwardLayout &layout, Parts *scratch) {
    KeysScratch(layout, scratch);
    FloatScratch(problem, layout, scratch);
}

int run_float_tiles(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, Parts *scratch,
                    char (&message)[512]) {
    return FloatTiles(call, sequence, task, scratch).run(message);
}

}  // namespace heed
