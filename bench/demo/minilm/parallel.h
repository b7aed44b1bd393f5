#pragma once
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace minilm {

// Calls body(first, last) over [0, count) in pieces of `grain`, on `threads` threads. body must not throw.
template <typename Body>
void parallel_for(int threads, int64_t count, int64_t grain, const Body &body) {
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t first = next.fetch_add(grain); first < count; first = next.fetch_add(grain)) {
            body(first, std::min(first + grain, count));
        }
    };
    std::vector<std::thread> workers;
    for (int i = 1; i < threads && i * grain < count; i++) workers.emplace_back(work);
    work();
    for (auto &worker : workers) worker.join();
}

}  // namespace minilm
