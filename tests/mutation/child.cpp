#include "tests/mutation/child.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "runtime/reference/reference.h"
#include "runtime/reference/tolerance.h"
#include "tests/support/table_kernels.h"

namespace heed_test {
namespace {

template <class Function>
Function *device_function(const char *name) {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    void *const address = library == nullptr ? nullptr : dlsym(library, name);
    if (address == nullptr) throw std::runtime_error(std::string("no emulated device: ") + dlerror());
    return reinterpret_cast<Function *>(address);
}

TableKernel kernel_named(const std::string &name) {
    for (const TableKernel &kernel : all_kernels()) {
        if (kernel.name == name) return kernel;
    }
    throw std::runtime_error("no kernel " + name);
}

Outcome run_here(const std::string &name, const Mutation &mutation, bool tiny, const std::string &device_options) {
    if (device_function<int(const char *)>("heed_device_configure")(device_options.c_str()) != 0) {
        throw std::runtime_error("not understood: " + device_options);
    }
    if (!mutation.from.empty()) {
        device_function<void(const char *, const char *, int)>("heed_device_replace")(
            mutation.from.c_str(), mutation.to.c_str(), mutation.occurrence);
    }
    const TableKernel kernel = kernel_named(name);
    const Attention a = mutation_case(name, tiny);
    Call call(a, kernel.options());
    heed_status status = HEED_INTERNAL;
    bool intact = true;
    std::string complaint;
    try {
        status = call.run();
        intact = call.canaries_intact();
    } catch (const std::runtime_error &fault) {  // found by the copies after it
        complaint = fault.what();
    }
    const std::string said = device_function<const char *()>("heed_device_last_error")();
    if (said.find("times in the PTX") != std::string::npos) return Outcome::no_occurrence;
    if (status != HEED_OK) {
        std::printf("%s\n%s\n%s\n", complaint.c_str(), heed_last_error(), said.c_str());
        return Outcome::fault;
    }
    const Verdict verdict = verdict_of(a, compute_reference(a, true), call.out(), call.lse());
    std::printf("%s\n%s\n", verdict.complaint.c_str(), intact ? "" : "written outside of the outputs");
    return verdict.ok && intact ? Outcome::correct : Outcome::wrong;
}

}  // namespace

Attention mutation_case(const std::string &name, bool tiny) {
    const TableKernel kernel = kernel_named(name);
    Shape shape = kernel.shape();
    shape.num_heads = shape.num_kv_heads = 2;
    const int32_t keys_of_steps = std::max(129, 2 * kernel.info.kv_block + 1);  // three at least
    shape.q_len = tiny ? 2 : keys_of_steps + 1;
    shape.kv_len = tiny ? 2 : keys_of_steps;
    Attention a = kernel.attention(shape);
    a.causal = true;
    // For the queries that do not see them they make the device repeat its sums. Each 8 keys of a block have some, each
    // with columns of its own: what is mistaken for its neighbour must differ.
    for (int32_t c = 0; c < a.head_dim_v; c++) {
        constexpr int32_t keys[] = {70, 90, 98, 122, 74, 82, 106, 114};
        a.v_row(0, tiny ? 1 : keys[(c + c / 64) % 8], 1)[c] = std::numeric_limits<float>::quiet_NaN();
    }
    // The last step makes a maximum grow, where values are numbers: sums are rescaled.
    const float *query = a.q_row(0, shape.q_len - 1, 0);
    for (int32_t c = 0; !tiny && c < a.head_dim; c++) a.k_row(0, shape.kv_len - 1, 0)[c] = 8 * query[c];
    return a;
}

Outcome run_in_child(const std::string &kernel, const Mutation &mutation, bool tiny, const std::string &device_options,
                     bool quiet) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        if (quiet &&
            (std::freopen("/dev/null", "w", stdout) == nullptr || std::freopen("/dev/null", "w", stderr) == nullptr)) {
            _exit(100);
        }
        int result = 101;
        try {
            result = static_cast<int>(run_here(kernel, mutation, tiny, device_options));
        } catch (const std::exception &error) {
            std::printf("%s\n", error.what());
        }
        std::fflush(nullptr);
        _exit(result);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > static_cast<int>(Outcome::no_occurrence)) {
        throw std::runtime_error("the run of " + kernel + " ended with " + std::to_string(status));
    }
    return static_cast<Outcome>(WEXITSTATUS(status));
}

}  // namespace heed_test
