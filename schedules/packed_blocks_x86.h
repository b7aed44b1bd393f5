#pragma once
// Blocks of keys and values that are packed for matrix tiles: before all tasks, or in the step that multiplies them.

#include "schedules/task_schedule.h"

namespace heed {

class PackedSchedule : TaskSchedule {
public:
    using TaskSchedule::TaskSchedule;

    void first();
    void in_step(BlockChain &ch);

private:
    const Halide::Var dv{"dv"}, db{"db"};

    // In each iteration of the loops `outer`, those over blocks.
    void blocks(PackedBlocks &p, const std::vector<Halide::VarOrRVar> &outer);
};

}  // namespace heed
