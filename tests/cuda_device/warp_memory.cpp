// Loads and stores of a warp.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/cuda_device/cuda_abi.h"
#include "tests/cuda_device/warp.h"

namespace heed::device {
namespace {

template <typename Memory, typename Register, bool sign_extends>
void load_lanes(uint32_t mask, const uint8_t *const *from, uint32_t offset, Register *to, Register register_mask) {
    for_each_lane(mask, [&](int lane) {
        Memory value;
        std::memcpy(&value, from[lane] + offset, sizeof(value));
        if constexpr (sign_extends)
            to[lane] = static_cast<Register>(static_cast<std::make_signed_t<Memory>>(value)) & register_mask;
        else
            to[lane] = value;
    });
}

template <typename Register, bool sign_extends>
void load_lanes(uint32_t bytes, uint32_t mask, const uint8_t *const *from, uint32_t offset, Register *to,
                Register keep) {
    switch (bytes) {
    case 1:
        load_lanes<uint8_t, Register, sign_extends>(mask, from, offset, to, keep);
        break;
    case 2:
        load_lanes<uint16_t, Register, sign_extends>(mask, from, offset, to, keep);
        break;
    case 4:
        load_lanes<uint32_t, Register, sign_extends>(mask, from, offset, to, keep);
        break;
    default:
        if constexpr (sizeof(Register) == 8) load_lanes<uint64_t, Register, false>(mask, from, offset, to, keep);
        break;
    }
}

// Whether a later lane stores other bytes at the lane's address. (Stores are aligned: overlaps are whole.)
bool is_overwritten(int lane, uint32_t bytes, uint32_t mask, uint8_t *const *to, const uint8_t (*from)[16]) {
    bool result = false;
    for_each_lane(mask, [&](int other) {
        result |= other > lane && to[other] == to[lane] && std::memcmp(from[other], from[lane], bytes) != 0;
    });
    return result;
}

// Returns the lanes whose bytes another lane has overwritten: which one wins is not defined. Other bytes may also be of
// another block at the same time, which is no fault: packed sequences that overlap share rows of the output.
template <uint32_t bytes>
uint32_t store_lanes(uint32_t mask, uint8_t *const *to, const uint8_t (*from)[16]) {
    for_each_lane(mask, [&](int lane) { std::memcpy(to[lane], from[lane], bytes); });
    uint32_t lost = 0;
    for_each_lane(mask, [&](int lane) {
        if (std::memcmp(to[lane], from[lane], bytes) != 0 && is_overwritten(lane, bytes, mask, to, from))
            lost |= uint32_t{1} << lane;
    });
    return lost;
}

uint32_t store_lanes(uint32_t bytes, uint32_t mask, uint8_t *const *to, const uint8_t (*from)[16]) {
    switch (bytes) {
    case 1:
        return store_lanes<1>(mask, to, from);
    case 2:
        return store_lanes<2>(mask, to, from);
    case 4:
        return store_lanes<4>(mask, to, from);
    case 8:
        return store_lanes<8>(mask, to, from);
    default:
        return store_lanes<16>(mask, to, from);
    }
}

}  // namespace

std::string access(const char *verb, uint32_t bytes, uint64_t address) {
    char text[80];
    std::snprintf(text, sizeof(text), "%s %u bytes at 0x%llx", verb, bytes, static_cast<unsigned long long>(address));
    return text;
}

void Warp::addresses(const Instruction &i, Operand base, uint64_t *to) const {
    const auto offset = static_cast<uint64_t>(i.immediate);
    if (i.wide_address) {
        const uint64_t *from = values<uint64_t>(base);
        for (int lane = 0; lane < warp_size; lane++) to[lane] = from[lane] + offset;
        return;
    }
    const uint32_t *from = values<uint32_t>(base);
    for (int lane = 0; lane < warp_size; lane++) to[lane] = from[lane] + offset;
}

uint8_t *Warp::global_pointer(uint64_t address, uint32_t bytes, int lane, const char *verb) {
    const Allocation *&last = execution_.last_allocation[pc_];
    if (last != nullptr && last->holds(address, bytes)) return last->pointer(address);
    const Allocation *allocation = execution_.memory->find(address, bytes);
    if (allocation != nullptr && allocation->owner == execution_.owner) {
        last = allocation;
        return allocation->pointer(address);
    }
    std::string what = access(verb, bytes, address) + ", ";
    const Allocation *near = execution_.memory->nearest(address);
    if (allocation != nullptr)
        what += "which belong to another context";
    else if (near == nullptr)
        what += "where nothing is allocated";
    else if (address < near->address)
        what +=
            std::to_string(near->address - address) + " bytes before an allocation of " + std::to_string(near->bytes);
    else
        what += std::to_string(address - near->address) + " bytes into an allocation of " + std::to_string(near->bytes);
    fail(lane, cuda_illegal_address, what);
}

// Pointers of the active lanes into global memory.
void Warp::global_pointers(const uint64_t *at, uint32_t mask, uint32_t bytes, const char *verb, uint8_t **to) {
    uint64_t lowest = ~0ull, highest = 0, bits = 0;
    for_each_lane(mask, [&](int lane) {
        lowest = at[lane] < lowest ? at[lane] : lowest;
        highest = at[lane] > highest ? at[lane] : highest;
        bits |= at[lane];
    });
    if ((bits & (bytes - 1)) != 0)
        for_each_lane(mask, [&](int lane) {
            if ((at[lane] & (bytes - 1)) != 0)
                fail(lane, cuda_illegal_address, access(verb, bytes, at[lane]) + ", which is not aligned");
        });
    const Allocation *&last = execution_.last_allocation[pc_];
    const uint64_t span = highest - lowest;
    if (last == nullptr || span > last->bytes || !last->holds(lowest, span + bytes)) {
        last = span > 1ull << 62 ? nullptr : execution_.memory->find(lowest, span + bytes);
        if (last != nullptr && last->owner != execution_.owner) last = nullptr;
    }
    if (last != nullptr)
        for_each_lane(mask, [&](int lane) { to[lane] = last->pointer(at[lane]); });
    else
        for_each_lane(mask, [&](int lane) { to[lane] = global_pointer(at[lane], bytes, lane, verb); });
}

// No access crosses a sector: it is aligned to its size.
void Warp::count_sectors(const uint64_t *at, uint32_t mask, bool writes) {
    uint64_t sectors[warp_size];
    size_t count = 0;
    for_each_lane(mask, [&](int lane) { sectors[count++] = at[lane] / 32; });
    std::sort(sectors, sectors + count);
    const auto distinct = static_cast<uint64_t>(std::unique(sectors, sectors + count) - sectors);
    (writes ? execution_.traffic.written : execution_.traffic.read) += distinct;
}

// Where in shared memory, from 0 on.
uint32_t Warp::shared_offset(uint64_t address, uint32_t bytes, int lane, const char *verb) const {
    const uint32_t size = execution_.shared->size();
    if (address - shared_base <= size && address - shared_base + bytes <= size && (address & (bytes - 1)) == 0)
        return static_cast<uint32_t>(address - shared_base);
    if (address < shared_base || address - shared_base + bytes > size || address > ~0u)
        fail(lane, cuda_illegal_address,
             access(verb, bytes, address) + " of shared memory, which has " + std::to_string(size) + " bytes from " +
                 std::to_string(shared_base) + " on");
    if ((address & (bytes - 1)) != 0)
        fail(lane, cuda_illegal_address, access(verb, bytes, address) + " of shared memory, which is not aligned");
    return static_cast<uint32_t>(address - shared_base);
}

// Pointers of the active lanes, after every check of the space.
void Warp::pointers(const Instruction &i, uint32_t mask, Operand base, uint32_t bytes, bool writes, uint8_t **to) {
    const char *verb = writes ? "writes" : "reads";
    uint64_t at[warp_size];
    addresses(i, base, at);
    Space space = i.space;
    if (space == Space::generic) {
        const auto space_of = [](uint64_t address) {
            if (address - shared_window < window_bytes) return Space::shared;
            return address - local_window < window_bytes ? Space::local : Space::global;
        };
        space = space_of(at[__builtin_ctz(mask)]);
        for_each_lane(mask, [&](int lane) {
            if (space_of(at[lane]) != space) fail(lane, cuda_launch_failed, "threads access several spaces at once");
            at[lane] -= space == Space::shared ? shared_window : space == Space::local ? local_window : 0;
        });
    }
    if (space == Space::global) {
        global_pointers(at, mask, bytes, verb, to);
        if (execution_.counts_traffic) count_sectors(at, mask, writes);
        return;
    }
    if (space == Space::local) {
        const uint32_t size = execution_.kernel->local_bytes;
        for_each_lane(mask, [&](int lane) {
            const uint64_t offset = at[lane] - local_base;
            if (at[lane] < local_base || offset > size || offset + bytes > size || (at[lane] & (bytes - 1)) != 0)
                fail(lane, cuda_illegal_address,
                     access(verb, bytes, at[lane]) + " of local memory, outside or not aligned");
            to[lane] = local_.data() + static_cast<uint64_t>(lane) * size + offset;
        });
        return;
    }
    SharedMemory &shared = *execution_.shared;
    for_each_lane(mask, [&](int lane) {
        const uint32_t offset = shared_offset(at[lane], bytes, lane, verb);
        const bool fine =
            writes ? shared.write(offset, bytes, accessor(lane)) : shared.read(offset, bytes, accessor(lane));
        if (!fine) fail(lane, cuda_launch_failed, shared.explain(offset, bytes, accessor(lane), writes));
        to[lane] = shared.data(offset);
    });
}

void Warp::load_elements(const Instruction &i, uint32_t mask, const uint8_t *const *from) {
    const Operand *o = operands(i);
    for (uint32_t e = 0; e < i.num_elements; e++) {
        const uint32_t offset = e * i.bytes;
        if (i.register_bits == 64) {
            auto *to = result<uint64_t>(o[e]);
            if (i.sign_extends)
                load_lanes<uint64_t, true>(i.bytes, mask, from, offset, to, ~0ull);
            else
                load_lanes<uint64_t, false>(i.bytes, mask, from, offset, to, ~0ull);
            continue;
        }
        auto *to = result<uint32_t>(o[e]);
        if (i.sign_extends)
            load_lanes<uint32_t, true>(i.bytes, mask, from, offset, to, i.register_bits == 16 ? 0xffffu : ~0u);
        else
            load_lanes<uint32_t, false>(i.bytes, mask, from, offset, to, ~0u);
    }
}

void Warp::load(const Instruction &i, uint32_t mask) {
    uint8_t *from[warp_size];
    pointers(i, mask, operands(i)[i.num_results], i.bytes * i.num_elements, false, from);
    load_elements(i, mask, from);
}

void Warp::load_parameter(const Instruction &i, uint32_t mask) {
    const uint8_t *from[warp_size];
    for (const uint8_t *&pointer : from) pointer = execution_.parameters + i.immediate;
    load_elements(i, mask, from);
}

void Warp::store(const Instruction &i, uint32_t mask) {
    const Operand *o = operands(i);
    const uint32_t bytes = i.bytes * i.num_elements;
    uint8_t *to[warp_size];
    pointers(i, mask, o[0], bytes, true, to);
    uint8_t all[warp_size][16];
    for (uint32_t e = 0; e < i.num_elements; e++) {
        const bool wide = i.register_bits == 64;
        const auto *from = static_cast<const uint8_t *>(operand(o[1 + e]));
        const uint32_t stride = wide ? 8 : 4, offset = e * i.bytes;
        switch (i.bytes) {
        case 1:
            for_each_lane(mask, [&](int lane) { std::memcpy(all[lane] + offset, from + lane * stride, 1); });
            break;
        case 2:
            for_each_lane(mask, [&](int lane) { std::memcpy(all[lane] + offset, from + lane * stride, 2); });
            break;
        case 4:
            for_each_lane(mask, [&](int lane) { std::memcpy(all[lane] + offset, from + lane * stride, 4); });
            break;
        default:
            for_each_lane(mask, [&](int lane) { std::memcpy(all[lane] + offset, from + lane * stride, 8); });
            break;
        }
    }
    const uint32_t lost = store_lanes(bytes, mask, to, all);
    if (lost != 0)
        fail(__builtin_ctz(lost), cuda_launch_failed, "another thread stores something else at the same address");
}

}  // namespace heed::device
