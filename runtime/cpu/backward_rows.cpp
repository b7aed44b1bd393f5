#include "runtime/cpu/backward_rows.h"

#include "runtime/cpu/fetch_rows.h"
#include "runtime/halide_bridge.h"
#include "runtime/ops/gradient_checks.h"
#include "runtime/status.h"
#include "runtime/view.h"

namespace heed {
namespace {

constexpr int32_t chunk = backward_chunk, infinite = 0x7f800000;

KernelBuffer lse_buffer(const float *lse, int32_t rows) {
    static const float seen = 0;  // by every key
    return {const_cast<float *>(lse == nullptr ? &seen : lse), HEED_F32, 1, {rows}, {lse == nullptr ? 0 : 1}};
}

// A result that is not wanted: its last extent is 0.
KernelBuffer no_words(std::initializer_list<int32_t> extents) {
    static int32_t none = 0;
    return packed_buffer(&none, HEED_I32, extents);
}

// Asks for all rows of a block before the first one is read or written. A copy alone would wait for each line (8
// sequences of 512, 12 heads of 64).
void fetch(const KernelBuffer &rows) {
    const int64_t element = dtype_bytes(rows.dtype);
    fetch_rows(rows.data, rows.extent[1], rows.extent[0] * element, rows.stride[1] * element);
}

// Calls the kernel that reads rows; *finite stays false.
template <typename Arguments>
int load_rows(const BackwardCall &call, Arguments *arguments, bool *finite, char (&message)[512]) {
    fetch(arguments->x);
    int32_t largest = 0;
    arguments->largest = packed_buffer(&largest, HEED_I32, {1});
    const int code = call_op_kernel(*call.layout.rows, *arguments, message);
    *finite = *finite && largest < infinite;
    return code;
}

int64_t index_of(const View &view, int64_t a, int64_t b, int64_t c) {
    return a * view.stride[0] + b * view.stride[1] + c * view.stride[2];
}

// A block of query rows of a head.
class QueryBlock {
public:
    QueryBlock(const BackwardCall &call, const BackwardSequence &sequence, int32_t head, int64_t begin)
        : call_(call), p_(call.plan.problem), head_(head),
          batch_(p_.q_storage == HEED_Q_VARLEN ? 0 : sequence.place.index), token_(sequence.place.first_q + begin),
          row_(call.row_of(sequence, head) + begin), packed_row_(call.packed_row_of(sequence, head) + begin),
          count_(narrow(std::min<int64_t>(call.layout.tile->rows, sequence.place.q_len - begin))) {}

    int pack(char (&message)[512]) const {
        const BackwardLayout &layout = call_.layout;
        if (const int code = find_stats(message)) return code;
        bool finite = true;
        int code = load(call_.args.q, call_.plan.views.q, p_.head_dim, layout.q, layout.head_dim, &finite, message);
        if (code == 0) {
            code = load(call_.gradients.dout, call_.plan.views.out, p_.head_dim_v, layout.dout, layout.head_dim_v,
                        &finite, message);
        }
        call_.at<uint8_t>(layout.nonfinite)[packed_row_ / layout.tile->rows] = finite ? 0 : 1;
        return code;
    }

    int store(char (&message)[512]) const {
        const BackwardLayout &layout = call_.layout;
        const int32_t rows = layout.tile->rows, width = layout.head_dim;
        KernelBuffer sums = chunked_buffer(call_.at<float>(layout.dq) + packed_row_ * width, width, rows);
        if (layout.has_words()) {
            sums.stride[0] = rows;
            sums.stride[1] = 1;
        }
        const TensorRows to = rows_of(call_.gradients.dq, call_.plan.views.q, p_.head_dim);
        return store_rows(*layout.store, sums, p_.scale, p_.dtype, to, message);
    }

private:
    const BackwardCall &call_;
    const heed_problem &p_;
    const int64_t head_, batch_, token_, row_, packed_row_;
    const int32_t count_;

    TensorRows rows_of(const heed_tensor &tensor, const View &view, int32_t elements) const {
        char *const data =
            static_cast<char *>(tensor.data) + index_of(view, batch_, token_, head_) * dtype_bytes(p_.dtype);
        return {data, view.stride[1], elements, count_};
    }

    int find_stats(char (&message)[512]) const {
        const BackwardLayout &layout = call_.layout;
        const View &view = call_.plan.views.lse;
        const auto *const lse = static_cast<const float *>(call_.args.lse.data) + index_of(view, batch_, head_, token_);
        const int32_t rows = layout.tile->rows;
        BackwardStatsArguments arguments;
        arguments.dout = rows_of(call_.gradients.dout, call_.plan.views.out, p_.head_dim_v).buffer(p_.dtype);
        arguments.out = rows_of(call_.args.out, call_.plan.views.out, p_.head_dim_v).buffer(p_.dtype);
        arguments.row_lse = {const_cast<float *>(lse), HEED_F32, 1, {count_}, {narrow(view.stride[2])}};
        fetch(arguments.dout);
        fetch(arguments.out);
        arguments.lse = packed_buffer(call_.at<float>(layout.lse) + row_, HEED_F32, {rows});
        arguments.delta = packed_buffer(call_.at<float>(layout.delta) + row_, HEED_F32, {rows});
        return call_op_kernel(*layout.stats, arguments, message);
    }

