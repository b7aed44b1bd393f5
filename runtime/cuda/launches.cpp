#include "cuda/launches.h"

#include "halide_arguments.h"
#include "status.h"

namespace heed::cuda {
namespace {

heed_status run(const char *name, int (*call)(void **), void **argv, const KernelContext &context) {
    Launches &launches = *context.launches;
    launches.count = 0;
    const int code = call(argv);
    if (launches.status) return launches.status;
    if (code != 0) {
        return fail(HEED_INTERNAL, "kernel %s failed with code %d: %s", name, code,
                    context.message[0] != '\0' ? context.message : "no message");
    }
    if (launches.count == 1) return HEED_OK;
    return fail(HEED_INTERNAL, "kernel %s made %d launches; it must make one", name, launches.count);
}

}  // namespace

heed_status launch_kernel(const Kernel &row, KernelCall &call, Launches &launches) {
    KernelContext context = {};
    context.launches = &launches;
    void *user_context = &context;
    AttentionArguments arguments(call, &user_context, HEED_CUDA);
    return run(row.name, row.call, arguments.argv(), context);
}

heed_status launch_op(const OpKernel &row, const OpArgument *arguments, int num_arguments, Launches &launches) {
    KernelContext context = {};
    context.launches = &launches;
    void *user_context = &context;
    OpArguments packed(arguments, num_arguments, &user_context, HEED_CUDA);
    return run(row.name, row.call, packed.argv(), context);
}

}  // namespace heed::cuda
