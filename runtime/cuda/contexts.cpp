#include "runtime/cuda/contexts.h"

#include <dlfcn.h>

#include "runtime/cuda/context_table.h"
#include "runtime/status.h"

namespace heed::cuda {
namespace {

ContextTable capabilities;  // the first word

// A fault of the caller's stream or context is named as such.
heed_status check_stream(const Driver &driver, int code, const char *call) {
    const heed_status status = check(driver, code, call);
    const bool callers =
        code == error_invalid_context || code == error_invalid_handle || code == error_context_is_destroyed;
    return callers ? HEED_INVALID_ARGUMENT : status;
}

}  // namespace

ScopedContext::~ScopedContext() {
    Context popped = nullptr;
    if (pushed_) driver_->ctx_pop_current(&popped);
}

heed_status ScopedContext::find(Stream stream, Context *context, Context *current) const {
    if (const heed_status status = check(*driver_, driver_->ctx_get_current(current), "cuCtxGetCurrent")) return status;
    if (stream != nullptr) return check_stream(*driver_, driver_->stream_get_ctx(stream, context), "cuStreamGetCtx");
    *context = *current;
    if (*current != nullptr) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "stream is NULL and no CUDA context is current on this thread; make one current "
                                       "(cuCtxSetCurrent, cudaSetDevice), or pass a stream");
}

heed_status ScopedContext::look_up_capability() {
    ContextWords words = {};
    if (!capabilities.find(id_, &words)) {
        int device = 0, major = 0, minor = 0;
        heed_status status = check(*driver_, driver_->ctx_get_device(&device), "cuCtxGetDevice");
        const auto look_at = [&](int attribute, int *value) {
            if (status) return;
            status = check(*driver_, driver_->device_get_attribute(value, attribute, device), "cuDeviceGetAttribute");
        };
        look_at(device_capability_major, &major);
        look_at(device_capability_minor, &minor);
        if (status) return status;
        const int capability = 10 * major + minor;
        words[0] = static_cast<uint64_t>(capability);
        capabilities.insert(id_, words);
    }
    capability_ = static_cast<int>(words[0]);
    return HEED_OK;
}

heed_status ScopedContext::make_current(Context context, Context current) {
    if (context != current) {
        const heed_status status = check_stream(*driver_, driver_->ctx_push_current(context), "cuCtxPushCurrent");
        if (status) return status;
        pushed_ = true;
    }
    context_ = context;
    unsigned long long id = 0;
    const heed_status status = check_stream(*driver_, driver_->ctx_get_id(context, &id), "cuCtxGetId");
    id_ = id;
    return status ? status : look_up_capability();
}

heed_status ScopedContext::enter(const Driver &driver, Stream stream) {
    driver_ = &driver;
    Context context = nullptr, current = nullptr;
    const heed_status status = find(stream, &context, &current);
    return status ? status : make_current(context, current);
}

heed_status ScopedContext::enter_context(const Driver &driver, Context context) {
    driver_ = &driver;
    Context current = nullptr;
    const heed_status status = check(driver, driver.ctx_get_current(&current), "cuCtxGetCurrent");
    return status ? status : make_current(context, current);
}

int current_capability() {
    void *const library = dlopen(driver_library, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return 0;
    dlclose(library);  // its process has it
    const char *reason = nullptr;
    const Driver *const driver = find_driver(&reason);
    Context context = nullptr;
    ScopedContext scope;
    if (driver == nullptr || driver->ctx_get_current(&context) != success || context == nullptr) return 0;
    return scope.enter_context(*driver, context) == HEED_OK ? scope.capability() : 0;
}

}  // namespace heed::cuda
