#pragma once
// What the kernels of heed_linear share: arguments, and where results go.

#include <string>
#include <vector>

#include "index_math.h"
#include "intrinsics.h"
#include "launch.h"
#include "row_elements.h"

namespace heed::cuda {

struct LinearInputs {
    Halide::Param<int32_t> num_rows{"num_rows"}, len{"len"}, dim_in{"dim_in"};
    Halide::Param<int32_t> first_column{"first_column"}, columns{"columns"},
        head_dim{"head_dim"};                                                      // columns of this launch
    Halide::Param<uint64_t> x{"x_first"}, x_batch{"x_batch"}, x_token{"x_token"};  // addresses; strides in bytes
    Halide::Param<uint64_t> weight{"weight_first"}, weight_row{"weight_row"}, bias{"bias_first"};  // bias may be 0
    Halide::Param<uint64_t> out{"out_first"}, out_batch{"out_batch"}, out_token{"out_token"}, out_head{"out_head"};

    std::vector<Halide::Argument> arguments() const {
        std::vector<Halide::Argument> result;
        for (const auto &param : {num_rows, len, dim_in, first_column, columns, head_dim}) result.emplace_back(param);
        for (const auto &param : {x, x_batch, x_token, weight, weight_row, bias, out, out_batch, out_token, out_head}) {
            result.emplace_back(param);
        }
        return result;
    }
};

// The first of the rows and columns of the launch whose results a block makes.
struct LinearBlock {
    Halide::Expr first_row, first_column;
};

// Where rows of x, W and out lie, and which of them are a block's.
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
