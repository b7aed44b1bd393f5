#include "token_segments.h"

namespace heed::cuda {

using namespace Halide;

std::vector<Argument> MoveInputs::arguments() const {
    std::vector<Argument> result(words.params().begin(), words.params().end());
    for (const Param<int32_t> &param : {segments, max_tokens, num_heads, row_length, num_pairs, interleaved, wide}) {
        result.emplace_back(param);
    }
    result.emplace_back(direction);
    for (const Param<uint64_t> &param : {from_token, from_head, to_token, to_head, cos, sin}) {
        result.emplace_back(param);
    }
    return result;
}

Segment read_segment(DeviceCode &code, const MoveInputs &in, const Expr &number) {
    const std::vector<Expr> words = in.words.find(code, number);
    return {words[0], words[1], words[2], code.let("tokens", cast<int32_t>(cast<uint32_t>(words[3]))),
            code.let("table_row", cast<uint32_t>(words[3] >> 32))};
}

}  // namespace heed::cuda
