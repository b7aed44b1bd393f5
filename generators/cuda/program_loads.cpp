// Rows of Q, K and V from global to shared memory.
#include "generators/cuda/device_faults.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int chunk = 16;  // bytes of one copy

// One element, zero unless `on`.
Expr load_bits_if(const Expr &from, const Expr &on, int bytes) {
    return bytes == 1 ? load_u8_if(from, on) : load_u16_if(from, on);
}

Expr store_shared_bits(const Expr &to, const Expr &value, int bytes) {
    return bytes == 1 ? store_shared_u8(to, value) : store_shared_u16(to, value);
}

// Threads that copy a row together: a power of two that divides its chunks, so that a warp's copies are contiguous.
int threads_of_row(int chunks) {
    int threads = 1;
    while (threads < 16 && chunks % (2 * threads) == 0) threads *= 2;
    return threads;
}

}  // namespace

// Element 0 of a row; the batch stride of ragged tensors is 0.
Expr ProgramBuilder::row_address(const Tensor &tensor, const Expr &batch, const Expr &of_head, const Expr &token,
                                 int bytes) const {
    return tensor.address() + element_bytes(batch, tensor.stride(3), bytes) +
           element_bytes(of_head, tensor.stride(1), bytes) + element_bytes(token, tensor.stride(2), bytes);
}

// Rows start at multiples of 16 bytes and are multiples of 16 bytes long.
Expr ProgramBuilder::in_whole_chunks(const Tensor &tensor, const Expr &length, int bytes) const {
    Expr strides = tensor.stride(1) | tensor.stride(2) | tensor.stride(3) | length;
    return (cast<uint32_t>(tensor.address()) % chunk + cast<uint32_t>(strides % (chunk / bytes))) == 0;
}

// Zeros after the last query and after head_dim. Where the kernel scales logits in the exponent, by the size of
// `scale`, its sign goes to Q.
void ProgramBuilder::load_queries() {
    const int threads = tile.threads();
    Expr rows = code.let("q_rows", row_address(in.q, sequence, cfg.has_gqa ? 0 : head,
                                               cfg.has_gqa ? first_q : first_q + first_row, size));
    auto address = [&](const Expr &at) {
        if (!cfg.has_gqa) return rows + element_bytes(at, in.q.stride(2), size);
        const Query query = query_of(first_row + at);
        return code.let("q_row", rows + element_bytes(query.position, in.q.stride(2), size) +
                                     element_bytes(query.head, in.q.stride(1), size));
    };
    Expr existing = code.let("q_existing", num_rows - first_row);
    Expr signs =
        cfg.modifies_logits() ? Expr(0u) : code.let("q_signs", select(in.scale < 0, Expr(0x80008000u), Expr(0u)));
    Expr to = code.let("q_to", shared_at + shared.q);
    const int of_chunk = chunk / size, per_row = threads_of_row(depth / of_chunk);
    const int chunks = depth / of_chunk / per_row, rows_at_once = threads / per_row;
    code.when(
        in_whole_chunks(in.q, head_dim, size),
        [&] {
            Expr row = code.let("q_row", thread / per_row), first = code.let("q_chunk", thread % per_row);
            auto copy = [&](const Expr &at) {
                Expr source = address(at);
                for (int c = 0; c < chunks; c++) {
                    Expr column = first + c * per_row;
                    Expr there = at < existing && column * of_chunk < head_dim;
                    Expr from = source + cast<uint64_t>(column * chunk);
                    Expr value = code.let("q_value", load_fragment_if(from, cast<int32_t>(there)));
                    store_query_chunk(to, at, column, negate_signs(value, signs));
                }
            };
            if (rows_at_once > tile.rows()) return code.when(row < tile.rows(), [&] { copy(row); });
            code.loop("q_pass", tile.rows() / rows_at_once,
                      [&](const Expr &pass) { copy(code.let("at", row + pass * rows_at_once)); });
        },
        [&] {
            code.loop("q_element", tile.rows() * depth / threads, [&](const Expr &i) {
                Expr element = code.let("element", i * threads + thread), at = element / depth, d = element % depth;
                Expr there = at < existing && d < head_dim;
                Expr from = address(at) + cast<uint64_t>(d * size);
                Expr value = code.let("q_value", load_bits_if(from, cast<int32_t>(there), size));
                Expr place = element_at(to, tile.rows(), shared.q_row, at, query_column(d), size);
                code.run(store_shared_bits(place, value ^ signs, size));
            });
        });
}

// Where shared memory holds what find_keys found of a key of block j.
Expr ProgramBuilder::found_key(const Expr &j, const Expr &in_block) const {
    return shared_at + (j % found_blocks(tile) * tile.kv_block + in_block) * shared.found_key;
}

