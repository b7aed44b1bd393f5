#pragma once
// A forked child that may hang.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

namespace heed_test {

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
