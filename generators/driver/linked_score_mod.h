#pragma once
// The score function that the generator was linked with: score_mod() of no_score_mod.cpp or of a user's file.

#include <string>

#include "heed/user_score.h"

namespace heed {

// Which kernels name exactly when it is there; "none": no name. Checked; with fast math. Throws BadInput.
ScoreMod linked_score_mod(const std::string &name, bool on_cuda);

// It with the derivative of its logit.
ScoreMod linked_score_gradient(const std::string &name, bool on_cuda);

// Fields of a line of the registry: its name, "" for none, and a letter for the type of each buffer.
std::string score_mod_fields(const std::string &name, const ScoreMod &mod);

}  // namespace heed
