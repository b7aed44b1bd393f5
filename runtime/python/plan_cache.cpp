#include "runtime/python/plan_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

namespace heed::python {

PlanCache::Key PlanCache::key_of(const heed_problem &problem) {
    Key key;
    std::memcpy(key.bytes.data(), &problem, sizeof(problem));
    std::memset(&key.bytes[offsetof(heed_problem, score_mod)], 0, sizeof(problem.score_mod));
    if (problem.score_mod != nullptr) key.names = problem.score_mod;
    if (const char *forced = std::getenv("HEED_FORCE_KERNEL")) key.names.append(1, '\0').append(forced);
    return key;
}

std::shared_ptr<const Plan> PlanCache::find(const heed_problem &problem) {
    Key key = key_of(problem);
    const std::hash<std::string_view> hash_of;
    const size_t hash = hash_of({key.bytes.data(), key.bytes.size()}) ^ hash_of(key.names);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto &set = sets_[hash % num_sets];
    auto slot = std::find_if(set.begin(), set.end(), [&](const Slot &one) {
        return one.entry != nullptr && one.hash == hash && one.entry->key.bytes == key.bytes &&
               one.entry->key.names == key.names;
    });
    if (slot == set.end()) {
        auto entry = std::make_shared<const Entry>(Entry{std::move(key), Plan(problem)});
        *--slot = {hash, std::move(entry)};  // the last one of the set
    }
    std::rotate(set.begin(), slot, slot + 1);
    return {set.front().entry, &set.front().entry->plan};
}

}  // namespace heed::python
