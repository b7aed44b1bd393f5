// A few words per CUDA context, found without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace heed::cuda {

using ContextWords = std::array<uint64_t, 2>;

// Contexts are known by their id (cuCtxGetId), which no other context of the process ever has: what is here about a
// destroyed one never matches again. Room for `capacity` contexts; a newer one takes the place of the oldest.
// Thread-safe without a lock, so that a child of fork never waits. Two threads that insert for one context at once may
// leave two entries: either is right.
class ContextTable {
public:
    bool find(uint64_t id, ContextWords *words) const {
        for (const Slot &slot : slots_) {
            const uint64_t version = slot.version.load(std::memory_order_acquire);
            if (version % 2 != 0 || version == 0 || slot.id.load(std::memory_order_relaxed) != id) continue;
            for (size_t i = 0; i < words->size(); i++) (*words)[i] = slot.words[i].load(std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (slot.version.load(std::memory_order_relaxed) == version) return true;
        }
        return false;
    }

    // Replaces what was known about the context. Does nothing where another thread writes the same slot: the next call
    // inserts.
    void insert(uint64_t id, const ContextWords &words) {
        Slot &slot = slot_for(id);
        uint64_t version = slot.version.load(std::memory_order_relaxed);
        if (version % 2 != 0 || !slot.version.compare_exchange_strong(version, version + 1)) return;
        std::atomic_thread_fence(std::memory_order_release);
        slot.id.store(id, std::memory_order_relaxed);
        for (size_t i = 0; i < words.size(); i++) slot.words[i].store(words[i], std::memory_order_relaxed);
        slot.version.store(version + 2, std::memory_order_release);
    }

private:
    static constexpr uint32_t capacity = 32;
    struct Slot {
        std::atomic<uint64_t> version{0};  // odd while it is written, 0 before the first time
        std::atomic<uint64_t> id{0};
        std::array<std::atomic<uint64_t>, 2> words = {};
    };
    // The one that holds the context already, else the oldest.
    Slot &slot_for(uint64_t id) {
        for (Slot &slot : slots_) {
            if (slot.version.load(std::memory_order_acquire) != 0 && slot.id.load(std::memory_order_relaxed) == id) {
                return slot;
            }
        }
        return slots_[next_.fetch_add(1, std::memory_order_relaxed) % capacity];
    }

    std::array<Slot, capacity> slots_;
    std::atomic<uint32_t> next_{0};
};

}  // namespace heed::cuda
