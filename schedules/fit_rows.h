#pragma once
// Loops over the rows of a task's block that there are.

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"

namespace heed {

// Numbers of vectors of rows, but all of them, for which a step has a copy of its own: with matrix tiles, in decode,
// one and two; with register tiles each number, or one where steps are long, with masks or biases: a third copy of them
// would take a sixth of the time to make the table.
int copies_for_fewer_rows(const AttentionConfig &config);

// Steps, and loops over vectors of rows, compute those that there are. Of rows that a copy leaves out maxima stay the
// lowest ones: so references do, too, no sum is scaled for them, and no logit looks huge. What `reference` reads of
// them must be initialised: loops of the state itself go over all rows.
void fit_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config);

}  // namespace heed
