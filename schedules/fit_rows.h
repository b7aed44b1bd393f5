#pragma once
// Loops over the rows of a task's block that there are.

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"
#include "generators/lowering/trim_rows.h"

namespace heed {

// Numbers of vectors of rows, but all of them, for which a step has a copy of its own: with matrix tiles, in decode,
// one and two; with register tiles each number, or one where steps are long, with masks or biases: a third copy of them
// would take a sixth of the time to make the table.
int copies_for_fewer_rows(const AttentionConfig &config);

// Steps, and the loops over vectors of rows that end with `rows.loops`, compute those that there are. Sets block, lanes
// and left of `rows`.
void fit_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config, TrimRows::Rows rows);

// The same of all stages of register tiles.
void fit_register_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config);

}  // namespace heed
