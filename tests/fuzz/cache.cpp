// Bytes -> a cache and a list of appends and copies with lengths, page ids, positions and ranges that may be wrong.
// Right ones do what plain loops do; wrong ones are refused and change nothing.
#include <set>

#include "runtime/reference/element.h"
#include "tests/fuzz/cache_model.h"

namespace heed_test {
namespace {

using Slot = std::pair<int64_t, int64_t>;  // block and token in it

struct Append {
    heed_kv_append_args args = {};
    heed_rope_tables rope = {};
    std::vector<uint8_t> k_new, v_new;
    std::vector<float> table;
    std::vector<int32_t> new_lens, positions;

    int32_t new_len_of(int32_t b) const { return new_lens.empty() ? args.new_len : new_lens[static_cast<size_t>(b)]; }
    bool rotates() const { return args.rope != nullptr && rope.rotary_dim > 0; }
};

void read_rope(ByteReader *bytes, const heed_kv_view &view, Append *append) {
    heed_rope_tables &rope = append->rope;
    rope.rotary_dim = 2 * bytes->between(0, view.head_dim / 2);
    rope.interleaved = bytes->flag();
    rope.max_position = bytes->between(0, 12);
    append->table.assign(static_cast<size_t>(rope.max_position * rope.rotary_dim / 2), 0.5f);
    rope.cos = rope.sin = {append->table.data(), static_cast<int64_t>(append->table.size()), HEED_F32};
    append->args.rope = &rope;
    if (!bytes->flag()) return;
    append->positions.resize(static_cast<size_t>(view.batch * append->args.new_len));
    for (int32_t &position : append->positions) position = bytes->between(-1, 12);
    rope.positions = append->positions.data();
}

std::vector<uint8_t> read_rows(ByteReader *bytes, int64_t count) {
    std::vector<uint8_t> rows(static_cast<size_t>(count));
    for (uint8_t &byte : rows) byte = static_cast<uint8_t>(bytes->get<uint8_t>() + 3 * (&byte - rows.data()));
    return rows;
}

void read_append(ByteReader *bytes, CacheModel *cache, Append *append) {
    heed_kv_append_args &args = append->args;
    const heed_kv_view view = args.cache = cache->view();
    args.struct_size = sizeof(args);
    args.dtype = view.dtype == HEED_I8 ? bytes->one_of({HEED_F32, HEED_F16, HEED_BF16}) : view.dtype;
    args.new_len = bytes->between(0, 4);
    if (bytes->flag()) {
        append->new_lens.resize(static_cast<size_t>(view.batch));
        for (int32_t &len : append->new_lens) len = bytes->between(-1, args.new_len + 1);
        if (!append->new_lens.empty()) args.new_lens = append->new_lens.data();
    }
    const int64_t rows = int64_t{view.batch} * args.new_len * view.num_kv_heads * element_bytes(args.dtype);
    append->k_new = read_rows(bytes, rows * view.head_dim);
    append->v_new = read_rows(bytes, rows * view.head_dim_v);
    args.k_new = {append->k_new.data(), rows * view.head_dim / element_bytes(args.dtype), args.dtype};
    args.v_new = {append->v_new.data(), rows * view.head_dim_v / element_bytes(args.dtype), args.dtype};
    args.execution.num_threads = bytes->between(1, 2);
    if (bytes->flag()) read_rope(bytes, view, append);
}

bool valid_position(const CacheModel &cache, const Append &append, int32_t b, int32_t t) {
    if (!append.rotates()) return true;
    const int32_t behind = cache.kv_lens[static_cast<size_t>(b)] + t;
    const int32_t position =
        append.positions.empty() ? behind : append.positions[static_cast<size_t>(b * append.args.new_len + t)];
    return position >= 0 && position < append.rope.max_position;
}

// Where the token goes; false when no slot of the cache takes it.
bool slot_of(const CacheModel &cache, const Append &append, int32_t b, int32_t t, Slot *slot) {
    const int64_t place = int64_t{cache.kv_lens[static_cast<size_t>(b)]} + t;
    if (place >= cache.capacity()) return false;
    *slot = {b, place};
    if (!cache.paged()) return true;
    const int64_t entry = int64_t{b} * append.args.cache.max_pages_per_seq + place / cache.block_len();
    *slot = {cache.page_table[static_cast<size_t>(entry)], place % cache.block_len()};
    return slot->first >= 0 && slot->first < cache.num_blocks();
}

// The slots of the tokens in order; false when the append must be refused.
bool list_slots(const CacheModel &cache, const Append &append, std::vector<Slot> *slots) {
    for (int32_t b = 0; b < append.args.cache.batch; b++) {
        const int32_t kv_len = cache.kv_lens[static_cast<size_t>(b)], new_len = append.new_len_of(b);
        if (new_len < 0 || new_len > append.args.new_len || kv_len < 0 || kv_len > cache.capacity()) return false;
        for (int32_t t = 0; t < new_len; t++) {
            Slot slot;
            if (!slot_of(cache, append, b, t, &slot) || !valid_position(cache, append, b, t)) return false;
            slots->push_back(slot);
        }
    }
    return std::set<Slot>(slots->begin(), slots->end()).size() == slots->size();
}

// Rows of one token, [num_kv_heads, head_dim] packed, into the model.
void store_token(Plane *plane, const Slot &slot, const uint8_t *rows, int32_t num_heads) {
    for (int32_t head = 0; head < num_heads; head++) {
        std::memcpy(plane->row(&plane->model, slot.first, slot.second, head), rows + head * plane->row_bytes,
                    static_cast<size_t>(plane->row_bytes));
    }
}

void apply(const Append &append, const std::vector<Slot> &slots, CacheModel *cache) {
    const heed_kv_view &view = append.args.cache;
    size_t next = 0;
    for (int32_t b = 0; b < view.batch; b++) {
        for (int32_t t = 0; t < append.new_len_of(b); t++) {
            const Slot &slot = slots[next++];
            const int64_t token = int64_t{b} * append.args.new_len + t;
            for (size_t p = 0; p < cache->planes.size(); p++) {
                Plane &plane = cache->planes[p];
                const bool copied = view.dtype != HEED_I8 && (p == 1 || !append.rotates());
                const std::vector<uint8_t> &rows = p == 0 ? append.k_new : append.v_new;
                if (copied) {
                    store_token(&plane, slot, rows.data() + token * view.num_kv_heads * plane.row_bytes,
                                view.num_kv_heads);
                } else {
                    cache->adopt(&plane, slot.first, slot.second);
                }
            }
        }
        cache->kv_lens[static_cast<size_t>(b)] += append.new_len_of(b);
    }
}

void run_append(ByteReader *bytes, CacheModel *cache) {
    Append append;
    read_append(bytes, cache, &append);
    const std::vector<int32_t> before = cache->kv_lens;
    std::vector<Slot> slots;
    const bool valid = list_slots(*cache, append, &slots);
    const heed_status status = heed_kv_append(&append.args);
    require(status == (valid ? HEED_OK : HEED_INVALID_ARGUMENT),
            std::string(valid ? "a right" : "a wrong") + " append answers " + heed_status_name(status));
    const std::vector<int32_t> after = cache->kv_lens;
    cache->kv_lens = before;
    if (valid) apply(append, slots, cache);
    require(after == cache->kv_lens, "lengths grow by the new tokens, or not at all");
    cache->expect_as_model("append");
}

bool valid_range(const CacheModel &cache, const heed_kv_range &r) {
    const auto block = [&](int32_t index) { return index >= 0 && index < cache.num_blocks(); };
    return block(r.from) && block(r.to) && r.begin >= 0 && r.count >= 0 &&
           int64_t{r.begin} + r.count <= cache.block_len();
}

void run_copy(ByteReader *bytes, CacheModel *cache) {
    std::vector<heed_kv_range> ranges(static_cast<size_t>(bytes->between(0, 6)));
    std::set<Slot> written;
    bool valid = true;
    for (heed_kv_range &r : ranges) {
        r = {bytes->between(-1, 6), bytes->between(-1, 6), bytes->between(-1, 6), bytes->between(-1, 6)};
        if (bytes->between(0, 31) == 31) r.count = bytes->get<int32_t>();
        valid = valid && valid_range(*cache, r);
        for (int32_t t = 0; valid && t < r.count; t++) valid = written.insert({r.to, r.begin + t}).second;
    }
    const heed_kv_view view = cache->view();
    const heed_status status = heed_kv_copy(&view, ranges.data(), static_cast<int32_t>(ranges.size()), nullptr);
    require(status == (valid ? HEED_OK : HEED_INVALID_ARGUMENT),
            std::string(valid ? "a right" : "a wrong") + " copy answers " + heed_status_name(status));
    for (Plane &plane : cache->planes) {
        std::vector<uint8_t> before = plane.model;
        for (const heed_kv_range &r : ranges) {
            for (int32_t t = r.begin; valid && t < r.begin + r.count; t++) {
                for (int32_t head = 0; head < view.num_kv_heads; head++) {
                    std::memcpy(plane.row(&plane.model, r.to, t, head), plane.row(&before, r.from, t, head),
                                static_cast<size_t>(plane.row_bytes));
                }
            }
        }
    }
    cache->expect_as_model("copy");
}

// Another page or length, as a server's bookkeeping may get them wrong.
void change_metadata(ByteReader *bytes, CacheModel *cache) {
    std::vector<int32_t> *const words = bytes->flag() ? &cache->page_table : &cache->kv_lens;
    const size_t at = bytes->get<uint8_t>();
    const int32_t value = bytes->flag() ? bytes->between(-2, 9) : bytes->get<int32_t>();
    if (!words->empty()) (*words)[at % words->size()] = value;
}

}  // namespace
}  // namespace heed_test

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    using namespace heed_test;
    ByteReader bytes(data, size);
    CacheModel cache(&bytes);
    for (int n = 0; n < 8 && bytes.left() > 0; n++) {
        const int32_t operation = bytes.between(0, 4);
        if (operation < 2) run_append(&bytes, &cache);
        if (operation == 2 || operation == 3) run_copy(&bytes, &cache);
        if (operation == 4) change_metadata(&bytes, &cache);
    }
    return 0;
}
