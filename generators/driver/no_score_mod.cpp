// The kernels of the contract, without a score function of a user's.
#include "heed/user_score.h"

namespace heed {

ScoreMod score_mod() { return {}; }

}  // namespace heed
