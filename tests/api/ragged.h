// Problems whose sequences have lengths of their own, in each storage, with their metadata.
#pragma once

#include <numeric>

#include "tests/api/fixture.h"

struct Lengths {
    std::vector<int32_t> q, kv;  // one of each per sequence; dense queries: all q alike
};

struct Storages {
    heed_q_storage q;
    heed_kv_storage kv;
};

constexpr Storages legal_storages[] = {{HEED_Q_DENSE, HEED_KV_CONTIGUOUS},
                                       {HEED_Q_DENSE, HEED_KV_PAGED},
                                       {HEED_Q_VARLEN, HEED_KV_VARLEN},
                                       {HEED_Q_VARLEN, HEED_KV_CONTIGUOUS},
                                       {HEED_Q_VARLEN, HEED_KV_PAGED}};

constexpr int32_t page_size = 4;
constexpr int32_t int32_min = std::numeric_limits<int32_t>::min();
constexpr int32_t int32_max = std::numeric_limits<int32_t>::max();

inline int32_t pages_of(int32_t kv_len) { return (kv_len + page_size - 1) / page_size; }

// Capacities hold the longest sequence and one more; the pool has one page more than is needed.
inline heed_problem ragged_problem(const Storages &storages, const Lengths &lengths, int32_t num_heads = 4,
                                   int32_t num_kv_heads = 2, int32_t head_dim = 8) {
    const int32_t longest = *std::max_element(lengths.kv.begin(), lengths.kv.end());
    heed_problem problem =
        make_problem(static_cast<int32_t>(lengths.q.size()), *std::max_element(lengths.q.begin(), lengths.q.end()),
                     longest + 1, num_heads, num_kv_heads, head_dim, head_dim);
    problem.q_storage = storages.q;
    problem.kv_storage = storages.kv;
    problem.total_q = std::accumulate(lengths.q.begin(), lengths.q.end(), 0);
    problem.total_kv = std::accumulate(lengths.kv.begin(), lengths.kv.end(), 0);
    problem.has_kv_lens = storages.kv != HEED_KV_VARLEN;
    problem.page_size = page_size;
    problem.max_pages_per_seq = pages_of(longest) + 1;
    problem.num_pages = 1;
    for (int32_t kv_len : lengths.kv) problem.num_pages += pages_of(kv_len);
    problem.want_lse = true;
    return problem;
}

// The arrays of one call. Pages are handed out from the pool's end; entries after a sequence's pages are garbage.
struct Metadata {
    Metadata(const heed_problem &p, const Lengths &lengths)
        : cu_seqlens_q{0}, cu_seqlens_kv{0}, kv_lens(lengths.kv), q_offsets(lengths.q.size(), 0),
          page_table(lengths.q.size() * static_cast<size_t>(p.max_pages_per_seq), int32_max) {
        for (int32_t q_len : lengths.q) cu_seqlens_q.push_back(cu_seqlens_q.back() + q_len);
        for (int32_t kv_len : lengths.kv) cu_seqlens_kv.push_back(cu_seqlens_kv.back() + kv_len);
        int32_t page = p.num_pages;
        for (size_t b = 0; b < lengths.kv.size(); b++) {
            int32_t *entries = page_table.data() + b * static_cast<size_t>(p.max_pages_per_seq);
            for (int32_t i = 0; i < pages_of(lengths.kv[b]); i++) entries[i] = --page;
        }
    }

    void attach(heed_args *args) const {
        args->cu_seqlens_q = cu_seqlens_q.data();
        args->cu_seqlens_kv = cu_seqlens_kv.data();
        args->kv_lens = kv_lens.data();
        args->q_offsets = q_offsets.data();
        args->page_table = page_table.data();
    }

    std::vector<int32_t> cu_seqlens_q, cu_seqlens_kv, kv_lens, q_offsets, page_table;
};

// An attempt with metadata, and where its tokens are.
struct Ragged : Attempt {
    Ragged(const heed_problem &p, const Lengths &its_lengths, uint32_t seed = 1)
        : Attempt(p, seed), lengths(its_lengths), metadata(p, its_lengths) {
        metadata.attach(&args);
    }

    // Indices of rows [heads, d] in q and out, in k and v.
    size_t q_token(size_t b, int32_t i) const {
        return static_cast<size_t>(problem.q_storage == HEED_Q_VARLEN
                                       ? metadata.cu_seqlens_q[b] + i
                                       : static_cast<int32_t>(b) * problem.max_q_len + i);
    }
    size_t kv_token(size_t b, int32_t j) const {
        const auto sequence = static_cast<int32_t>(b);
        if (problem.kv_storage == HEED_KV_VARLEN) return static_cast<size_t>(metadata.cu_seqlens_kv[b] + j);
        if (problem.kv_storage == HEED_KV_CONTIGUOUS) return static_cast<size_t>(sequence * problem.max_kv_len + j);
        const auto entry = static_cast<size_t>(sequence * problem.max_pages_per_seq + j / page_size);
        return static_cast<size_t>(metadata.page_table[entry] * page_size + j % page_size);
    }
    float lse_at(size_t b, int32_t h, int32_t i) const {
        const int32_t token = static_cast<int32_t>(q_token(b, i)), heads = problem.num_heads;
        if (problem.q_storage == HEED_Q_VARLEN) return tensors.lse[static_cast<size_t>(h * problem.total_q + token)];
        return tensors.lse[static_cast<size_t>((static_cast<int32_t>(b) * heads + h) * problem.max_q_len + i)];
    }

    const Lengths lengths;
    Metadata metadata;
};
