#include "tests/cuda_device/launch.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "tests/cuda_device/cuda_abi.h"

namespace heed::device {
namespace {

// A host thread's share of a launch: one block at a time.
class Worker {
public:
    Worker(const Launch &launch, const Options &options)
        : options_(options), shared_(launch.shared_bytes, options.checks) {
        execution_.kernel = launch.kernel;
        execution_.lines = &launch.program->lines;
        execution_.memory = launch.memory;
        execution_.owner = launch.owner;
        execution_.parameters = launch.parameters.data();
        execution_.shared = &shared_;
        execution_.late_arrival = options.late_arrival;
        execution_.late_products = options.late_products;
        execution_.step_limit = options.step_limit;
        execution_.counts_traffic = options.traffic;
        execution_.counts.resize(launch.kernel->code.size());
        execution_.last_allocation.resize(launch.kernel->code.size());
        std::copy_n(launch.block, 3, execution_.block_threads);
        std::copy_n(launch.grid, 3, execution_.grid);
        const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
        for (uint32_t warp = 0; warp * warp_size < threads; warp++)
            warps_.push_back(std::make_unique<Warp>(execution_, warp));
    }

    void run_block(uint64_t index) {
        const unsigned int callers = _mm_getcsr();
        _mm_setcsr(0x1f80);  // a device knows nothing of the calling thread's rounding and subnormals
        run_warps_of(index);
        _mm_setcsr(callers);
    }

    Counts counts() const { return {execution_.counts, execution_.traffic}; }

private:
    void run_warps_of(uint64_t index) {
        const uint64_t x = execution_.grid[0], y = execution_.grid[1];
        execution_.block[0] = static_cast<uint32_t>(index % x);
        execution_.block[1] = static_cast<uint32_t>(index / x % y);
        execution_.block[2] = static_cast<uint32_t>(index / x / y);
        shared_.begin_block();
        for (const auto &warp : warps_) warp->begin_block();
        std::vector<uint32_t> order(warps_.size());
        std::iota(order.begin(), order.end(), 0u);
        if (options_.order == Order::descending) std::reverse(order.begin(), order.end());
        std::mt19937_64 random(options_.seed + index);
        do {
            if (options_.order == Order::random) std::shuffle(order.begin(), order.end(), random);
            for (const uint32_t warp : order)
                if (!warps_[warp]->exited()) warps_[warp]->run();
        } while (pass_barrier());
    }

    // Every warp has exited or waits at a barrier. False where none does.
    bool pass_barrier() {
        uint32_t votes = 0, lanes = 0;
        const Warp *first = nullptr;
        for (const auto &warp : warps_) {
            if (warp->exited()) continue;
            if (first == nullptr) first = warp.get();
            if (warp->barrier_kind() != first->barrier_kind())
                throw Fault(cuda_launch_failed,
                            "kernel " + execution_.kernel->name + ": warps meet at barriers of two kinds");
            votes += warp->barrier_votes();
            lanes += warp->barrier_lanes();
        }
        if (first == nullptr) return false;
        for (const auto &warp : warps_)
            if (!warp->exited()) warp->leave_barrier(votes, lanes);
        shared_.barrier();
        return true;
    }

    const Options &options_;
    SharedMemory shared_;
    Execution execution_;
    std::vector<std::unique_ptr<Warp>> warps_;
};

Counts run_in_order(const Launch &launch, const Options &options, uint64_t blocks) {
    Worker worker(launch, options);
    if (options.order == Order::random) {
        std::vector<uint64_t> order(blocks);
        std::iota(order.begin(), order.end(), 0u);
        std::mt19937_64 random(options.seed);
        std::shuffle(order.begin(), order.end(), random);
        for (const uint64_t block : order) worker.run_block(block);
    } else {
        for (uint64_t i = 0; i < blocks; i++) worker.run_block(options.order == Order::descending ? blocks - 1 - i : i);
    }
    return worker.counts();
}

// Blocks are claimed in ascending order, so the least of the failed ones is the first that fails alone too.
Counts run_on_two(const Launch &launch, const Options &options, uint64_t blocks) {
    std::atomic<uint64_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::optional<Fault> fault;
    uint64_t fault_block = 0;
    Counts counts;
    counts.instructions.resize(launch.kernel->code.size());
    const auto work = [&] {
        Worker worker(launch, options);
        for (uint64_t block = next++; block < blocks && !failed; block = next++) {
            try {
                worker.run_block(block);
            } catch (const Fault &error) {
                const std::lock_guard<std::mutex> lock(mutex);
                if (!fault || block < fault_block) {
                    fault.emplace(error);
                    fault_block = block;
                }
                failed = true;
            }
        }
        const std::lock_guard<std::mutex> lock(mutex);
        const Counts mine = worker.counts();
        for (size_t i = 0; i < mine.instructions.size(); i++) counts.instructions[i] += mine.instructions[i];
        counts.traffic += mine.traffic;
    };
    std::thread other(work);
    work();
    other.join();
    if (fault) throw *fault;
    return counts;
}

}  // namespace

Counts run_launch(const Launch &launch, const Options &options) {
    const uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    if (options.order == Order::any && blocks > 1) return run_on_two(launch, options, blocks);
    return run_in_order(launch, options, blocks);
}

}  // namespace heed::device
