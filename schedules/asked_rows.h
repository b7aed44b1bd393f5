#pragma once
// Rows that a task of prefill asks for between its products.

#include <vector>

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"
#include "generators/lowering/row_lines.h"

namespace heed {

// The task's rows of out, and those of the next task of q.
std::vector<RowLines> rows_of_tasks(const AttentionStages &stages, const AttentionConfig &config);

// After the passes that copy and end loops: tasks ask for those rows. With matrix tiles: add_matrix_tiles.
void add_asked_rows(Passes *passes, const AttentionStages &stages, const AttentionConfig &config);

}  // namespace heed
