#pragma once
// Blocks of keys and values that are packed for products of bf16: before all tasks, or in the step that multiplies
// them.

#include <vector>

#include "schedules/task_schedule.h"

namespace heed {

class PackedBlocksSchedule : TaskSchedule {
public:
    using TaskSchedule::TaskSchedule;

    void first();                  // blocks of all heads are the tasks of loops of their own
    void in_step(BlockChain &ch);  // each step packs its block

private:
    // In each iteration of the loops `outer`, those over blocks.
    void blocks(PackedBlocks &p, const std::vector<Halide::VarOrRVar> &outer);
};

}  // namespace heed
