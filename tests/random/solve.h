// One random problem through the C API, against the reference.
#pragma once

#include <string>

#include "tests/random/problem.h"

namespace heed_test {

struct Solution {
    enum Kind { right, refused, wrong };
    Kind kind = wrong;
    std::string kernel;  // that ran, "" when none did
    std::string words;   // what is wrong
    bool needed_kernel = false;
    std::vector<float> out, lse;
};

// Runs the problem flush with the rear guard page, and flush with the front one on one thread. Right: both succeed,
// with the same bits, which are within the bounds of the reference, and nothing outside of the outputs has changed.
// Refused: HEED_UNSUPPORTED with a sentence, and no kernel of the table could have served. Throws nothing.
Solution solve(const RandomProblem &problem);

}  // namespace heed_test
