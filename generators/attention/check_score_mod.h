#pragma once
// A user's score function is tried before kernels are made of it: what is wrong with it is said in the words of
// user_score.h.

#include "heed/user_score.h"

namespace heed {

// Throws std::runtime_error with the field that is wrong, what was found there and what is allowed.
void check_score_mod(const ScoreMod &mod, bool on_cuda);

}  // namespace heed