// Where the keys of block j are: thread t finds that of key t. Keys after the last one take its place. Ids of pages
// are clamped and reported: memory of the caller may hold anything.
void ProgramBuilder::find_keys(const Expr &j) {
    code.when(thread < tile.kv_block && is_key_block(j), [&] {
        Expr position = code.let("key_position", min(key_start(j) + thread, kv_len - 1));
        Registers at = code.registers("page_and_slot", Int(32), 2);
        code.when(
            in.page_size > 0,
            [&] {
                Expr page = code.let("page", quotient(position, in.page_size));
                Expr entry = in.page_table.address() + element_bytes(sequence, in.page_table.stride(1), 4) +
                             element_bytes(min(page, in.page_table.extent(0) - 1), 1, 4);
                Expr id = code.let("page_id", load_i32(entry));
                Expr valid = code.let("valid_id", clamp(id, 0, in.k.extent(3) - 1));
                code.set(at, 0, valid);
                code.set(at, 1, position - page * in.page_size);
                report_if(code, id != valid, in.device_status, sequence, fault_of_pages);
            },
            [&] {
                code.set(at, 0, sequence);
                code.set(at, 1, first_key + position);
            });
        auto row = [&](const Tensor &tensor, const Expr &rows) {
            return rows + element_bytes(at[0], tensor.stride(3), kv_size) +
                   element_bytes(at[1], tensor.stride(2), kv_size);
        };
        Expr to = code.let("found_at", found_key(j, thread));
        code.run(store_shared_u64(to, row(in.k, k_rows)));
        code.run(store_shared_u64(to + 8, row(in.v, v_rows)));
        if (cfg.has_kv_scales()) {
            code.run(store_shared_u64(to + 16, element_bytes(at[0], in.k_scale.stride(2), 4) +
                                                   element_bytes(at[1], in.k_scale.stride(1), 4)));
        }
    });
}

struct ProgramBuilder::Rows {
    const Tensor &tensor;
    Expr address, whole;
    int found;    // bytes to its address in what find_keys found
    int width;    // elements in shared memory
    Expr length;  // elements that exist
    int row_bytes;
    Expr to;
};

// The address of element 0 of a key of block j.
Expr ProgramBuilder::key_address(const Rows &rows, const Expr &j, const Expr &in_block) const {
    if (cfg.paged) return load_shared_u64(found_key(j, in_block) + rows.found);
    return rows.address + element_bytes(key_start(j) + in_block, rows.tensor.stride(2), kv_size);
}

// The keys of block j of a tensor; zeros after the last key and after the last element.
void ProgramBuilder::load_rows(const Rows &rows, const Expr &j) {
    code.when(
        rows.whole != 0, [&] { load_whole_rows(rows, j); }, [&] { load_elements(rows, j); });
}

void ProgramBuilder::load_whole_rows(const Rows &rows, const Expr &j) {
    const int of_chunk = chunk / kv_size, per_row = threads_of_row(rows.width / of_chunk);
    const int chunks = rows.width / of_chunk / per_row, rows_at_once = tile.threads() / per_row;
    Expr row = code.let("row", thread / per_row), column = code.let("column", thread % per_row);
    auto copy = [&] {
        Expr in_row = cast<uint64_t>(column * chunk);
        Expr from = cfg.paged ? Expr() : code.let("from", key_address(rows, j, row) + in_row);
        std::vector<Expr> at;
        for (int c = 0; c < (tile.warpgroups ? chunks : 1); c++) {
            at.push_back(code.let("to", chunk_at(rows.to, tile.kv_block, rows.row_bytes, row, column + c * per_row)));
        }
        Expr left = code.let("left", kv_len - key_start(j) - row);
        Expr pass_bytes = code.let("pass_bytes", element_bytes(rows_at_once, rows.tensor.stride(2), kv_size));
        for (int first = 0; first < tile.kv_block; first += rows_at_once) {
            if (cfg.paged) from = code.let("from", key_address(rows, j, row + first) + in_row);
            const auto copy_pass = [&] {
                Expr bytes = code.let("bytes", select(left > first, chunk, 0));
                for (int c = 0; c < chunks; c++) {
                    Expr there = (column + c * per_row) * of_chunk < rows.length;
                    const int behind = first * rows.row_bytes + (tile.warpgroups ? 0 : c * per_row * chunk);
                    code.run(copy_async(at[tile.warpgroups ? c : 0] + behind,
                                        from + cast<uint64_t>(c * per_row * chunk), select(there, bytes, 0)));
                }
            };
            const int rest = tile.kv_block - first;
            if (rest < rows_at_once) {
                code.when(row < rest, copy_pass);
            } else {
                copy_pass();
            }
            // One sum after the other: multiples of pass_bytes would be kept in registers from before the loop.
            if (!cfg.paged) from = code.let("from", advance(from, pass_bytes));
        }
    };
    if (rows_at_once <= tile.kv_block) {
        copy();
    } else {
        code.when(row < tile.kv_block, copy);
    }
}

void ProgramBuilder::load_elements(const Rows &rows, const Expr &j) {
    Expr me = code.let("me", thread_index());
    code.loop("element", tile.kv_block * rows.width / tile.threads(), [&](const Expr &i) {
        Expr element = code.let("element", i * tile.threads() + me);
        Expr row = element / rows.width, d = element % rows.width;
        Expr there = key_start(j) + row < kv_len && d < rows.length;
        Expr from = key_address(rows, j, row) + cast<uint64_t>(d * kv_size);
        Expr value = code.let("value", load_bits_if(from, cast<int32_t>(there), kv_size));
        Expr to = element_at(rows.to, tile.kv_block, rows.row_bytes, row, d, kv_size);
        code.run(store_shared_bits(to, value, kv_size));
    });
}

void ProgramBuilder::load_keys(const Expr &j, const Expr &buffer) {
    Expr to = shared_at + shared.k + buffer * shared.k_buffer;
    load_rows({in.k, k_rows, k_whole, 0, depth, head_dim, shared.k_row, to}, j);
    if (cfg.has_kv_scales()) load_scales(k_scales, j, scale_at(0, buffer, thread));
}

void ProgramBuilder::load_values(const Expr &j, const Expr &buffer) {
    Expr to = shared_at + shared.v + buffer * shared.v_buffer;
    load_rows({in.v, v_rows, v_whole, 8, depth_v, head_dim_v, shared.v_row, to}, j);
    if (cfg.has_kv_scales()) load_scales(v_scales, j, scale_at(1, buffer, thread));
}

}  // namespace heed::cuda
