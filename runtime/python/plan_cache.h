// Plans of the problems seen last, so that a call like an earlier one finds its own.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "heed/heed.hpp"

namespace heed::python {

// Thread-safe.
class PlanCache {
public:
    // The plan of an equal problem, or a new one. HEED_FORCE_KERNEL is part of the problem.
    std::shared_ptr<const Plan> find(const heed_problem &problem);

private:
    struct Key {
        std::array<char, sizeof(heed_problem)> bytes;  // without the address of score_mod
        std::string names;                             // of score_mod and of the forced kernel
    };
    struct Entry {
        Key key;
        Plan plan;
    };
    struct Slot {
        size_t hash = 0;
        std::shared_ptr<const Entry> entry;
    };

    // A plan has its place in one set, by its hash, and takes that of the plan whose last use there is longest ago: a
    // new one touches no others, which the processor's caches have lost. A plan takes some 1.8 KB, with the text that
    // explain() makes 50.
    static constexpr size_t num_sets = 256, set_size = 8;
    std::mutex mutex_;
    std::array<std::array<Slot, set_size>, num_sets> sets_;  // latest first

    static Key key_of(const heed_problem &problem);
};

}  // namespace heed::python
