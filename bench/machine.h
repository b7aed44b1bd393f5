// Facts of the machine that results are reported with, and control over where threads run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heed_bench {

struct MachineFacts {
    std::string cpu_model;
    std::vector<std::string> cpu_flags;  // those that decide which kernels run
    int cpus;                            // that this process may use
    int64_t l1d_bytes, l2_bytes, l3_bytes;
    std::string transparent_hugepage;  // the system's setting
    std::string date;                  // UTC
};

MachineFacts machine_facts();

// Size of the data cache of a level (1..3) as CPU 0 sees it; 0 when unknown.
int64_t cache_bytes(int level);

// CPUs of this process, the first of each physical core in front.
std::vector<int> usable_cpus();

void pin_this_thread(int cpu);

// From now on this process and its new threads run on the first `threads` usable CPUs only.
void restrict_process(int threads);

// CPU seconds used on the whole machine, and by this process.
struct CpuSeconds {
    double machine, process;
};
CpuSeconds cpu_seconds();

double wall_seconds();

}  // namespace heed_bench
