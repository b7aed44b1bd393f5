// Rows of Q, K and V from global to shared memory.
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

constexpr int chunk = 16, of_chunk = chunk / 2;  // bytes and elements of one copy

// What kernels report of metadata in device memory (heed_execute: device_status). The first fault stays.
constexpr int fault_of_pages = 4;

// Threads that copy a row together: a power of two that divides its chunks, so that a warp's copies are contiguous.
int threads_of_row(int chunks) {
    int threads = 1;
    while (threads < 16 && chunks % (2 * threads) == 0) threads *= 2;
    return threads;
}

}  // namespace

// Element 0 of a row; the batch stride of ragged tensors is 0.
Expr ProgramBuilder::row_address(const Tensor &tensor, const Expr &batch, const Expr &of_head,
                                 const Expr &token) const {
    return tensor.address() + element_bytes(batch, tensor.stride(3), size) +
           element_bytes(of_head, tensor.stride(1), size) + element_bytes(token, tensor.stride(2), size);
}

// Rows start at multiples of 16 bytes and are multiples of 16 bytes long.
Expr ProgramBuilder::in_whole_chunks(const Tensor &tensor, int length) const {
    Expr strides = tensor.stride(1) | tensor.stride(2) | tensor.stride(3) | length;
    return (cast<uint32_t>(tensor.address()) % chunk + cast<uint32_t>(strides % of_chunk)) == 0;
}

// Zeros after the last query and after head_dim. Where the kernel scales logits in the exponent, by the size of
// `scale`, its sign goes to Q.
void ProgramBuilder::load_queries() {
    const int threads = tile.threads();
    Expr rows = code.let("q_rows", row_address(in.q, sequence, head, first_q + first_row));
    auto address = [&](const Expr &at) { return rows + element_bytes(at, in.q.stride(2), size); };
    Expr existing = code.let("q_existing", q_len - first_row);
    Expr signs =
        cfg.modifies_logits() ? Expr(0u) : code.let("q_signs", select(in.scale < 0, Expr(0x80008000u), Expr(0u)));
    Expr to = code.let("q_to", shared_at + shared.q);
    const int per_row = threads_of_row(depth / of_chunk);
    const int chunks = depth / of_chunk / per_row, rows_at_once = threads / per_row;
    code.when(
        in_whole_chunks(in.q, cfg.head_dim),
        [&] {
            Expr row = code.let("q_row", thread / per_row), first = code.let("q_chunk", thread % per_row);
            auto copy = [&](const Expr &at) {
                Expr source = address(at);
                for (int c = 0; c < chunks; c++) {
                    Expr column = first + c * per_row;
                    Expr there = at < existing && column * of_chunk < cfg.head_dim;
                    Expr from = source + cast<uint64_t>(column * chunk);
                    Expr value = code.let("q_value", load_fragment_if(from, cast<int32_t>(there)));
                    Expr place = to + chunk_in_panels(at, column, tile.rows());
                    code.run(store_shared_fragment(place, negate_signs(value, signs)));
                }
            };
            if (rows_at_once > tile.rows()) return code.when(row < tile.rows(), [&] { copy(row); });
            code.loop("q_pass", tile.rows() / rows_at_once,
                      [&](const Expr &pass) { copy(code.let("at", row + pass * rows_at_once)); });
        },
        [&] {
            code.loop("q_element", tile.rows() * depth / threads, [&](const Expr &i) {
                Expr element = code.let("element", i * threads + thread), at = element / depth, d = element % depth;
                Expr there = at < existing && d < cfg.head_dim;
                Expr from = address(at) + cast<uint64_t>(d * size);
                Expr value = code.let("q_value", load_u16_if(from, cast<int32_t>(there)));
                code.run(store_shared_u16(element_at(to, tile.rows(), at, d), value ^ signs));
            });
        });
}

// Where shared memory holds what find_keys found of a key of block j.
Expr ProgramBuilder::found_key(const Expr &j, const Expr &in_block) const {
    return shared_at + (j % found_blocks * tile.kv_block + in_block) * found_key_bytes;
}

