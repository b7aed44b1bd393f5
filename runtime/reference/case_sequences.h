// The sequences of a case and what they see. The case is one that heed_execute accepted: lengths are not checked here.
#pragma once

#include "runtime/reference/case_file.h"

namespace heed_reference {

struct Sequence {
    int64_t q_len, kv_len;
    int64_t first_q, first_key;  // varlen: the token that is the sequence's first; else 0
    int64_t offset;              // p(i) = i + offset
};

Sequence sequence_of(const Case &c, int64_t b);

// Pairs of query and key that are visible, over batch and heads.
int64_t visible_pairs(const Case &c);

}  // namespace heed_reference
