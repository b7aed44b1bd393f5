// A PTX module, decoded once: what the emulated device executes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace heed::device {

constexpr int warp_size = 32;

// What an operand is while a kernel is decoded: a virtual register (>= 0) or a constant (~index).
// assign_slots() turns it into what warps use: a byte offset, multiple of 128; an odd one is in the constants.
using Operand = int32_t;

// One operation on 32 lanes: every lane of a register takes 4 bytes, or 8 for 64-bit registers; 16-bit values are
// zero-extended; predicates are 0 or ~0.
using LaneOp = void (*)(void *result, const void *a, const void *b, const void *c);

enum class Op : uint8_t {
    lanes,   // lane_op
    branch,  // to `target`
    exit,
    trap,
    load,
    store,
    load_param,
    atomic,
    copy_async,
    commit_group,
    wait_group,  // immediate: how many may stay pending; -1: wait_all
    barrier,
    warp_barrier,
    load_matrix,
    mma,
    warpgroup_mma,  // a warp's part of wgmma
    commit_products,
    wait_products,  // until `kind` groups of them are under way at most
    shuffle,
    vote,
    active_mask,
    nothing,  // fences
};

enum class Space : uint8_t { generic, global, shared, local };
enum class BarrierKind : uint8_t { sync, all, any, count };
enum class ShuffleKind : uint8_t { up, down, butterfly, index };
enum class VoteKind : uint8_t { all, any, uniform, ballot };
enum class AtomicKind : uint8_t { add, add_f32, exchange, compare, min, max, min_signed, max_signed, and_, or_, xor_ };

// A PTX instruction is one of these or several, of which only the last has `counted`. Operands: results first.
struct Instruction {
    Op op = Op::nothing;
    uint8_t kind = 0;  // BarrierKind, ShuffleKind, VoteKind, AtomicKind; load_matrix: 1 = transposed; mmas: 1 = bf16
    Space space = Space::generic;
    bool counted = true;
    bool negated = false;       // runs where the predicate is false
    bool uniform = false;       // bra.uni
    bool divides = false;       // an integer division: operand 2 is the divisor
    bool sign_extends = false;  // loads
    bool wide_address = false;  // the address register has 64 bits
    bool has_size = false;      // copy_async: the last operand says how many bytes are read
    uint8_t bytes = 0;          // of an element in memory; lanes: of a lane of the result
    uint8_t num_elements = 0;   // load, store; load_matrix: matrices; warpgroup_mma: tiles of 8 columns
    uint8_t register_bits = 0;  // of the registers that hold elements; lanes: of the result
    uint16_t num_results = 0;
    uint16_t num_operands = 0;  // results included
    bool predicated = false;
    bool has_fragments = false;  // warpgroup_mma: a is in registers
    bool transposes = false;     // warpgroup_mma: rows of b are over columns
    uint32_t operands = 0;       // index of the first in Kernel::operands
    Operand predicate = 0;
    int32_t target = -1;
    uint32_t line = 0;      // of the PTX text, from 1
    int64_t immediate = 0;  // what is added to the address; wait_group: see above
    LaneOp lane_op = nullptr;
};

// Registers and constants are kept in cache lines.
struct alignas(64) CacheLine {
    uint8_t bytes[64];
};

struct Parameter {
    std::string name;
    uint32_t bytes = 0, alignment = 0, offset = 0;
};

// Constants and registers hold `warp_size` lanes each.
struct Kernel {
    std::string name;
    std::vector<Parameter> parameters;
    uint32_t parameter_bytes = 0;
    std::vector<Instruction> code;  // ends with an exit
    std::vector<Operand> operands;
    std::vector<std::string> opcodes;  // of code, for counting
    std::vector<CacheLine> constants;  // filled by assign_slots()
    uint32_t register_bytes = 0;       // of one warp
    std::vector<uint32_t> undefined;   // offsets of 128 bytes that might be read before they are written
    uint32_t static_shared_bytes = 0;
    uint32_t local_bytes = 0;             // of one thread
    int max_threads[3] = {0, 0, 0};       // .maxntid; 0: not given
    int required_threads[3] = {0, 0, 0};  // .reqntid
};

struct Program {
    int target = 0;             // 80 for sm_80
    bool exact_target = false;  // sm_90a
    int version = 0;            // 80 for .version 8.0
    std::vector<Kernel> kernels;
    std::vector<std::string> lines;  // of the text
};

// The first registers of every warp, 128 bytes each, in this order.
enum Special {
    tid_x,
    tid_y,
    tid_z,
    ntid_x,
    ntid_y,
    ntid_z,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    lane_id,
    warp_id,
    num_specials
};

// Shared memory starts at 1024 in the shared window, as on chips that reserve the first KB; local memory at 256.
constexpr uint32_t shared_base = 1024;
constexpr uint32_t local_base = 256;
// Where generic addresses of shared and local memory are. Allocations are below.
constexpr uint64_t shared_window = 1ull << 58;
constexpr uint64_t local_window = 1ull << 59;
constexpr uint64_t window_bytes = 1ull << 32;

// Text that is not understood, or would not be executed exactly.
struct ParseError : std::runtime_error {
    explicit ParseError(const std::string &what, uint32_t at_line = 0) : std::runtime_error(what), line(at_line) {}
    uint32_t line;  // 0: that which is being read
};

}  // namespace heed::device