    int load(const heed_tensor &tensor, const View &view, int32_t elements, int64_t to, int32_t padded, bool *finite,
             char (&message)[512]) const {
        const BackwardLayout &layout = call_.layout;
        const int32_t rows = layout.tile->rows;
        const TensorRows from = rows_of(tensor, view, elements);
        float *const block = call_.at<float>(to) + packed_row_ * padded;
        const float *const lse = call_.at<float>(layout.lse) + row_;
        if (layout.has_words()) {
            return load_query_words(call_, from, lse, QueryWords::at(block, rows, padded), padded, finite, message);
        }
        return load_chunks(call_, from, lse, chunked_buffer(block, padded, rows), {}, finite, message);
    }
};

// Calls run(QueryBlock) -> int for the blocks of a head's rows.
template <typename Run>
int for_each_block(const BackwardCall &call, const BackwardSequence &sequence, int32_t head, const Run &run) {
    for (int64_t begin = 0; begin < sequence.place.q_len; begin += call.layout.tile->rows) {
        if (const int code = run(QueryBlock(call, sequence, head, begin))) return code;
    }
    return 0;
}

}  // namespace

KernelBuffer chunked_buffer(float *data, int32_t elements, int32_t rows) {
    return packed_buffer(data, HEED_F32, {chunk, rows, elements / chunk});
}

int load_chunks(const BackwardCall &call, const TensorRows &rows, const float *lse, KernelBuffer chunks,
                KernelBuffer lanes, bool *finite, char (&message)[512]) {
    static float none = 0;
    for (KernelBuffer *const buffer : {&chunks, &lanes}) {
        if (buffer->data == nullptr) *buffer = packed_buffer(&none, HEED_F32, {chunk, 0, 0});
    }
    BackwardRowsArguments arguments;
    arguments.x = rows.buffer(call.plan.problem.dtype);
    arguments.lse = lse_buffer(lse, rows.count);
    arguments.chunks = chunks;
    arguments.lanes = lanes;
    return load_rows(call, &arguments, finite, message);
}

int load_query_words(const BackwardCall &call, const TensorRows &rows, const float *lse, const QueryWords &to,
                     int32_t padded, bool *finite, char (&message)[512]) {
    const int32_t block = call.layout.tile->rows, half = block / 2;
    BackwardWordsArguments arguments;
    arguments.x = rows.buffer(HEED_BF16);
    arguments.lse = lse_buffer(lse, rows.count);
    arguments.words = packed_buffer(to.words, HEED_I32, {block, padded / 2});
    arguments.pairs = packed_buffer(to.pairs, HEED_I32, {chunk, half, padded / chunk});
    arguments.row_words = no_words({padded / 2, 0});
    arguments.columns = no_words({half, chunk, 0});
    return load_rows(call, &arguments, finite, message);
}

int load_key_words(const BackwardCall &call, const TensorRows &rows, uint16_t *row_words, uint16_t *columns,
                   int32_t padded, bool *finite, char (&message)[512]) {
    const int32_t block = call.layout.tile->columns, half = block / 2;
    BackwardWordsArguments arguments;
    arguments.x = rows.buffer(HEED_BF16);
    arguments.lse = lse_buffer(nullptr, rows.count);
    arguments.words = no_words({block, 0});
    arguments.pairs = no_words({chunk, half, 0});
    arguments.row_words = packed_buffer(row_words, HEED_I32, {padded / 2, block});
    arguments.columns = columns == nullptr ? no_words({half, chunk, 0})
                                           : packed_buffer(columns, HEED_I32, {half, chunk, padded / chunk});
    return load_rows(call, &arguments, finite, message);
}

int store_rows(const OpKernel &store, const KernelBuffer &sums, float factor, heed_dtype dtype, const TensorRows &rows,
               char (&message)[512]) {
    BackwardStoreArguments arguments;
    arguments.sums = sums;
    arguments.sums.extent[1] = rows.count;
    arguments.factor = factor;
    arguments.out = rows.buffer(dtype);
    fetch(arguments.out);
    return call_op_kernel(store, arguments, message);
}

int pack_queries(const BackwardCall &call, const BackwardSequence &sequence, int32_t head, char (&message)[512]) {
    return for_each_block(call, sequence, head, [&](const QueryBlock &block) { return block.pack(message); });
}

int store_queries(const BackwardCall &call, const BackwardSequence &sequence, int32_t head, char (&message)[512]) {
    if (call.gradients.dq.data == nullptr) return 0;
    return for_each_block(call, sequence, head, [&](const QueryBlock &block) { return block.store(message); });
}

int store_sink(const BackwardCall &call, int32_t head, char (&message)[512]) {
    const BackwardLayout &layout = call.layout;
    float *const dsink = static_cast<float *>(call.gradients.dsink.data) + head;
    *dsink = 0;
    for (int64_t b = 0; b < call.plan.problem.batch; b++) {
        const BackwardSequence &sequence = call.sequence(b);
        const int64_t first = call.row_of(sequence, head);
        const int32_t rows = narrow(sequence.num_rows);
        BackwardSinksArguments arguments;
        arguments.lse = packed_buffer(call.at<float>(layout.lse) + first, HEED_F32, {rows});
        arguments.delta = packed_buffer(call.at<float>(layout.delta) + first, HEED_F32, {rows});
        arguments.before = arguments.dsink = packed_buffer(dsink, HEED_F32, {1});
        arguments.sink = call.args.sink[head];
        if (const int code = call_op_kernel(*layout.sinks, arguments, message)) return code;
    }
    return 0;
}

}  // namespace heed
