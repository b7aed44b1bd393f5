// Forked children: how they end, and how long they may take.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

extern "C" int __llvm_profile_write_file() __attribute__((weak));

namespace heed_test {

// Ends a child without the handlers of its parent's exit; what it covered counts.
[[noreturn]] inline void exit_child(int status) {
    if (__llvm_profile_write_file != nullptr) __llvm_profile_write_file();
    _exit(status);
}

// Waits up to `limit`; the exit status, or -1 when the child hangs (and is killed) or dies.
inline int wait_for_child(pid_t child, std::chrono::seconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > deadline) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return -1;
        }
        usleep(1000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace heed_test
