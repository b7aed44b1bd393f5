#include "runtime/layer/plans.h"

#include <algorithm>
#include <cstring>

namespace heed {

heed_status PlanCache::find(const heed_problem &problem, std::shared_ptr<const heed_plan> *plan) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::array<unsigned char, sizeof(problem)> bytes;
    std::memcpy(bytes.data(), &problem, sizeof(problem));
    const auto same = [&](const Entry &entry) { return entry.problem == bytes; };
    auto found = std::find_if(entries_.begin(), entries_.end(), same);
    if (found == entries_.end()) {
        heed_plan *created = nullptr;
        if (const heed_status status = heed_plan_create(&problem, &created)) return status;
        Entry entry = {bytes, {created, heed_plan_destroy}};
        entries_.reserve(most_plans);
        if (entries_.size() == most_plans) entries_.pop_back();
        found = entries_.insert(entries_.end(), std::move(entry));
    }
    std::rotate(entries_.begin(), found, found + 1);
    *plan = entries_.front().plan;
    return HEED_OK;
}

}  // namespace heed
