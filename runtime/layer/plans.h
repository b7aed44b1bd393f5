// The attention plans that a layer has made, by their problem.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "heed/heed.h"

namespace heed {

// Thread-safe. Finding a plan allocates nothing; a plan lives as long as someone holds it.
class PlanCache {
public:
    // `problem` comes from heed_problem_init and single assignments: its padding is zero, and it is compared as bytes.
    heed_status find(const heed_problem &problem, std::shared_ptr<const heed_plan> *plan);

private:
    static constexpr size_t most_plans = 64;  // a layer sees a few shapes; masks of growing caches bring more
    struct Entry {
        std::array<unsigned char, sizeof(heed_problem)> problem;
        std::shared_ptr<const heed_plan> plan;
    };
    std::mutex mutex_;
    std::vector<Entry> entries_;  // last used first
};

}  // namespace heed
