#pragma once
// From the PTX of Halide's backend to PTX that ptxas takes: calls of intrinsics (intrinsics.h) become instructions, one
// for one.

#include <map>
#include <string>

namespace heed::cuda {

struct RewriteOptions {
    int capability = 80;      // of .target, 10 * major + minor
    int threads = 0;          // of a block, known to ptxas as the most there will be
    int blocks = 1;           // that an SM's registers are to hold
    bool warpgroups = false;  // products of warpgroups (warpgroup.h): the code is for this capability alone
};

// The word for a capability: sm_80, or sm_90a.
std::string target_of(int capability, const RewriteOptions &options);

struct RewrittenPtx {
    std::string text;
    std::map<std::string, int> intrinsics;  // how often each was replaced
};

// Throws std::runtime_error with the line when something is not as expected: a call of another function, a form of call
// that the backend did not make so far, a function without its call, no kernel or several, no or several .version or
// .target lines.
RewrittenPtx rewrite_ptx(const std::string &ptx, const RewriteOptions &options);

}  // namespace heed::cuda
