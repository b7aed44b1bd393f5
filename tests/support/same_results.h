// Two rows for the same problems, of other schedules or other tiles.
#pragma once

#include <string>

#include "rows.h"

namespace heed_test {

// Runs random problems of the row on it and on `other`: "", or where they differ by more than roundings may. Throws
// std::runtime_error where one does not run.
std::string difference(const Row &row, const std::string &other, int num_calls = 12);

}  // namespace heed_test
