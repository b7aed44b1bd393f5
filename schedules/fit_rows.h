#pragma once
// Loops over the rows of a task's block that there are.

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"
#include "generators/lowering/trim_rows.h"

namespace heed {

// Steps, and the loops over vectors of rows that end with `rows.loops`, compute those that there are. Sets block, lanes
// and left of `rows`.
void fit_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config, TrimRows::Rows rows);

// The same of all stages of register tiles.
void fit_register_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config, int most_kept);

}  // namespace heed
