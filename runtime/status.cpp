#include "runtime/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "heed/fields.h"

namespace {

// Holds a reason per kernel of a table of some fifty kernels.
thread_local char last_error[8192] = "";

}  // namespace

namespace heed {

heed_status fail(heed_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(last_error, sizeof(last_error), format, arguments);
    va_end(arguments);
    if (length >= static_cast<int>(sizeof(last_error))) {
        std::memcpy(last_error + sizeof(last_error) - 4, "...", 4);
    }
    return status;
}

const char *dtype_name(heed_dtype dtype) { return heed_dtype_word(dtype); }

const char *device_name(heed_device device) {
    switch (device) {
    case HEED_CPU:
        return "HEED_CPU";
    case HEED_CUDA:
        return "HEED_CUDA";
    }
    return "?";
}

int64_t dtype_bytes(heed_dtype dtype) {
    switch (dtype) {
    case HEED_F32:
    case HEED_I32:
        return 4;
    case HEED_F16:
    case HEED_BF16:
        return 2;
    case HEED_I8:
    case HEED_U8:
        return 1;
    }
    return 1;
}

}  // namespace heed

extern "C" {

const char *heed_version(void) {
    static_assert(HEED_VERSION_MAJOR == 0 && HEED_VERSION_MINOR == 1 && HEED_VERSION_PATCH == 0, "keep the text equal");
    return "0.1.0";
}

const char *heed_status_name(heed_status status) {
    switch (status) {
    case HEED_OK:
        return "HEED_OK";
    case HEED_INVALID_ARGUMENT:
        return "HEED_INVALID_ARGUMENT";
    case HEED_UNSUPPORTED:
        return "HEED_UNSUPPORTED";
    case HEED_WORKSPACE_TOO_SMALL:
        return "HEED_WORKSPACE_TOO_SMALL";
    case HEED_NO_DEVICE:
        return "HEED_NO_DEVICE";
    case HEED_OUT_OF_MEMORY:
        return "HEED_OUT_OF_MEMORY";
    case HEED_INTERNAL:
        return "HEED_INTERNAL";
    }
    return "HEED_UNKNOWN_STATUS";
}

const char *heed_last_error(void) { return last_error; }

}  // extern "C"
