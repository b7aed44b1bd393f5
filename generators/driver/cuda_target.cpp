#include "generators/driver/cuda_target.h"

#include <fstream>
#include <sstream>

#include "generators/driver/llvm_option.h"

namespace heed {

using Halide::OutputFileType;
using Halide::Target;

namespace {

// The SLP vectorizer finds nothing in unrolled warp programs and takes three quarters of LLVM's time to see that: at a
// depth of 1 the PTX of every kernel is the same.
void spare_the_vectorizer() { add_llvm_option("-slp-recursion-max-depth=1"); }

}  // namespace

int capability_of(const std::string &isa) { return std::stoi(isa.substr(2)); }

Target cuda_target() {
    spare_the_vectorizer();
    // Halide knows capabilities up to 8.6; the rewriter and ptxas decide what the code is assembled for.
    return Target(Target::Linux, Target::X86, 64,
                  {Target::NoRuntime, Target::NoBoundsQuery, Target::UserContext, Target::SSE41, Target::LargeBuffers,
                   Target::CUDA, Target::CUDACapability70});
}

cuda::Toolkit read_toolkit(Options &options, const std::string &isa) {
    const std::set<std::string> more = options.set_of("write", {"ptx", "cubin"});
    cuda::Toolkit toolkit{
        options.get("ptxas"), options.get("fatbinary"), {}, more.count("ptx") != 0, more.count("cubin") != 0};
    std::istringstream list(options.get("capabilities"));
    for (int capability = 0; list >> capability;) {
        const bool serves = isa == "sm90" ? capability == 90 : capability >= capability_of(isa);
        if (serves) toolkit.capabilities.push_back(capability);
    }
    if (toolkit.capabilities.empty()) {
        throw BadInput("capabilities = '" + options.get("capabilities") + "' is not allowed: at least one of " +
                       std::to_string(capability_of(isa)) + " or more");
    }
    return toolkit;
}

void write_cuda_kernel(const cuda::DeviceBinary &binary, int shared_bytes, const std::string &base) {
    binary.module.compile({{OutputFileType::object, base + ".o"}});
    std::ofstream limits(base + ".limits");
    for (const auto &[capability, statistics] : binary.statistics) {
        limits << "sm_" << capability << " registers " << statistics.registers << " spill_bytes "
               << statistics.spill_bytes << " shared_bytes " << shared_bytes << "\n";
    }
    if (!limits.flush()) throw BadInput("cannot write " + base + ".limits");
}

}  // namespace heed
