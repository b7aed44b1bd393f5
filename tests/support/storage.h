// Storages of an Attention: dense, varlen or paged.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/reference/attention.h"
#include "runtime/reference/placement.h"
#include "tests/support/reference_names.h"

namespace heed_test {

struct CallOptions;

struct Storage {
    Placement q, kv;
    std::vector<int32_t> cu_seqlens_q, cu_seqlens_kv, kv_lens, page_table;  // those that the call needs
    int32_t max_pages_per_seq = 0;
};

// Dense queries need a.q_lens empty. Pages are in random order among unused ones; table entries after a sequence's
// pages are 0x7fffffff.
Storage lay_out(const Attention &a, const CallOptions &options);

constexpr int32_t garbage_page = 0x7fffffff;

}  // namespace heed_test
