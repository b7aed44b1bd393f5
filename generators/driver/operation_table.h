#pragma once
// The contract's table of kernels of operations (op_kernels), for what it has.

#include <string>
#include <vector>

namespace heed {

struct TableOption {
    std::string name, value;
    std::string unsaid;  // what it is of lines that do not say it
};

// Options isa, dtype, kv_dtype, rows, head_dim of a kernel. Throws BadInput where the operation has no such kernel: the
// first option that no kernel has together with those before it, and what it may be.
void check_kernel(const std::string &op, const std::vector<TableOption> &options);

}  // namespace heed
