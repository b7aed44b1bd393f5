#include "runtime/cuda/launches.h"

#include <HalideRuntimeCuda.h>

#include "runtime/halide_arguments.h"
#include "runtime/status.h"

namespace heed::cuda {
namespace {

heed_status run(const char *name, int (*call)(void **), const ArgumentList &list, Launches &launches) {
    KernelContext context = {};
    context.launches = &launches;
    void *user_context = &context;
    HalideArguments arguments(list, &user_context);
    arguments.move_to(halide_cuda_device_interface());
    launches.count = 0;
    const int code = call(arguments.argv());
    if (launches.status) return launches.status;
    if (code != 0) {
        return fail(HEED_INTERNAL, "kernel %s failed with code %d: %s", name, code,
                    context.message[0] != '\0' ? context.message : "no message");
    }
    if (launches.count == 1) return HEED_OK;
    return fail(HEED_INTERNAL, "kernel %s made %d launches; it must make one", name, launches.count);
}

}  // namespace

heed_status launch_kernel(const Kernel &kernel, const KernelCall &call, Launches &launches) {
    ArgumentList list;
    call.list_to(&list);
    return run(kernel.name, kernel.call, list, launches);
}

heed_status launch_op(const OpKernel &kernel, const ArgumentList &list, Launches &launches) {
    return run(kernel.name, kernel.call, list, launches);
}

}  // namespace heed::cuda
