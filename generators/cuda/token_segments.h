#pragma once
// The arguments of the kernels of token_moves.h, and what a thread makes of them.

#include <vector>

#include "device_code.h"
#include "launch.h"
#include "launch_words.h"
#include "token_moves.h"

namespace heed::cuda {

struct MoveInputs {
    // Of each segment: addresses of its first token in the source, the destination and the scales; tokens | table row
    // << 32.
    LaunchWords words{num_segments, segment_words};
    Halide::Param<int32_t> segments{"segments"}, max_tokens{"max_tokens"};  // how many, tokens of the longest
    Halide::Param<int32_t> num_heads{"num_heads"}, row_length{"row_length"}, num_pairs{"num_pairs"};
    Halide::Param<int32_t> interleaved{"interleaved"};
    Halide::Param<int32_t> wide{"wide"};          // 1: addresses, strides and lengths allow 16 bytes at a time
    Halide::Param<float> direction{"direction"};  // 1, or -1: rotates back
    Halide::Param<uint64_t> from_token{"from_token"}, from_head{"from_head"};  // strides in bytes
    Halide::Param<uint64_t> to_token{"to_token"}, to_head{"to_head"};
    Halide::Param<uint64_t> cos{"cos"}, sin{"sin"};  // addresses of f32 [table row, num_pairs]

    std::vector<Halide::Argument> arguments() const;
};

// One segment in registers.
struct Segment {
    Halide::Expr from, to, scales, tokens, table_row;
};

// The segment of a number.
Segment read_segment(DeviceCode &code, const MoveInputs &in, const Halide::Expr &number);

}  // namespace heed::cuda
