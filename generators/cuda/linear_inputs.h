#pragma once
// What the kernels of heed_linear share: arguments, and where results go.

#include <string>
#include <vector>

#include "generators/contract/cuda_arguments.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/launch_arguments.h"
#include "generators/cuda/row_elements.h"

namespace heed::cuda {

HEED_LAUNCH_ARGUMENTS(LinearInputs, HEED_CUDA_LINEAR)

// The first of the rows and columns of the launch whose results a block makes.
struct LinearBlock {
    Halide::Expr first_row, first_column;
};

// Where rows of x, W and out are, and which of them are a block's.
class LinearRows {
public:
    LinearRows(const LinearInputs &in, DeviceCode &code, RowElements &elements)
        : in(in), code(code), elements(elements) {}

    // Blocks of so many results each, along the columns first.
    Halide::Expr num_blocks(int rows, int columns) const;
    LinearBlock block(const std::string &kernel, int rows, int columns);

    Halide::Expr x(const Halide::Expr &row);       // address of a row
    Halide::Expr weight(const Halide::Expr &row);  // of a column of the launch
    Halide::Expr out(const Halide::Expr &row);
    // Adds the bias to a sum and stores it in a row of out.
    void store(const Halide::Expr &row_of_out, const Halide::Expr &column, const Halide::Expr &sum);

private:
    const LinearInputs &in;
    DeviceCode &code;
    RowElements &elements;

    Halide::Expr place(const Halide::Expr &row, const Halide::Expr &first, const Halide::Expr &batch,
                       const Halide::Expr &token);
};

}  // namespace heed::cuda
