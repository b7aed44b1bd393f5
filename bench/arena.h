// The memory of all cases, which take turns: numbers to cut inputs from, and one output.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "bench/cases.h"

namespace heed_bench {

enum class Pages { standard, small, huge };  // standard: what the system gives without being asked

// N(0,1) in a type; or int8 codes, and the scales that make them about N(0,1).
enum class Numbers { f32, f16, bf16, codes, scales };
constexpr size_t num_numbers = 5;

// What elements of a type are cut from; int8 are codes.
Numbers numbers_of(heed_dtype dtype);

// Decode cases rotate over copies of K and V so large in sum that each call finds its copy out of every cache: 1 GiB
// and 8 L3 sizes at least.
int64_t cold_bytes();

// Where the inputs of a case are, in elements of their numbers. Tensors start on a cache line. Copy n of K and V is
// n * kv_step further on, and of their scales n * scale_step.
struct Placement {
    int64_t num_copies;
    int64_t q, bias, k, v, kv_step;
    int64_t k_scale, v_scale, scale_step;
};
Placement placement(const Case &c);

// What an arena must hold.
struct Demand {
    std::array<int64_t, num_numbers> elements{};
    int64_t out_bytes = 0;

    void include(const Case &c);
};

class Arena {
public:
    Arena(const Demand &demand, Pages pages);

    // From element `offset` on.
    const void *input(Numbers numbers, int64_t offset) const;
    void *out() const { return out_.get(); }

private:
    struct Unmap {
        size_t bytes;
        void operator()(void *memory) const;
    };
    using Memory = std::unique_ptr<void, Unmap>;
    static Memory map(int64_t bytes, Pages pages);

    std::array<Memory, num_numbers> inputs_;
    Memory out_;
};

}  // namespace heed_bench
