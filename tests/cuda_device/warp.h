// One warp: 32 lanes with a program counter each.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda_device/memory.h"
#include "tests/cuda_device/program.h"
#include "tests/cuda_device/shared_memory.h"

namespace heed::device {

// What a running kernel did wrong. `code` is a CUresult.
struct Fault : std::runtime_error {
    Fault(int result, const std::string &what) : std::runtime_error(what), code(result) {}
    int code;
};

// Sectors of 32 bytes of global memory that the accesses of warps touch; what one access touches twice counts once.
struct Traffic {
    uint64_t read = 0, written = 0;

    Traffic &operator+=(const Traffic &other) {
        read += other.read;
        written += other.written;
        return *this;
    }
};

// What all warps of one host thread share while a kernel runs.
struct Execution {
    const Kernel *kernel = nullptr;
    const std::vector<std::string> *lines = nullptr;  // of the PTX
    const DeviceMemory *memory = nullptr;
    uint64_t owner = 0;  // only this context's allocations may be touched
    const uint8_t *parameters = nullptr;
    SharedMemory *shared = nullptr;
    uint32_t block_threads[3] = {1, 1, 1}, grid[3] = {1, 1, 1}, block[3] = {0, 0, 0};
    bool late_arrival = false, late_products = false;
    uint64_t step_limit = 0;
    bool counts_traffic = false;
    Traffic traffic;
    // By instruction: how often it ran, and where it last found its addresses.
    std::vector<uint64_t> counts;
    std::vector<const Allocation *> last_allocation;
};

// f(lane) for the lanes of a mask, lowest first.
template <typename F>
void for_each_lane(uint32_t mask, F f) {
    if (mask == ~0u) {
        for (int lane = 0; lane < warp_size; lane++) f(lane);
        return;
    }
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) f(__builtin_ctz(rest));
}

// "reads 4 bytes at 0x100"
std::string access(const char *verb, uint32_t bytes, uint64_t address);

class Warp {
public:
    Warp(Execution &execution, uint32_t index);

    void begin_block();
    // Runs up to a barrier or the end.
    void run();
    bool exited() const { return live_ == 0; }

    // The barrier at which run() stopped.
    BarrierKind barrier_kind() const;
    // How many lanes came with a true predicate, of how many.
    uint32_t barrier_votes() const;
    uint32_t barrier_lanes() const { return static_cast<uint32_t>(__builtin_popcount(live_)); }
    // Passes the barrier; `votes` of `lanes` threads of the block came with a true predicate.
    void leave_barrier(uint32_t votes, uint32_t lanes);

private:
    struct Copy {
        const uint8_t *from;
        uint32_t to, group;
        uint8_t lane, bytes, bytes_read;
    };

    // One of wgmma. Registers and shared memory are read and written where it ends.
    struct Product {
        const Instruction *instruction;
        uint64_t a_matrix, b_matrix;  // descriptors; of a where it is not in registers
        bool adds;
        uint32_t group;
    };

    uint8_t *register_bytes() { return reinterpret_cast<uint8_t *>(registers_.data()); }
    const void *operand(Operand o) const { return bases_[o & 1] + (o & ~1); }
    template <typename T>
    T *result(Operand o) {
        return reinterpret_cast<T *>(register_bytes() + o);
    }
    template <typename T>
    const T *values(Operand o) const {
        return static_cast<const T *>(operand(o));
    }
    const Operand *operands(const Instruction &i) const { return execution_.kernel->operands.data() + i.operands; }
    uint32_t predicate_mask(Operand o) const;
    void set_lanes(Operand o, uint32_t mask, const uint32_t *lanes);
    void regroup();
    void branch(const Instruction &i, uint32_t mask);
    void run_lanes(const Instruction &i, uint32_t mask);
    // `mask` is not empty.
    void expect_whole(uint32_t mask) const;
    void execute(const Instruction &i, uint32_t mask);

    // warp_memory.cpp
    void addresses(const Instruction &i, Operand base, uint64_t *to) const;
    uint8_t *global_pointer(uint64_t address, uint32_t bytes, int lane, const char *verb);
    void count_sectors(const uint64_t *at, uint32_t mask, bool writes);
    uint32_t shared_offset(uint64_t address, uint32_t bytes, int lane, const char *verb) const;
    void pointers(const Instruction &i, uint32_t mask, Operand base, uint32_t bytes, bool writes, uint8_t **to);
    void global_pointers(const uint64_t *at, uint32_t mask, uint32_t bytes, const char *verb, uint8_t **to);
    void load(const Instruction &i, uint32_t mask);
    void store(const Instruction &i, uint32_t mask);
    void load_parameter(const Instruction &i, uint32_t mask);
    void load_elements(const Instruction &i, uint32_t mask, const uint8_t *const *from);

    // warp_async.cpp
    template <typename T>
    void atomic(const Instruction &i, uint32_t mask);
    void copy_async(const Instruction &i, uint32_t mask);
    void commit_group(uint32_t mask);
    void wait_group(const Instruction &i, uint32_t mask);
    void land(const Copy &copy);

    // warp_together.cpp
    void load_matrix(const Instruction &i);
    void mma(const Instruction &i);
    void warpgroup_mma(const Instruction &i);
    void wait_products(uint32_t groups);
    void end(const Product &product);
    void read_shared_chunk(uint64_t address, int lane, uint16_t *to);
    void read_fragment(const Operand *registers, uint16_t *a) const;
    void add_product(bool brain, const uint16_t *a, const uint16_t *b, const Operand *sums, const Operand *to);
    void shuffle(const Instruction &i, uint32_t mask);
    void vote(const Instruction &i, uint32_t mask);

    Accessor accessor(int lane) const { return {index_, index_ * warp_size + static_cast<uint32_t>(lane)}; }
    [[noreturn]] void fail(int lane, int code, const std::string &what) const;

    Execution &execution_;
    const uint32_t index_;
    const uint32_t all_lanes_;  // that the block has
    std::vector<CacheLine> registers_;
    const uint8_t *bases_[2];  // registers, constants
    std::vector<uint8_t> local_;
    std::vector<Copy> copies_;
    uint32_t groups_[warp_size] = {};  // how many each lane committed
    std::vector<Product> products_;    // under way
    uint32_t product_groups_ = 0;      // committed
    // Lanes that have not exited; those that run at pc_; the least pc of the others.
    uint32_t live_ = 0, active_ = 0, pc_ = 0, others_pc_ = 0;
    uint32_t lane_pc_[warp_size] = {};  // of lanes that are not active
    uint64_t steps_ = 0;
};

}  // namespace heed::device
