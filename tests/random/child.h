// Work in processes of its own: a crash or a hang there is a result like any other.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <string>

namespace heed_test {

// A value that a child and its parent both see.
template <class T>
class Shared {
public:
    Shared() {
        void *memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        value_ = new (memory) T();
    }
    ~Shared() { munmap(value_, sizeof(T)); }
    Shared(const Shared &) = delete;
    Shared &operator=(const Shared &) = delete;
    T *operator->() const { return value_; }

private:
    T *value_;
};

struct ChildEnd {
    bool good;
    std::string words;  // "exit status 1", "signal 11"
};

// Runs work() in a child; good when it returns true. The child's output is dropped where it is quiet.
template <class Work>
ChildEnd run_in_child(bool quiet, Work work) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        if (quiet && std::freopen("/dev/null", "w", stdout) == nullptr) _exit(2);
        const bool good = work();
        std::fflush(nullptr);
        _exit(good ? 0 : 1);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return {false, "no child"};
    if (WIFSIGNALED(status)) return {false, "signal " + std::to_string(WTERMSIG(status))};
    return {WEXITSTATUS(status) == 0, "exit status " + std::to_string(WEXITSTATUS(status))};
}

}  // namespace heed_test
