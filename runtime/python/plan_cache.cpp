#include "runtime/python/plan_cache.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace heed::python {
namespace {

// The bytes of the problem, with the score function's name for the address of that.
std::string key_of(const heed_problem &problem) {
    std::string key(reinterpret_cast<const char *>(&problem), sizeof(problem));
    std::memset(&key[offsetof(heed_problem, score_mod)], 0, sizeof(problem.score_mod));
    if (problem.score_mod != nullptr) key += problem.score_mod;
    key.push_back('\0');
    if (const char *forced = std::getenv("HEED_FORCE_KERNEL")) key += forced;
    return key;
}

}  // namespace

std::shared_ptr<const Plan> PlanCache::find(const heed_problem &problem) {
    std::string key = key_of(problem);
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
