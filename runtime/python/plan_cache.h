// Plans of the problems seen last, so that a call like an earlier one finds its own.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "heed/heed.hpp"

namespace heed::python {

// Thread-safe.
class PlanCache {
public:
    // The plan of an equal problem, or a new one. HEED_FORCE_KERNEL is part of the problem.
    std::shared_ptr<const Plan> find(const heed_problem &problem);

private:
    using Entry = std::pair<std::string, std::shared_ptr<const Plan>>;

    static constexpr size_t capacity = 2048;  // a plan takes some 2.5 KB, with the text that explain() makes 50
    std::mutex mutex_;
    std::list<Entry> entries_;  // latest first
    std::unordered_map<std::string, std::list<Entry>::iterator> index_;
};

}  // namespace heed::python
