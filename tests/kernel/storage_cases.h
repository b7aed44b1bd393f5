// Problems whose tokens can be stored in several ways.
#pragma once

#include "tests/support/expect.h"

namespace heed_test {

struct StoragePair {
    heed_q_storage q;
    heed_kv_storage kv;
};

class StoredTokens : public KernelTest {
protected:
    Attention attention(const std::vector<int32_t> &q_lens, const std::vector<int32_t> &kv_lens, int32_t q_len,
                        int32_t kv_len) const {
        Attention a = grouped(q_len, kv_len, 61, 4, 2, static_cast<int32_t>(kv_lens.size()));
        a.q_lens = q_lens;
        a.kv_lens = kv_lens;
        a.position = HEED_BOTTOM_RIGHT;
        a.causal = true;
        return a;
    }
    // Sequences that prefill, go on with a chunk, decode, have no query and no key.
    Attention mixed() const {
        return attention({37, 9, 1, 1, 0, 2}, {37, block() + 30, block() + 1, 5, 20, 0}, 40, block() + 50);
    }

    std::vector<StoragePair> legal() const {
        std::vector<StoragePair> all = {
            {HEED_Q_DENSE, HEED_KV_CONTIGUOUS}, {HEED_Q_VARLEN, HEED_KV_CONTIGUOUS}, {HEED_Q_VARLEN, HEED_KV_VARLEN}};
        if (kernel().paged()) {
            all.push_back({HEED_Q_DENSE, HEED_KV_PAGED});
            all.push_back({HEED_Q_VARLEN, HEED_KV_PAGED});
        }
        return all;
    }
    std::vector<StoragePair> varlen() const {
        std::vector<StoragePair> all = legal();
        all.erase(std::remove_if(all.begin(), all.end(), [](const StoragePair &s) { return s.q == HEED_Q_DENSE; }),
                  all.end());
        return all;
    }
    CallOptions stored(const StoragePair &s, int32_t page_size = 16) const {
        CallOptions result = options().with_storage(s.q, s.kv);
        result.page_size = page_size;
        return result;
    }
    static std::vector<int32_t> page_sizes(const StoragePair &s) {
        return s.kv == HEED_KV_PAGED ? std::vector<int32_t>{1, 3, 16, 64, 256} : std::vector<int32_t>{16};
    }

    // All of `storages` give the bits of the first, which is right.
    void expect_one_result(const Attention &a, const std::vector<StoragePair> &storages) {
        const Result first = expect_correct(a, stored(storages[0]), {false, true});
        for (const StoragePair &s : storages) {
            for (const int32_t page_size : some(page_sizes(s), 3)) {
                expect_same_bits(expect_runs(a, stored(s, page_size)), first);
            }
        }
    }
};

}  // namespace heed_test
