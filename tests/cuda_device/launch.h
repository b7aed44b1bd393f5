// Runs the grid of a launch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_device/warp.h"

namespace heed::device {

enum class Order { any, ascending, descending, random };

struct Options {
    Order order = Order::any;  // of blocks, and of warps between barriers; any: two host threads share the blocks
    uint64_t seed = 0;
    bool late_arrival = false;         // cp.async: at the wait, not at issue
    bool late_products = false;        // wgmma: the same
    bool checks = true;                // of shared memory
    bool traffic = false;              // sectors of global memory are counted
    uint64_t step_limit = 20'000'000;  // per warp
};

struct Launch {
    std::shared_ptr<const Program> program;
    const Kernel *kernel = nullptr;  // of the program
    const DeviceMemory *memory = nullptr;
    uint64_t owner = 0;
    uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
    uint32_t shared_bytes = 0;  // static and dynamic
    std::vector<uint8_t> parameters;
};

// How often each instruction ran, and what was moved.
struct Counts {
    std::vector<uint64_t> instructions;
    Traffic traffic;
};

// Throws the Fault of the first block that failed.
Counts run_launch(const Launch &launch, const Options &options);

}  // namespace heed::device
