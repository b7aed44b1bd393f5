#include "runtime/cli/execution.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "heed/fields.h"
#include "heed/heed.hpp"
#include "runtime/reference/case_call.h"
#include "runtime/reference/cuda_device.h"

namespace heed_cli {
namespace {

// The plan, on the kernel of --kernel if any. The library's sentences name the variable that forces one.
heed::Plan make_plan(const heed_problem &problem, const std::optional<std::string> &kernel) {
    if (!kernel) return heed::Plan(problem);
    if (kernel->empty()) throw InvalidInput("--kernel is \"\"; it must be a name that `heed kernels` lists");
    const std::string variable = "HEED_FORCE_KERNEL";
    setenv(variable.c_str(), kernel->c_str(), 1);
    try {
        return heed::Plan(problem);
    } catch (const heed::Error &error) {
        std::string sentence = error.what();
        if (sentence.compare(0, variable.size(), variable) != 0) throw;
        sentence.replace(0, variable.size(), "--kernel");
        if (error.status() == HEED_INVALID_ARGUMENT) throw InvalidInput(sentence);
        throw heed::Error(error.status(), sentence);
    }
}

// Seconds of the fastest of `repeat` runs; run() returns when its kernel is done.
template <class Run>
double fastest(int32_t repeat, Run run) {
    double best = std::numeric_limits<double>::infinity();
    for (int32_t n = 0; n < repeat; n++) {
        const auto start = std::chrono::steady_clock::now();
        run();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        best = std::min(best, seconds.count());
    }
    return best;
}

void add(heed_reference::DeviceMirror *mirror, const Array &array) {
    mirror->add(const_cast<unsigned char *>(array.data.data()), array.data.size(), false);
}

// A plan does not look for a device.
void expect_device(const std::string &kernel) {
    for (const heed_kernel_info &info : heed::kernels()) {
        if (kernel == info.name && !info.supported) throw heed::Error(HEED_NO_DEVICE, info.unsupported_reason);
    }
}

double run_on_cuda(const Case &c, const heed::Plan &plan, int32_t repeat, Execution *execution, const heed_args &args) {
    expect_device(execution->kernel);
    const heed_reference::CudaDevice &device = heed_reference::CudaDevice::get();
    heed_reference::DeviceMirror mirror;
#define HEED_NAME(name, ...) , #name
    for (const char *name : { "q", "k", "v", "mask", "bias" HEED_HEAD_ARRAYS(HEED_NAME) }) {  // metadata is the host's
#undef HEED_NAME
        if (c.has(name)) add(&mirror, c.arrays.at(name));
    }
    add(&mirror, c.k_scale);
    add(&mirror, c.v_scale);
    for (Array *output : {&execution->out, &execution->lse}) {
        mirror.add(output->data.data(), output->data.size(), true);
    }
    const heed_reference::DeviceBuffer workspace(plan.workspace_bytes(), 0, false);
    heed_args device_args = on_device(mirror, args);
    device_args.workspace = workspace.data();
    device_args.workspace_bytes = plan.workspace_bytes();
    const double seconds = fastest(repeat, [&] {
        plan.execute(device_args);
        device.synchronize();
    });
    mirror.bring_back();
    return seconds;
}

}  // namespace

Execution execute(const Case &c, const Options &options) {
    heed_problem problem = c.problem;
    problem.device = options.device;
    problem.max_threads = options.threads;
    const heed::Plan plan = make_plan(problem, options.kernel);
    Execution execution{plan.kernel_name(), make_out(c), make_lse(c), 0};
    heed_args args = make_args(c, execution.out, execution.lse);
    if (options.device == HEED_CUDA) {
        execution.seconds = run_on_cuda(c, plan, options.repeat, &execution, args);
        return execution;
    }
    const heed::Workspace workspace = plan.make_workspace();
    workspace.attach(args);
    execution.seconds = fastest(options.repeat, [&] { plan.execute(args); });
    return execution;
}

}  // namespace heed_cli
