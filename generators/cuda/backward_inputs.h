#pragma once
// What every kernel of attention's gradients on CUDA is told (HEED_CUDA_ATTENTION_BACKWARD), and where its
// rows are.

#include <vector>

#include "generators/common/element_type.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/cuda/device_code.h"
#include "generators/cuda/device_tensor.h"
#include "generators/cuda/launch_arguments.h"
#include "generators/cuda/sequence_field.h"

namespace heed::cuda {

// A block of either side (BackwardSide) makes its sums alone: no atomics, and the bits depend on nothing else.
HEED_LAUNCH_ARGUMENTS(BackwardArguments, HEED_CUDA_ATTENTION_BACKWARD)

struct BackwardInputs : BackwardArguments {
    explicit BackwardInputs(ElementType type) : BackwardArguments({type}) {}

    SequenceFields read_sequence(DeviceCode &code, const Halide::Expr &sequence) const;
    // The statistics of row 0 of a head of a sequence.
    Halide::Expr stats_of(const Halide::Expr &sequence, const Halide::Expr &head) const;
};

// Element 0 of a row of a tensor; the batch stride of ragged tensors is 0.
Halide::Expr tensor_row(const DeviceTensor &tensor, const Halide::Expr &sequence, const Halide::Expr &head,
                        const Halide::Expr &token, int size);

}  // namespace heed::cuda
