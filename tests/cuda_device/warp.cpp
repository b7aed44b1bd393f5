#include "tests/cuda_device/warp.h"

#include <algorithm>
#include <cstring>

#include "tests/cuda_device/cuda_abi.h"

namespace heed::device {
namespace {

constexpr uint32_t nowhere = ~0u;

uint32_t low_lanes(uint32_t count) { return count >= warp_size ? ~0u : (1u << count) - 1; }

}  // namespace

Warp::Warp(Execution &execution, uint32_t index)
    : execution_(execution), index_(index),
      all_lanes_(low_lanes(execution.block_threads[0] * execution.block_threads[1] * execution.block_threads[2] -
                           index * warp_size)),
      registers_(execution.kernel->register_bytes / sizeof(CacheLine)),
      local_(static_cast<size_t>(execution.kernel->local_bytes) * warp_size) {
    // Offsets of constants are odd: operand() clears that bit.
    bases_[0] = register_bytes();
    bases_[1] = reinterpret_cast<const uint8_t *>(execution.kernel->constants.data());
    const uint32_t *threads = execution.block_threads;
    for (uint32_t lane = 0; lane < warp_size; lane++) {
        const uint32_t thread = index * warp_size + lane;
        const auto set = [&](int special, uint32_t value) { result<uint32_t>(special * 4 * warp_size)[lane] = value; };
        set(tid_x, thread % threads[0]);
        set(tid_y, thread / threads[0] % threads[1]);
        set(tid_z, thread / threads[0] / threads[1]);
        set(lane_id, lane);
        set(warp_id, index);
        for (int axis = 0; axis < 3; axis++) {
            set(ntid_x + axis, threads[axis]);
            set(nctaid_x + axis, execution.grid[axis]);
        }
    }
}

void Warp::begin_block() {
    for (int axis = 0; axis < 3; axis++)
        std::fill_n(result<uint32_t>((ctaid_x + axis) * 4 * warp_size), warp_size, execution_.block[axis]);
    for (const uint32_t at : execution_.kernel->undefined) std::memset(register_bytes() + at, 0xa5, 4 * warp_size);
    std::fill(local_.begin(), local_.end(), uint8_t{0xa5});
    for (const Copy &copy : copies_) execution_.shared->drop_copy(copy.to, copy.bytes);
    copies_.clear();
    products_.clear();
    product_groups_ = 0;
    std::fill_n(groups_, warp_size, 0u);
    live_ = active_ = all_lanes_;
    pc_ = 0;
    others_pc_ = nowhere;
    steps_ = 0;
}

uint32_t Warp::predicate_mask(Operand o) const {
    const uint32_t *lanes = values<uint32_t>(o);
    uint32_t mask = 0;
    for (int lane = 0; lane < warp_size; lane++) mask |= (lanes[lane] & 1) << lane;
    return mask;
}

void Warp::set_lanes(Operand o, uint32_t mask, const uint32_t *lanes) {
    auto *to = result<uint32_t>(o);
    for (int lane = 0; lane < warp_size; lane++)
        if ((mask >> lane & 1) != 0) to[lane] = lanes[lane];
}

// The lanes with the least pc run next.
void Warp::regroup() {
    uint32_t least = nowhere;
    for (uint32_t rest = live_; rest != 0; rest &= rest - 1) least = std::min(least, lane_pc_[__builtin_ctz(rest)]);
    pc_ = least;
    active_ = 0;
    others_pc_ = nowhere;
    for (uint32_t rest = live_; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if (lane_pc_[lane] == least)
            active_ |= 1u << lane;
        else
            others_pc_ = std::min(others_pc_, lane_pc_[lane]);
    }
}

// Lanes of `mask` jump, the other active ones go on.
void Warp::branch(const Instruction &i, uint32_t mask) {
    if (i.uniform && mask != 0 && mask != active_)
        fail(__builtin_ctz(mask), cuda_launch_failed, "lanes disagree at bra.uni");
    const auto target = static_cast<uint32_t>(i.target);
    if (mask == active_ && others_pc_ == nowhere) {
        pc_ = target;
        return;
    }
    if (mask == 0) {
        pc_++;
        if (pc_ < others_pc_) return;
    }
    for (uint32_t rest = active_; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        lane_pc_[lane] = (mask >> lane & 1) != 0 ? target : mask == 0 ? pc_ : pc_ + 1;
    }
    regroup();
}

void Warp::run_lanes(const Instruction &i, uint32_t mask) {
    const Operand *o = operands(i);
    if (i.divides) {
        const bool wide = i.register_bits == 64;
        for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            if ((wide ? values<uint64_t>(o[2])[lane] : values<uint32_t>(o[2])[lane]) == 0)
                fail(lane, cuda_launch_failed, "an integer is divided by zero");
        }
    }
    uint8_t *to = register_bytes() + o[0];
    if (mask == live_) {
        i.lane_op(to, operand(o[1]), operand(o[2]), operand(o[3]));
        return;
    }
    alignas(64) uint8_t all[8 * warp_size];
    i.lane_op(all, operand(o[1]), operand(o[2]), operand(o[3]));
    const size_t bytes = i.bytes;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<size_t>(__builtin_ctz(rest));
        std::memcpy(to + lane * bytes, all + lane * bytes, bytes);
    }
}

