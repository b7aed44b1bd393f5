// Atomics and asynchronous copies of a warp.
#include <cstring>

#include "tests/cuda_device/cuda_abi.h"
#include "tests/cuda_device/formats.h"
#include "tests/cuda_device/warp.h"

namespace heed::device {

template <typename T>
void Warp::atomic(const Instruction &i, uint32_t mask) {
    const Operand *o = operands(i);
    uint8_t *at[warp_size];
    pointers(i, mask, o[1], sizeof(T), true, at);
    const T *b = values<T>(o[2]), *c = i.num_operands > 3 ? values<T>(o[3]) : b;
    using Signed = std::make_signed_t<T>;
    const auto update = [&](T old, int lane) -> T {
        const T value = b[lane];
        switch (static_cast<AtomicKind>(i.kind)) {
        case AtomicKind::add:
            return old + value;
        case AtomicKind::exchange:
            return value;
        case AtomicKind::compare:
            return old == value ? c[lane] : old;
        case AtomicKind::min:
            return old < value ? old : value;
        case AtomicKind::max:
            return old > value ? old : value;
        case AtomicKind::min_signed:
            return static_cast<Signed>(old) < static_cast<Signed>(value) ? old : value;
        case AtomicKind::max_signed:
            return static_cast<Signed>(old) > static_cast<Signed>(value) ? old : value;
        case AtomicKind::and_:
            return old & value;
        case AtomicKind::or_:
            return old | value;
        case AtomicKind::xor_:
            return old ^ value;
        case AtomicKind::add_f32:
            break;
        }
        // In global memory subnormal values count as zero.
        const float sum =
            flush(bits_float(static_cast<uint32_t>(old))) + flush(bits_float(static_cast<uint32_t>(value)));
        return float_bits(canonical(flush(sum)));
    };
    T before[warp_size];
    for_each_lane(mask, [&](int lane) {
        auto *word = reinterpret_cast<T *>(at[lane]);
        T old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        while (!__atomic_compare_exchange_n(word, &old, update(old, lane), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        }
        before[lane] = old;
    });
    for_each_lane(mask, [&](int lane) { result<T>(o[0])[lane] = before[lane]; });
}

void Warp::copy_async(const Instruction &i, uint32_t mask) {
    const Operand *o = operands(i);
    const uint32_t *sizes = i.has_size ? values<uint32_t>(o[2]) : nullptr;
    const uint64_t *from = values<uint64_t>(o[1]);
    uint64_t to[warp_size];
    addresses(i, o[0], to);
    SharedMemory &shared = *execution_.shared;
    uint32_t reading = 0;
    for_each_lane(mask, [&](int lane) {
        const uint32_t bytes_read = sizes == nullptr ? i.bytes : sizes[lane];
        if (bytes_read > i.bytes)
            fail(lane, cuda_launch_failed,
                 "cp.async reads " + std::to_string(bytes_read) + " bytes of " + std::to_string(i.bytes));
        if ((from[lane] & (i.bytes - 1u)) != 0)
            fail(lane, cuda_illegal_address, access("reads", i.bytes, from[lane]) + ", which is not aligned");
        const uint8_t *source = bytes_read == 0 ? nullptr : global_pointer(from[lane], bytes_read, lane, "reads");
        reading |= uint32_t{bytes_read != 0} << lane;
        const uint32_t offset = shared_offset(to[lane], i.bytes, lane, "writes");
        if (!shared.begin_copy(offset, i.bytes, accessor(lane)))
            fail(lane, cuda_launch_failed, shared.explain(offset, i.bytes, accessor(lane), true));
        const Copy copy{
            source, offset, groups_[lane], static_cast<uint8_t>(lane), i.bytes, static_cast<uint8_t>(bytes_read)};
        if (execution_.late_arrival)
            std::memset(shared.data(offset), 0xa5, i.bytes);
        else
            land(copy);
        copies_.push_back(copy);
    });
    if (execution_.counts_traffic && reading != 0) count_sectors(from, reading, false);
}

void Warp::land(const Copy &copy) {
    uint8_t *to = execution_.shared->data(copy.to);
    if (copy.bytes_read != 0) std::memcpy(to, copy.from, copy.bytes_read);
    std::memset(to + copy.bytes_read, 0, copy.bytes - copy.bytes_read);
}

void Warp::commit_group(uint32_t mask) {
    for_each_lane(mask, [&](int lane) { groups_[lane]++; });
}

// The data of what was waited for is there: for the lane that copied, and for others after the next barrier.
void Warp::wait_group(const Instruction &i, uint32_t mask) {
    size_t kept = 0;
    for (const Copy &copy : copies_) {
        const uint64_t end = static_cast<uint64_t>(copy.group) + static_cast<uint64_t>(i.immediate);
        const bool waited = i.immediate < 0 || end < groups_[copy.lane];
        if ((mask >> copy.lane & 1) == 0 || !waited) {
            copies_[kept++] = copy;
            continue;
        }
        if (execution_.late_arrival) land(copy);
        execution_.shared->end_copy(copy.to, copy.bytes, accessor(copy.lane));
    }
    copies_.resize(kept);
}

template void Warp::atomic<uint32_t>(const Instruction &, uint32_t);
template void Warp::atomic<uint64_t>(const Instruction &, uint32_t);

}  // namespace heed::device
