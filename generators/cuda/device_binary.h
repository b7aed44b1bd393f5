#pragma once
// Machine code for the kernel of a Module, ahead of time: its PTX is rewritten, assembled for each GPU generation and
// put back as a fat binary, which the driver loads without a compiler. Its PTX is for chips newer than all of them,
// except that of sm_90a, which serves that chip alone: no chip that was asked for meets the driver's compiler.

#include <map>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/cuda/ptx_rewriter.h"

namespace heed::cuda {

struct Toolkit {
    std::string ptxas, fatbinary;   // programs
    std::vector<int> capabilities;  // of the machine code, 10 * major + minor, ascending
    bool keeps_ptx = false, keeps_cubins = false;
};

// What ptxas says of the machine code for one capability.
struct BinaryStatistics {
    int registers = 0, spill_bytes = 0;
};

struct DeviceBinary {
    Halide::Module module;
    std::map<int, BinaryStatistics> statistics;  // by capability
    int64_t image_bytes = 0;
};

// `base`: path of the files it makes; base.ptx and base.sm_80.cubin stay when the toolkit keeps them. Throws
// std::runtime_error with the output of the program that failed, or when the module does not hold exactly one kernel.
DeviceBinary assemble(const Halide::Module &module, const RewriteOptions &options, const Toolkit &toolkit,
                      const std::string &base);

}  // namespace heed::cuda