void Warp::expect_whole(uint32_t mask) const {
    if (mask == live_) return;
    fail(__builtin_ctz(mask), cuda_launch_failed,
         "only " + std::to_string(__builtin_popcount(mask)) + " of the warp's " +
             std::to_string(__builtin_popcount(live_)) + " threads execute an instruction that needs all of them");
}

void Warp::execute(const Instruction &i, uint32_t mask) {
    switch (i.op) {
    case Op::lanes:
        run_lanes(i, mask);
        break;
    case Op::load:
        load(i, mask);
        break;
    case Op::store:
        store(i, mask);
        break;
    case Op::load_param:
        load_parameter(i, mask);
        break;
    case Op::atomic:
        i.bytes == 8 ? atomic<uint64_t>(i, mask) : atomic<uint32_t>(i, mask);
        break;
    case Op::copy_async:
        copy_async(i, mask);
        break;
    case Op::commit_group:
        commit_group(mask);
        break;
    case Op::wait_group:
        wait_group(i, mask);
        break;
    case Op::load_matrix:
        expect_whole(mask), load_matrix(i);
        break;
    case Op::mma:
        expect_whole(mask), mma(i);
        break;
    case Op::warpgroup_mma:
        expect_whole(mask), warpgroup_mma(i);
        break;
    case Op::commit_products:
        expect_whole(mask), product_groups_++;
        break;
    case Op::wait_products:
        expect_whole(mask), wait_products(i.kind);
        break;
    case Op::shuffle:
        shuffle(i, mask);
        break;
    case Op::vote:
        vote(i, mask);
        break;
    case Op::warp_barrier:
        expect_whole(mask);
        break;
    case Op::trap:
        fail(__builtin_ctz(mask), cuda_launch_failed, "trap");
    case Op::active_mask: {
        uint32_t lanes[warp_size];
        std::fill_n(lanes, warp_size, mask);
        set_lanes(operands(i)[0], mask, lanes);
        break;
    }
    case Op::branch:
    case Op::exit:
    case Op::barrier:
    case Op::nothing:
        break;
    }
}

void Warp::run() {
    const Instruction *code = execution_.kernel->code.data();
    uint64_t *counts = execution_.counts.data();
    for (;;) {
        const Instruction &i = code[pc_];
        uint32_t mask = active_;
        if (i.predicated) {
            const uint32_t taken = predicate_mask(i.predicate);
            mask &= i.negated ? ~taken : taken;
        }
        counts[pc_]++;
        if (++steps_ > execution_.step_limit)
            fail(__builtin_ctz(active_), cuda_launch_failed,
                 "the warp has executed " + std::to_string(execution_.step_limit) +
                     " instructions: a loop that does not end?");
        if (i.op == Op::branch) {
            branch(i, mask);
            continue;
        }
        if (i.op == Op::exit) {
            live_ &= ~mask;
            active_ &= ~mask;
            if (live_ == 0) return;
        } else if (mask != 0) {
            if (i.op == Op::barrier) {
                expect_whole(mask);
                return;
            }
            execute(i, mask);
        }
        pc_++;
        if (pc_ >= others_pc_ || active_ == 0) {
            for (uint32_t rest = active_; rest != 0; rest &= rest - 1) lane_pc_[__builtin_ctz(rest)] = pc_;
            regroup();
        }
    }
}

BarrierKind Warp::barrier_kind() const { return static_cast<BarrierKind>(execution_.kernel->code[pc_].kind); }

uint32_t Warp::barrier_votes() const {
    if (barrier_kind() == BarrierKind::sync) return 0;
    const Operand predicate = operands(execution_.kernel->code[pc_])[1];
    return static_cast<uint32_t>(__builtin_popcount(predicate_mask(predicate) & live_));
}

void Warp::leave_barrier(uint32_t votes, uint32_t lanes) {
    const BarrierKind kind = barrier_kind();
    if (kind != BarrierKind::sync) {
        const bool holds = kind == BarrierKind::any ? votes != 0 : votes == lanes;
        uint32_t values[warp_size];
        std::fill_n(values, warp_size, kind == BarrierKind::count ? votes : holds ? ~0u : 0u);
        set_lanes(operands(execution_.kernel->code[pc_])[0], live_, values);
    }
    pc_++;
}

void Warp::fail(int lane, int code, const std::string &what) const {
    const uint32_t line = execution_.kernel->code[pc_].line;
    const auto point = [](const uint32_t *p) {
        return "(" + std::to_string(p[0]) + "," + std::to_string(p[1]) + "," + std::to_string(p[2]) + ")";
    };
    const auto thread = [&](int special) { return values<uint32_t>(special * 4 * warp_size)[lane]; };
    const uint32_t threads[3] = {thread(tid_x), thread(tid_y), thread(tid_z)};
    const std::string text = line - 1 < execution_.lines->size() ? (*execution_.lines)[line - 1] : "";
    throw Fault(code, "kernel " + execution_.kernel->name + ", block " + point(execution_.block) + ", thread " +
                          point(threads) + ", PTX line " + std::to_string(line) + " \"" + text + "\": " + what);
}

}  // namespace heed::device
