#pragma once
// The operations around attention, joined with their schedules: for which element types and instruction sets there are
// kernels of each, and what makes them. Adding an operation: its arguments and its name in generators/contract, its
// algorithm and schedule, a line here, and its kernels in generators/kernels.cmake.

#include <functional>
#include <string>
#include <vector>

#include "generators/common/element_type.h"
#include "generators/contract/operations.h"

namespace heed {

// One kernel of an operation.
struct OpSpec {
    std::string name, dtype, kv_dtype, isa;
    Op op = Op::add;
    int rows = 0;      // linear and linear_rows of CPUs: of the register tile; others 0
    int head_dim = 0;  // attention_backward_keys and _queries: the largest; others 0
    Halide::Target target;

    ElementType type() const;
};

struct CpuForm {
    Op op;
    std::vector<std::string> dtypes, isas;
    struct Made {
        Halide::Module module;
        int rows, columns;  // of the tile, where the runtime must know it
    };
    std::function<Made(const OpSpec &)> make;
};

struct CudaForm {
    Op op;
    std::vector<std::string> dtypes;
    std::string isa;
    int head_dim;  // that the form is for; 0: any
    int threads;   // of a block
    std::function<Halide::Module(const OpSpec &)> make;
    int shared_bytes = 0;
};

// Throw BadInput with a sentence when there is no such kernel.
const CpuForm &find_cpu_form(const OpSpec &spec);
const CudaForm &find_cuda_form(const OpSpec &spec);

const std::vector<CpuForm> &cpu_forms();
const std::vector<CudaForm> &cuda_forms();

}  // namespace heed
