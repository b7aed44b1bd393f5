// Case 62: libheed.so loaded, used and unloaded again and again; two of it, each with a Halide runtime of its own, in
// one process.
#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "heed/heed.h"

namespace {

std::string library_path;  // of libheed.so

// The functions of one loaded copy.
class Library {
public:
    explicit Library(const std::string &path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (handle_ == nullptr) {
            ADD_FAILURE() << dlerror();
            std::exit(1);
        }
    }
    ~Library() { dlclose(handle_); }
    Library(const Library &) = delete;
    Library &operator=(const Library &) = delete;

    template <class Function>
    Function *find(const char *name) const {
        void *const address = dlsym(handle_, name);
        EXPECT_NE(address, nullptr) << name;
        return reinterpret_cast<Function *>(address);
    }

private:
    void *const handle_;
};

// Attention over equal keys is the mean of the values: with v = 0, 1, ..., n - 1 for a power of two n it is exact.
// Large enough for the library's own threads.
bool computes(const Library &library) {
    constexpr int32_t kv_len = 512, heads = 8, rows = 32, dim = 64;
    const auto problem_init = library.find<decltype(::heed_problem_init)>("heed_problem_init");
    const auto plan_create = library.find<decltype(::heed_plan_create)>("heed_plan_create");
    const auto plan_destroy = library.find<decltype(::heed_plan_destroy)>("heed_plan_destroy");
    const auto plan_workspace_bytes = library.find<decltype(::heed_plan_workspace_bytes)>("heed_plan_workspace_bytes");
    const auto args_init = library.find<decltype(::heed_args_init)>("heed_args_init");
    const auto execute = library.find<decltype(::heed_execute)>("heed_execute");
    heed_problem problem;
    problem_init(&problem);
    problem.batch = 1;
    problem.num_heads = problem.num_kv_heads = heads;
    problem.head_dim = problem.head_dim_v = dim;
    problem.max_q_len = rows;
    problem.max_kv_len = kv_len;
    problem.max_threads = 4;
    heed_plan *plan = nullptr;
    if (plan_create(&problem, &plan) != HEED_OK) return false;
    std::vector<float> q(rows * heads * dim, 1.0f), k(kv_len * heads * dim, 0.0f), v(k.size()), out(q.size());
    for (size_t n = 0; n < v.size(); n++) v[n] = static_cast<float>(n / (heads * dim));
    const size_t bytes = (plan_workspace_bytes(plan) + 127) / 128 * 128;
    heed_args args;
    args_init(&args);
    args.q = {q.data(), static_cast<int64_t>(q.size()), HEED_F32};
    args.k = {k.data(), static_cast<int64_t>(k.size()), HEED_F32};
    args.v = {v.data(), static_cast<int64_t>(v.size()), HEED_F32};
    args.out = {out.data(), static_cast<int64_t>(out.size()), HEED_F32};
    args.workspace = std::aligned_alloc(128, bytes);
    args.workspace_bytes = bytes;
    bool good = execute(plan, &args) == HEED_OK;
    for (const float x : out) good = good && x == (kv_len - 1) / 2.0f;
    std::free(args.workspace);
    plan_destroy(plan);
    return good;
}

int count_threads() {
    int count = 0;
    DIR *const tasks = opendir("/proc/self/task");
    while (const dirent *entry = readdir(tasks)) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

TEST(Loading, Case62_AHundredTimes) {
    for (int n = 0; n < 100; n++) {
        {
            const Library library(library_path);
            ASSERT_TRUE(computes(library)) << n;
        }
        // Unloaded, its threads gone.
        ASSERT_EQ(dlopen(library_path.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr) << n;
        ASSERT_EQ(count_threads(), 1) << n;
    }
}

TEST(Loading, Case62_TwoLibrariesWithHalideInOneProcess) {
    const std::filesystem::path copy =
        std::filesystem::temp_directory_path() / ("heed_copy_" + std::to_string(getpid()));
    std::filesystem::copy_file(library_path, copy);
    {
        const Library first(library_path), second(copy.string());
        std::filesystem::remove(copy);
        const auto version = [](const Library &library) {
            return library.find<decltype(heed_version)>("heed_version");
        };
        EXPECT_NE(version(first), version(second));
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (const Library *library : {&first, &second, &first, &second}) {
            threads.emplace_back([library, &wrong] {
                for (int n = 0; n < 50; n++) wrong += !computes(*library);
            });
        }
        for (std::thread &thread : threads) thread.join();
        EXPECT_EQ(wrong, 0);
    }
    EXPECT_EQ(count_threads(), 1);
}

}  // namespace

int main(int argc, char **argv) {
    testing::InitGoogleTest(&argc, argv);
    if (argc != 2) return 2;
    library_path = argv[1];
    return RUN_ALL_TESTS();
}
