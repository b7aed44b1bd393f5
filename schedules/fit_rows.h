#pragma once

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"
#include "generators/lowering/trim_rows.h"

namespace heed {

// Steps, and the loops over vectors of rows that end with `rows.loops`, compute those that there are.
void fit_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config, TrimRows::Rows rows);

}  // namespace heed
