#pragma once
#include <heed/heed.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace minilm {

// The program's threads, Heed's included. One call at a time; items must neither throw nor call the pool.
class Pool {
public:
    // The caller of a loop is one of the `threads`, at least 1.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(first, last, thread) over [0, count) in pieces of `grain`. Pieces with the same `thread`, in
    // 0..threads()-1, run one after the other.
    template <typename Body>
    void parallel_for(int64_t count, int64_t grain, const Body &body) {
        std::atomic<int64_t> next{0};
        auto loop = [&](int32_t thread) noexcept {
            for (int64_t first = next.fetch_add(grain); first < count; first = next.fetch_add(grain)) {
                body(first, std::min(first + grain, count), thread);
            }
        };
        const int64_t pieces = (count + grain - 1) / grain;
        const Item item = [](void *context, int32_t thread) { (*static_cast<decltype(loop) *>(context))(thread); };
        run(static_cast<int32_t>(std::min<int64_t>(pieces, threads())), item, &loop);
    }

    // For heed_execution. Lives as long as the pool.
    const heed_parallel_for *for_heed() const { return &for_heed_; }

private:
    using Item = void (*)(void *context, int32_t index);

    void run(int32_t num_items, Item item, void *context);
    void work();
    bool run_next(std::unique_lock<std::mutex> &lock);

    std::mutex mutex_;
    std::condition_variable work_ready_, work_done_;
    Item item_ = nullptr;
    void *context_ = nullptr;
    int32_t next_ = 0, num_items_ = 0, unfinished_ = 0;
    bool stop_ = false;
    std::atomic<uint32_t> epoch_{0};
    heed_parallel_for for_heed_ = {};
    std::vector<std::thread> workers_;
};

}  // namespace minilm
