#include "bench/demo/minilm/pool.h"

#include <chrono>

namespace minilm {
namespace {

// Waking a thread takes longer than the gap between two loops of a layer.
constexpr std::chrono::microseconds poll_time(40);

template <typename Predicate>
void poll(const Predicate &done) {
    const auto deadline = std::chrono::steady_clock::now() + poll_time;
    while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
}

}  // namespace

Pool::Pool(int threads) {
    for_heed_.context = this;
    for_heed_.run = [](void *pool, int32_t num_items, Item item, void *context) {
        static_cast<Pool *>(pool)->run(num_items, item, context);
    };
    for (int i = 1; i < threads; i++) workers_.emplace_back([this] { work(); });
}

Pool::~Pool() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        epoch_++;
    }
    work_ready_.notify_all();
    for (std::thread &worker : workers_) worker.join();
}

void Pool::run(int32_t num_items, Item item, void *context) {
    std::unique_lock<std::mutex> lock(mutex_);
    item_ = item;
    context_ = context;
    next_ = 0;
    num_items_ = unfinished_ = num_items;
    epoch_++;
    if (num_items > 1) work_ready_.notify_all();
    while (run_next(lock)) {
    }
    work_done_.wait(lock, [&] { return unfinished_ == 0; });
}

// False where no item is left. The lock is released while an item runs.
bool Pool::run_next(std::unique_lock<std::mutex> &lock) {
    if (next_ == num_items_) return false;
    const int32_t index = next_++;
    lock.unlock();
    item_(context_, index);
    lock.lock();
    if (--unfinished_ == 0) work_done_.notify_all();
    return true;
}

void Pool::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
        if (run_next(lock)) continue;
        const uint32_t seen = epoch_;
        const auto more = [&] { return epoch_ != seen; };
        lock.unlock();
        poll(more);
        lock.lock();
        work_ready_.wait(lock, more);
    }
}

}  // namespace minilm
