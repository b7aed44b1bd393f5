// A plan that a test owns.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "heed/heed.h"

struct PlanDeleter {
    void operator()(heed_plan *plan) const { heed_plan_destroy(plan); }
};
using PlanPtr = std::unique_ptr<heed_plan, PlanDeleter>;

// Creates a plan, expecting `expected`; NULL when it fails.
inline PlanPtr make_plan(const heed_problem &problem, heed_status expected = HEED_OK) {
    heed_plan *plan = nullptr;
    EXPECT_EQ(heed_plan_create(&problem, &plan), expected) << heed_last_error();
    EXPECT_EQ(plan != nullptr, expected == HEED_OK);
    return PlanPtr(plan);
}
