#include "plan_cache.h"

#include <cstdlib>

namespace heed::python {

std::shared_ptr<const Plan> PlanCache::find(const heed_problem &problem) {
    std::string key(reinterpret_cast<const char *>(&problem), sizeof(problem));
    if (const char *forced = std::getenv("HEED_FORCE_KERNEL")) key += forced;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = index_.find(key);
    if (found != index_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        return found->second->second;
    }
    auto plan = std::make_shared<const Plan>(problem);
    entries_.emplace_front(key, plan);
    index_.emplace(std::move(key), entries_.begin());
    if (entries_.size() > capacity) {
        index_.erase(entries_.back().first);
        entries_.pop_back();
    }
    return plan;
}

}  // namespace heed::python
