#pragma once
// The arguments of the kernels of token_moves.h, and what a thread makes of them.

#include <vector>

#include "generators/contract/cuda_arguments.h"
#include "generators/cuda/device_code.h"
#include "generators/cuda/launch_arguments.h"
#include "generators/cuda/launch_words.h"
#include "generators/cuda/token_moves.h"

namespace heed::cuda {

HEED_LAUNCH_ARGUMENTS(MoveInputs, HEED_CUDA_MOVE_TOKENS)

// One segment in registers.
struct Segment {
    Halide::Expr from, to, scales, tokens, table_row;
};

// The segment of a number.
Segment read_segment(DeviceCode &code, const MoveInputs &in, const Halide::Expr &number);

}  // namespace heed::cuda
