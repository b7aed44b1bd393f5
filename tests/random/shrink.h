#pragma once

#include <functional>

#include "tests/random/problem.h"

namespace heed_test {

// The smallest problem that it finds on the way down: features dropped, storages and layouts made plain, sizes cut,
// as long as `fails` holds.
RandomProblem shrink(const RandomProblem &problem, const std::function<bool(const RandomProblem &)> &fails);

}  // namespace heed_test
