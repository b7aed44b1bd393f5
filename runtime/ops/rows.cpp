#include "runtime/ops/rows.h"

#include <algorithm>
#include <cstring>

namespace heed {

void copy_rows(const Rows &from, const Rows &to, int32_t num_tokens, int32_t num_heads, int64_t row_bytes) {
    int64_t heads = num_heads, tokens = num_tokens, bytes = row_bytes;
    if (heads == 1 || (from.head_stride == bytes && to.head_stride == bytes)) {
        bytes *= heads;
        heads = 1;
        if (from.token_stride == bytes && to.token_stride == bytes) {
            bytes *= tokens;
            tokens = 1;
        }
    }
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t h = 0; h < heads; h++) std::memcpy(to.at(t, h), from.at(t, h), static_cast<size_t>(bytes));
    }
}

int32_t tokens_per_block(int64_t token_bytes) {
    return static_cast<int32_t>(std::max<int64_t>(1, block_bytes / std::max<int64_t>(1, token_bytes)));
}

}  // namespace heed
