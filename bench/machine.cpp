#include "bench/machine.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <sstream>

namespace heed_bench {

namespace {

const std::string cpu_folder = "/sys/devices/system/cpu/cpu";

std::string first_line(const std::string &path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// The value of the first "key : value" line of /proc/cpuinfo.
std::string cpuinfo(const std::string &key) {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        const size_t colon = line.find(':');
        if (line.compare(0, key.size(), key) == 0 && colon != std::string::npos && colon + 2 <= line.size()) {
            return line.substr(colon + 2);
        }
    }
    return "";
}

std::vector<std::string> flags_that_matter() {
    const std::vector<std::string> wanted = {
        "sse4_1",   "avx",         "f16c",     "fma",      "avx2",        "avx512f",     "avx512dq", "avx512bw",
        "avx512vl", "avx512_bf16", "avx_vnni", "amx_bf16", "avx512_fp16", "avx512_vnni", "amx_int8", "hypervisor"};
    std::istringstream words(cpuinfo("flags"));
    std::vector<std::string> found;
    for (std::string word; words >> word;) {
        if (std::find(wanted.begin(), wanted.end(), word) != wanted.end()) {
            found.push_back(word);
        }
    }
    return found;
}

bool first_of_its_core(int cpu) {
    const std::string siblings = first_line(cpu_folder + std::to_string(cpu) + "/topology/thread_siblings_list");
    return siblings.empty() || std::atoi(siblings.c_str()) == cpu;
}

std::string utc_now() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

cpu_set_t set_of(const std::vector<int> &cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : cpus) {
        CPU_SET(static_cast<size_t>(cpu), &set);
    }
    return set;
}

}  // namespace

int64_t cache_bytes(int level) {
    for (int index = 0; index < 8; index++) {
        const std::string folder = cpu_folder + "0/cache/index" + std::to_string(index) + "/";
        if (first_line(folder + "level") == std::to_string(level) && first_line(folder + "type") != "Instruction") {
            const std::string size = first_line(folder + "size");  // such as 1024K
            return std::atoll(size.c_str()) * (size.find('M') != std::string::npos ? 1024 * 1024 : 1024);
        }
    }
    return 0;
}

MachineFacts machine_facts() {
    return {cpuinfo("model name"),
            flags_that_matter(),
            static_cast<int>(usable_cpus().size()),
            cache_bytes(1),
            cache_bytes(2),
            cache_bytes(3),
            first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
            utc_now()};
}

std::vector<int> usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(static_cast<size_t>(cpu), &set)) {
            cpus.push_back(cpu);
        }
    }
    std::stable_partition(cpus.begin(), cpus.end(), first_of_its_core);
    return cpus;
}

void pin_this_thread(int cpu) {
    const cpu_set_t set = set_of({cpu});
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void restrict_process(int threads) {
    std::vector<int> cpus = usable_cpus();
    cpus.resize(std::min(cpus.size(), static_cast<size_t>(threads)));
    const cpu_set_t set = set_of(cpus);
    sched_setaffinity(0, sizeof set, &set);
}

CpuSeconds cpu_seconds() {
    std::ifstream file("/proc/stat");
    std::string label;
    double user = 0, nice = 0, system = 0;
    file >> label >> user >> nice >> system;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval &t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    return {(user + nice + system) / static_cast<double>(sysconf(_SC_CLK_TCK)),
            seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

double wall_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace heed_bench
