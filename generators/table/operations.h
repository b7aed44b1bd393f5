#pragma once
// The kernels of operations around attention, as HEED_OPERATIONS of the contract registers them.

#include <string>
#include <vector>

#include "generators/contract/operations.h"
#include "generators/table/words.h"

namespace heed::table {

// Kernels of an operation: one for each dtype, instruction set, and number of rows or head dim.
struct OpKernels {
    Words dtypes, isas;
    std::string kv_dtype = {};  // empty: dtype
    Words tile_rows = {"0"}, most_dims = {"0"}, served = {};
    std::string also = {};

    OpKernels &keys(const std::string &dtype) {
        kv_dtype = dtype;
        return *this;
    }
    // linear and its like on CPUs: rows of the register tile.
    OpKernels &rows(const std::vector<int> &numbers) {
        tile_rows = texts(numbers);
        return *this;
    }
    // The largest head dim that a kernel serves.
    OpKernels &head_dims(const std::vector<int> &numbers) {
        most_dims = texts(numbers);
        return *this;
    }
    // The dtypes of tensors that the kernels serve, where not their own.
    OpKernels &for_dtypes(const Words &of_tensors) {
        served = of_tensors;
        return *this;
    }
    // Whoever gets these kernels gets those that serve the other ISA, too.
    OpKernels &with(const std::string &isa) {
        also = isa;
        return *this;
    }
};

struct Operation {
    std::string name;
    std::vector<OpKernels> kernels;
};

const std::vector<Operation> &operations();
Words operation_names();
// The operation of a name; of another word none of the contract's.
Op operation_of(const std::string &name);

// A kernel: rows and head_dim are "0" where its name has none.
struct OpKernel {
    std::string op, dtype, kv_dtype, rows, head_dim, isa;
};

// Why the operation has no such kernel: the first axis, of isa, dtype, kv_dtype, rows and head_dim, whose value no
// kernel has together with those before it, and what it may be. Empty where there is one.
std::string op_kernel_error(const OpKernel &kernel);

// The operation's kernels that serve tensors of dtype on an instruction set, those of the best one first. keys:
// kv_dtype, empty for kernels that have none.
std::vector<OpKernel> serving_op_kernels(const std::string &op, const std::string &isa, const std::string &dtype,
                                         const std::string &keys);

// Every kernel of every operation.
std::vector<OpKernel> all_op_kernels();

}  // namespace heed::table
