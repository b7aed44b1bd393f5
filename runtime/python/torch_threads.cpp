#include "runtime/python/torch_threads.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace heed::python {
namespace {

// Functions of the libgomp that the process has loaded: PyTorch's, whose team of threads each calling thread keeps.
struct OpenMp {
    void (*parallel)(void (*body)(void *), void *data, unsigned num_threads, unsigned flags) = nullptr;
    int (*max_threads)() = nullptr, (*thread_num)() = nullptr, (*num_threads)() = nullptr;

    OpenMp() {
        dl_iterate_phdr(
            [](dl_phdr_info *info, size_t, void *self) {
                const char *const name = std::strrchr(info->dlpi_name, '/');
                if (name == nullptr || std::strncmp(name, "/libgomp", 8) != 0) return 0;
                static_cast<OpenMp *>(self)->load(info->dlpi_name);
                return 1;
            },
            this);
    }

    void load(const char *path) {
        void *const library = dlopen(path, RTLD_NOLOAD | RTLD_NOW);
        if (library == nullptr) return;
        parallel = reinterpret_cast<decltype(parallel)>(dlsym(library, "GOMP_parallel"));
        const auto find = [&](const char *name) { return reinterpret_cast<int (*)()>(dlsym(library, name)); };
        max_threads = find("omp_get_max_threads");
        thread_num = find("omp_get_thread_num");
        num_threads = find("omp_get_num_threads");
    }
};

const OpenMp &open_mp() {
    static const OpenMp functions;
    return functions;
}

struct Items {
    void (*item)(void *item_context, int32_t index);
    void *item_context;
    int32_t count;
};

// Item i on thread i, as PyTorch divides its loops: what they wrote last is in that core's cache.
void run_items(void *data) {
    const Items &items = *static_cast<const Items *>(data);
    const int team = open_mp().num_threads();
    for (int32_t i = open_mp().thread_num(); i < items.count; i += team) items.item(items.item_context, i);
}

void run(void *, int32_t num_items, void (*item)(void *, int32_t), void *item_context) {
    Items items{item, item_context, num_items};
    if (num_items == 1) return item(item_context, 0);
    open_mp().parallel(run_items, &items, 0, 0);
}

// GNU's OpenMP waits forever for the threads that a child of fork lacks.
std::atomic<bool> is_child{false};

}  // namespace

TorchThreads torch_threads() {
    static const int handler = pthread_atfork(nullptr, nullptr, [] { is_child.store(true); });
    constexpr static heed_parallel_for pool = {run, nullptr};
    const OpenMp &functions = open_mp();
    if (handler != 0 || is_child.load() || functions.parallel == nullptr || functions.max_threads == nullptr ||
        functions.thread_num == nullptr || functions.num_threads == nullptr) {
        return {nullptr, 0};
    }
    return {&pool, std::min(functions.max_threads(), 1024)};
}

}  // namespace heed::python
