#include "runtime/thread_pool.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include <immintrin.h>

namespace heed {
namespace {

constexpr int32_t max_workers = 1023;

// How long an idle thread polls before it sleeps: waking a sleeper costs some 5 to 50 us, the gap between two layers of
// a model is often shorter.
constexpr std::chrono::microseconds spin_time(40);

// Polls `done` for spin_time.
template <typename Predicate>
bool spin_until(Predicate done) {
    const auto deadline = std::chrono::steady_clock::now() + spin_time;
    do {
        for (int i = 0; i < 16; i++) {
            if (done()) return true;
            _mm_pause();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return done();
}

// One run() call; lives on the caller's stack. `next_item` and `next_job` belong to the pool's mutex.
struct Job {
    PoolItem item;
    void *item_context;
    int32_t num_items;
    int32_t next_item = 0;
    Job *next_job = nullptr;
    std::atomic<int32_t> running{0};  // items in workers' hands; a worker's last access to the job
};

class ThreadPool {
public:
    ThreadPool() : owner_(getpid()) {}
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    void run(Job &job);

private:
    void start_workers(int32_t count);
    void work();
    void wait_for_workers(Job &job);
    bool claim(Job &job, int32_t *index);
    void append(Job &job);
    void remove(Job &job);

    std::mutex mutex_;
    std::condition_variable work_ready_, job_done_;
    Job *first_job_ = nullptr;
    int32_t sleepers_ = 0;
    bool stop_ = false;
    std::atomic<uint32_t> epoch_{0};     // counts appended jobs
    std::atomic<int32_t> finishing_{0};  // callers that sleep until their job's last item is done
    const pid_t owner_;
    int32_t num_workers_ = 0;
    std::thread workers_[max_workers];
};

ThreadPool::~ThreadPool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        epoch_.fetch_add(1);
    }
    work_ready_.notify_all();
    for (int32_t i = 0; i < num_workers_; i++) {
        // A child that was made without fork handlers has no such threads.
        if (getpid() == owner_) {
            workers_[i].join();
        } else {
            workers_[i].detach();
        }
    }
}

// Needs the mutex. Workers take no signals from outside: those are the application's. Fewer workers are fine: the
// caller does their share.
void ThreadPool::start_workers(int32_t count) {
    if (num_workers_ >= count || num_workers_ >= max_workers) return;
    sigset_t all, previous;
    sigfillset(&all);
    // An instruction's own signal cannot wait: blocked, it kills the process past the application's handler.
    for (const int fault : {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    try {
        while (num_workers_ < count && num_workers_ < max_workers) {
            workers_[num_workers_] = std::thread([this] { work(); });
            num_workers_++;
        }
    } catch (const std::exception &) {
    }
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

void ThreadPool::append(Job &job) {
    Job **link = &first_job_;
    while (*link != nullptr) link = &(*link)->next_job;
    *link = &job;
}

void ThreadPool::remove(Job &job) {
    for (Job **link = &first_job_; *link != nullptr; link = &(*link)->next_job) {
        if (*link == &job) {
            *link = job.next_job;
            return;
        }
    }
}

// Takes the next item; a job without any left leaves the list. Needs the mutex.
bool ThreadPool::claim(Job &job, int32_t *index) {
    if (job.next_item == job.num_items) return false;
    *index = job.next_item++;
    if (job.next_item == job.num_items) remove(job);
    return true;
}

void ThreadPool::run(Job &job) {
    int32_t to_wake = 0;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        start_workers(job.num_items - 1);
        append(job);
        epoch_.fetch_add(1);
        to_wake = sleepers_ < job.num_items - 1 ? sleepers_ : job.num_items - 1;
    }
    for (int32_t i = 0; i < to_wake; i++) work_ready_.notify_one();
    for (;;) {
        int32_t index = 0;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!claim(job, &index)) break;
        }
        job.item(job.item_context, index);
    }
    wait_for_workers(job);
}

void ThreadPool::wait_for_workers(Job &job) {
    if (spin_until([&] { return job.running.load() == 0; })) return;
    finishing_.fetch_add(1);
    {
        std::unique_lock<std::mutex> lock(mutex_);
        job_done_.wait(lock, [&] { return job.running.load() == 0; });
    }
    finishing_.fetch_sub(1);
}

void ThreadPool::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
        if (Job *job = first_job_) {
            int32_t index = 0;
            claim(*job, &index);
            job->running.fetch_add(1);
            lock.unlock();
            job->item(job->item_context, index);
            const bool last = job->running.fetch_sub(1) == 1;
            lock.lock();
            if (last && finishing_.load() > 0) job_done_.notify_all();
            continue;
        }
        const uint32_t seen = epoch_.load();
        lock.unlock();
        const bool more = spin_until([&] { return epoch_.load() != seen; });
        lock.lock();
        if (more) continue;
        sleepers_++;
        work_ready_.wait(lock, [&] { return epoch_.load() != seen; });
        sleepers_--;
    }
}

// Set lazily without a lock, so that a child of fork never waits for a thread that it does not have.
std::atomic<ThreadPool *> shared_pool{nullptr};
std::atomic<bool> fork_handler_set{false}, shut_down{false};

// The parent's pool is left alone: its mutex may be held by a thread that the child lacks.
void forget_pool_in_child() { shared_pool.store(nullptr); }

// Joins the workers when the library is unloaded or the program ends.
struct PoolOwner {
    ~PoolOwner() {
        shut_down.store(true);
        delete shared_pool.exchange(nullptr);
    }
} pool_owner;

ThreadPool *get_shared_pool() {
    if (ThreadPool *pool = shared_pool.load(std::memory_order_acquire)) return pool;
    if (shut_down.load()) return nullptr;
    if (!fork_handler_set.exchange(true)) pthread_atfork(nullptr, nullptr, forget_pool_in_child);
    ThreadPool *fresh = new (std::nothrow) ThreadPool;
    ThreadPool *expected = nullptr;
    if (fresh == nullptr || shared_pool.compare_exchange_strong(expected, fresh)) return fresh;
    delete fresh;
    return expected;
}

}  // namespace

void run_on_shared_pool(int32_t num_items, PoolItem item, void *item_context) {
    ThreadPool *pool = num_items > 1 ? get_shared_pool() : nullptr;
    if (pool == nullptr) {
        for (int32_t i = 0; i < num_items; i++) item(item_context, i);
        return;
    }
    Job job{item, item_context, num_items};
    pool->run(job);
}

}  // namespace heed