// Where the keys of block j are: thread t finds that of key t. Keys after the last one take its place. Ids of pages
// are clamped and reported: memory of the caller may hold anything.
void ProgramBuilder::find_keys(const Expr &j) {
    code.when(thread < tile.kv_block && j < num_blocks, [&] {
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
                code.when(id != valid && in.device_status != cast<uint64_t>(0), [&] {
                    code.run(store_u32_if_zero(in.device_status, cast<uint32_t>(sequence * 8 + fault_of_pages)));
                });
            },
            [&] {
                code.set(at, 0, sequence);
                code.set(at, 1, first_key + position);
            });
        auto row = [&](const Tensor &tensor, const Expr &rows) {
            return rows + element_bytes(at[0], tensor.stride(3), size) + element_bytes(at[1], tensor.stride(2), size);
        };
        Expr to = code.let("found_at", found_key(j, thread));
        code.run(store_shared_u64(to, row(in.k, k_rows)));
        code.run(store_shared_u64(to + 8, row(in.v, v_rows)));
    });
}

struct ProgramBuilder::Rows {
    const Tensor &tensor;
    Expr address, whole;
    int found;   // bytes to its address in what find_keys found
    int width;   // elements in shared memory
    int length;  // elements that exist
    Expr to;
};

// The address of element 0 of a key of block j.
Expr ProgramBuilder::key_address(const Rows &rows, const Expr &j, const Expr &in_block) const {
    if (cfg.paged) return load_shared_u64(found_key(j, in_block) + rows.found);
    return rows.address + element_bytes(key_start(j) + in_block, rows.tensor.stride(2), size);
}

// The keys of block j of a tensor; zeros after the last key and after the last element.
void ProgramBuilder::load_rows(const Rows &rows, const Expr &j) {
    code.when(
        rows.whole != 0, [&] { load_whole_rows(rows, j); }, [&] { load_elements(rows, j); });
}

void ProgramBuilder::load_whole_rows(const Rows &rows, const Expr &j) {
    const int per_row = threads_of_row(rows.width / of_chunk);
    const int chunks = rows.width / of_chunk / per_row, rows_at_once = tile.threads() / per_row;
    Expr row = code.let("row", thread / per_row), column = code.let("column", thread % per_row);
    auto copy = [&] {
        Expr in_row = cast<uint64_t>(column * chunk);
        Expr from = cfg.paged ? Expr() : code.let("from", key_address(rows, j, row) + in_row);
        std::vector<Expr> at;
        for (int c = 0; c < chunks; c++) {
            at.push_back(code.let("to", rows.to + chunk_in_panels(row, column + c * per_row, tile.kv_block)));
        }
        Expr left = code.let("left", kv_len - key_start(j) - row);
        Expr pass_bytes = code.let("pass_bytes", element_bytes(rows_at_once, rows.tensor.stride(2), size));
        for (int first = 0; first < tile.kv_block; first += rows_at_once) {
            if (cfg.paged) from = code.let("from", key_address(rows, j, row + first) + in_row);
            const auto copy_pass = [&] {
                Expr bytes = code.let("bytes", select(left > first, chunk, 0));
                for (int c = 0; c < chunks; c++) {
                    Expr there = (column + c * per_row) * of_chunk < rows.length;
                    code.run(copy_async(at[c] + first * panel_row_bytes, from + cast<uint64_t>(c * per_row * chunk),
                                        select(there, bytes, 0)));
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
        Expr from = key_address(rows, j, row) + cast<uint64_t>(d * size);
        Expr value = code.let("value", load_u16_if(from, cast<int32_t>(there)));
        code.run(store_shared_u16(element_at(rows.to, tile.kv_block, row, d), value));
    });
}

void ProgramBuilder::load_keys(const Expr &j, const Expr &buffer) {
    load_rows({in.k, k_rows, k_whole, 0, depth, cfg.head_dim, shared_at + shared.k + buffer * shared.k_buffer}, j);
}

void ProgramBuilder::load_values(const Expr &j, const Expr &buffer) {
    load_rows({in.v, v_rows, v_whole, 8, depth_v, cfg.head_dim_v, shared_at + shared.v + buffer * shared.v_buffer}, j);
}

}  // namespace heed::cuda
