#pragma once
// Small kernels of tensors at addresses, for tests of the passes that lower them.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "generators/common/device_memory.h"
#include "generators/cuda/ptx_rewriter.h"
#include "schedules/cuda/operation.h"

// A kernel of addresses and numbers, as the contract's lists make them.
struct DeviceKernel : heed::Results {
    Halide::Param<uint64_t> from{"from"}, to{"to"};
    Halide::Param<int32_t> count{"count"};

    std::vector<Halide::Argument> arguments() const { return {from, to, count}; }
    std::vector<heed::OutputType> output_types() const { return {{Halide::UInt(8), 1}}; }
};

inline heed::OpSpec device_spec(const std::string &name) {
    heed::OpSpec spec;
    spec.name = name;
    using Halide::Target;
    spec.target = Target(Target::Linux, Target::X86, 64,
                         {Target::NoRuntime, Target::NoBoundsQuery, Target::UserContext, Target::LargeBuffers,
                          Target::CUDA, Target::CUDACapability70});
    return spec;
}

// Computed at a loop, with so many elements of each variable.
inline Halide::Func &computed(Halide::Func &f, const Halide::LoopLevel &at, Halide::MemoryType where,
                              const std::vector<std::pair<Halide::Var, int>> &extents) {
    f.compute_at(at).store_in(where);
    for (const auto &[variable, extent] : extents) f.bound_extent(variable, extent);
    return f;
}

// How often each instruction that Halide has not got is in the kernel, and "bar.sync". text: the kernel's PTX.
inline std::map<std::string, int> instructions(const Halide::Module &module, std::string *text = nullptr) {
    for (const auto &buffer : module.buffers()) {
        if (buffer.name().find("gpu_source_kernels") == std::string::npos) continue;
        const std::string ptx(static_cast<const char *>(buffer.data()), buffer.size_in_bytes());
        const heed::cuda::RewrittenPtx rewritten = heed::cuda::rewrite_ptx(ptx, {75, heed::cuda_op_threads, 1});
        std::map<std::string, int> found = rewritten.intrinsics;
        if (text != nullptr) *text = rewritten.text;
        const std::string barrier = "bar.sync";
        for (size_t at = 0; (at = rewritten.text.find(barrier, at)) != std::string::npos; at++) found[barrier]++;
        return found;
    }
    return {};
}
