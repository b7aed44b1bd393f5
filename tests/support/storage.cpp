#include "tests/support/storage.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

#include "tests/support/call.h"

namespace heed_test {
namespace {

constexpr int32_t unused_pages = 3;

Placement dense(int64_t batch, int64_t len) {
    Placement placement{batch, len, len, {}};
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t i = 0; i < len; i++) placement.slots.push_back({b, i});
    }
    return placement;
}

Placement varlen(int64_t batch, int64_t len, const std::vector<int32_t> &cu_seqlens) {
    Placement placement{1, cu_seqlens.back(), len, {}};
    placement.slots.assign(static_cast<size_t>(batch * len), {-1, 0});
    for (int64_t b = 0; b < batch; b++) {
        const int32_t begin = cu_seqlens[static_cast<size_t>(b)], end = cu_seqlens[static_cast<size_t>(b) + 1];
        for (int64_t i = 0; i < end - begin; i++) placement.at(b, i) = {0, begin + i};
    }
    return placement;
}

template <class LengthOf>
std::vector<int32_t> prefix_sums(int32_t batch, LengthOf length_of) {
    std::vector<int32_t> sums = {0};
    for (int32_t b = 0; b < batch; b++) sums.push_back(sums.back() + length_of(b));
    return sums;
}

std::vector<int32_t> shuffled(int32_t n, Rng *rng) {
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < n; id++) {
        ids.push_back(id);
        std::swap(ids.back(), ids[static_cast<size_t>(rng->below(id + 1))]);
    }
    return ids;
}

// All bytes of the keys and values of a page's tokens, its identity where equal pages are shared.
std::string contents(const Attention &a, int32_t b, int32_t begin, int32_t end) {
    const auto bytes = [](const std::vector<float> &values, int64_t first, int64_t last) {
        return std::string(reinterpret_cast<const char *>(values.data() + first),
                           reinterpret_cast<const char *>(values.data() + last));
    };
    return bytes(a.k, a.k_index(b, begin, 0), a.k_index(b, end, 0)) +
           bytes(a.v, a.v_index(b, begin, 0), a.v_index(b, end, 0));
}

void place_pages(const Attention &a, const CallOptions &options, Storage *storage) {
    const int32_t size = options.page_size, columns = (a.kv_len + size - 1) / size;
    storage->max_pages_per_seq = columns + options.spare_columns;
    storage->page_table.assign(static_cast<size_t>(a.batch * storage->max_pages_per_seq), garbage_page);
    Rng rng(options.page_seed);
    const int32_t num_pages = a.batch * columns + unused_pages;
    const std::vector<int32_t> ids = shuffled(num_pages, &rng);
    std::map<std::string, int32_t> known;
    Placement &kv = storage->kv;
    kv = {num_pages, size, a.kv_len, {}};
    kv.slots.assign(static_cast<size_t>(a.batch) * static_cast<size_t>(a.kv_len), {-1, 0});
    size_t used = 0;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t begin = 0; begin < a.kv_len_of(b); begin += size) {
            const int32_t end = std::min(begin + size, a.kv_len);
            int32_t id = ids[used];
            if (options.share_pages) id = known.emplace(contents(a, b, begin, end), id).first->second;
            used += id == ids[used];
            storage->page_table[static_cast<size_t>(b * storage->max_pages_per_seq + begin / size)] = id;
            for (int32_t j = begin; j < end; j++) kv.at(b, j) = {id, j - begin};
        }
    }
}

}  // namespace

Storage lay_out(const Attention &a, const CallOptions &options) {
    Storage storage;
    if (options.q_storage == HEED_Q_VARLEN) {
        storage.cu_seqlens_q = prefix_sums(a.batch, [&](int32_t b) { return a.q_len_of(b); });
        storage.q = varlen(a.batch, a.q_len, storage.cu_seqlens_q);
    } else {
        if (!a.q_lens.empty()) throw std::logic_error("dense queries have no lengths of their own");
        storage.q = dense(a.batch, a.q_len);
    }
    if (options.kv_storage == HEED_KV_VARLEN) {
        storage.cu_seqlens_kv = prefix_sums(a.batch, [&](int32_t b) { return a.kv_len_of(b); });
        storage.kv = varlen(a.batch, a.kv_len, storage.cu_seqlens_kv);
        return storage;
    }
    storage.kv_lens = a.kv_lens;
    if (options.kv_storage == HEED_KV_PAGED) {
        if (a.kv_lens.empty()) storage.kv_lens.assign(static_cast<size_t>(a.batch), a.kv_len);
        place_pages(a, options, &storage);
    } else {
        storage.kv = dense(a.batch, a.kv_len);
    }
    return storage;
}

}  // namespace heed_test
