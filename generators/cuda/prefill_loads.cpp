// Rows of Q, K and V from global to shared memory.
#include "../score_mod.h"
#include "prefill_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int chunk = 16;  // bytes of one copy

// Threads that copy a row together: a power of two that divides its chunks, so that a warp's copies are contiguous.
int threads_of_row(int chunks) {
    int threads = 1;
    while (threads < 16 && chunks % (2 * threads) == 0) threads *= 2;
    return threads;
}

}  // namespace

Expr element_bytes(const Expr &index, const Expr &stride, int bytes) {
    return cast<uint64_t>(cast<int64_t>(index) * cast<int64_t>(stride) * cast<int64_t>(bytes));
}

// Element 0 of a row; the batch stride of ragged tensors is 0.
Expr PrefillBuilder::row_address(const Tensor &tensor, const Expr &batch, const Expr &of_head,
                                 const Expr &token) const {
    return tensor.address() + element_bytes(batch, tensor.stride(3), size) +
           element_bytes(of_head, tensor.stride(1), size) + element_bytes(token, tensor.stride(2), size);
}

// Rows start at multiples of 16 bytes and are multiples of 16 bytes long.
Expr PrefillBuilder::in_whole_chunks(const Tensor &tensor, const Expr &length) const {
    Expr strides = tensor.stride(1) | tensor.stride(2) | tensor.stride(3) | length;
    return (cast<uint32_t>(tensor.address()) % chunk + cast<uint32_t>(strides % (chunk / size))) == 0;
}

// One element, zero unless `on`.
Expr PrefillBuilder::load_bits_if(const Expr &from, const Expr &on) const {
    return size == 2 ? load_u16_if(from, on) : load_u32_if(from, on);
}

Expr PrefillBuilder::store_shared_bits(const Expr &to, const Expr &value) const {
    return size == 2 ? store_shared_u16(to, value) : store_shared_u32(to, value);
}

// 16 bytes, of which `bytes` (0 or 16) are read and the others zero.
void PrefillBuilder::copy_chunk(const Expr &to, const Expr &from, const Expr &bytes) {
    if (tile.tensor_cores) {
        code.run(copy_async(to, from, bytes));
    } else {
        code.run(store_shared_fragment(to, code.let("chunk", load_fragment_if(from, bytes))));
    }
}

// Zeros behind the last query and behind head_dim. Where the kernel scales logits in the exponent, by the size of
// `scale`, its sign goes to Q.
void PrefillBuilder::load_queries() {
    const int threads = tile.threads();
    Expr rows = code.let("q_rows", row_address(in.q, sequence, head, first_q + first_row));
    Expr existing = code.let("q_existing", q_len - first_row);
    const uint32_t sign_bits = size == 4 ? 0x80000000u : 0x80008000u;
    Expr signs =
        cfg.modifies_logits() ? Expr(0u) : code.let("q_signs", select(in.scale < 0, Expr(sign_bits), Expr(0u)));
    const int of_chunk = chunk / size, per_row = threads_of_row(depth / of_chunk);
    const int chunks = depth / of_chunk / per_row, rows_at_once = threads / per_row;
    code.when(
        in_whole_chunks(in.q, head_dim),
        [&] {
            Expr row = code.let("q_row", thread / per_row), first = code.let("q_chunk", thread % per_row);
            code.loop("q_pass", tile.rows() / rows_at_once, [&](const Expr &pass) {
                Expr at = code.let("at", row + pass * rows_at_once);
                for (int c = 0; c < chunks; c++) {
                    Expr column = first + c * per_row;
                    Expr there = at < existing && column * of_chunk < head_dim;
                    Expr from = rows + element_bytes(at, in.q.stride(2), size) + cast<uint64_t>(column * chunk);
                    Expr value = code.let("q_value", load_fragment_if(from, cast<int32_t>(there)));
                    code.run(store_shared_fragment(shared_at + at * shared.q_row + column * chunk,
                                                   negate_signs(value, signs)));
                }
            });
        },
        [&] {
            code.loop("q_element", tile.rows() * depth / threads, [&](const Expr &i) {
                Expr element = code.let("element", i * threads + thread), at = element / depth, d = element % depth;
                Expr there = at < existing && d < head_dim;
                Expr from = rows + element_bytes(at, in.q.stride(2), size) + cast<uint64_t>(d * size);
                Expr value = code.let("q_value", load_bits_if(from, cast<int32_t>(there)));
                code.run(store_shared_bits(shared_at + at * shared.q_row + d * size, value ^ signs));
            });
        });
}

// Keys `start` .. start + kv_block - 1 of a tensor to `to`, rows of row_bytes; zeros behind the last key and behind
// `length`.
void PrefillBuilder::load_rows(const Tensor &tensor, const Expr &rows, const Expr &whole, int width, const Expr &length,
                               int row_bytes, const Expr &to, const Expr &start) {
    const int threads = tile.threads(), of_chunk = chunk / size, per_row = threads_of_row(width / of_chunk);
    const int chunks = width / of_chunk / per_row, rows_at_once = threads / per_row;
    Expr stride = tensor.stride(2);
    code.when(
        whole != 0,
        [&] {
            Expr row = code.let("row", thread / per_row), column = code.let("column", thread % per_row);
            auto copy = [&] {
                Expr from = rows + element_bytes(start + row, stride, size) + cast<uint64_t>(column * chunk);
                from = code.let("from", from);
                Expr at = code.let("to", to + row * row_bytes + column * chunk);
                Expr left = code.let("left", kv_len - start - row);
                Expr pass_bytes = code.let("pass_bytes", element_bytes(rows_at_once, stride, size));
                for (int first = 0; first < tile.kv_block; first += rows_at_once) {
                    Expr bytes = code.let("bytes", select(left > first, chunk, 0));
                    for (int c = 0; c < chunks; c++) {
                        Expr there = (column + c * per_row) * of_chunk < length;
                        copy_chunk(at + (first * row_bytes + c * per_row * chunk),
                                   from + cast<uint64_t>(c * per_row * chunk), select(there, bytes, 0));
                    }
                    // One sum after the other: multiples of pass_bytes would be kept in registers from before the loop.
                    from = code.let("from", advance(from, pass_bytes));
                }
            };
            if (rows_at_once <= tile.kv_block) {
                copy();
            } else {
                code.when(row < tile.kv_block, copy);
            }
        },
        [&] {
            Expr me = code.let("me", thread_index());
            code.loop("element", tile.kv_block * width / threads, [&](const Expr &i) {
                Expr element = code.let("element", i * threads + me), row = element / width, d = element % width;
                Expr there = start + row < kv_len && d < length;
                Expr from = rows + element_bytes(start + row, stride, size) + cast<uint64_t>(d * size);
                Expr value = code.let("value", load_bits_if(from, cast<int32_t>(there)));
                code.run(store_shared_bits(to + row * row_bytes + d * size, value));
            });
        });
}

void PrefillBuilder::load_keys(const Expr &j, const Expr &buffer) {
    load_rows(in.k, k_rows, k_whole, depth, head_dim, shared.k_row, shared_at + shared.k + buffer * shared.k_buffer,
              key_start(j));
}

void PrefillBuilder::load_values(const Expr &j, const Expr &buffer) {
    load_rows(in.v, v_rows, v_whole, depth_v, head_dim_v, shared.v_row, shared_at + shared.v + buffer * shared.v_buffer,
              key_start(j));
}

}  // namespace heed::cuda
