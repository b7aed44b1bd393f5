// Finds two running calls that share a workspace, a mistake of their caller's. For builds without NDEBUG: the table is
// one for all threads, and small calls on many of them would wait for its cache lines.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace heed {

// While it lives, a call of this process works in `workspace`.
class WorkspaceUse {
public:
    explicit WorkspaceUse(const void *workspace) : key_(key_of(workspace)) {
        for (Slot &slot : slots) {
            uint64_t none = 0;
            if (slot_ == nullptr && slot.compare_exchange_strong(none, key_)) slot_ = &slot;
        }
        for (const Slot &slot : slots) shared_ |= &slot != slot_ && slot.load() == key_;
    }
    ~WorkspaceUse() {
        if (slot_ != nullptr) slot_->store(0);
    }
    WorkspaceUse(const WorkspaceUse &) = delete;
    WorkspaceUse &operator=(const WorkspaceUse &) = delete;

    // Another call works in it. Two calls that begin at once may both see the other.
    bool shared() const { return shared_; }

private:
    using Slot = std::atomic<uint64_t>;

    // Not 0, and another one in a child of fork, where the parent's other calls do not run: addresses have 47 bits, of
    // which alignment leaves 40, process ids have 22.
    static uint64_t key_of(const void *workspace) {
        return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(workspace) >> 7) << 22 |
               static_cast<uint64_t>(getpid());
    }

    static inline Slot slots[256] = {};  // calls beyond are not looked at
    const uint64_t key_;
    Slot *slot_ = nullptr;
    bool shared_ = false;
};

}  // namespace heed
