#include "runtime/python/errors.h"

#include <cstdarg>
#include <cstdio>

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace heed::python {
namespace {

const char *class_of(heed_status status) {
    switch (status) {
    case HEED_INVALID_ARGUMENT:
        return "InvalidArgument";
    case HEED_UNSUPPORTED:
        return "Unsupported";
    case HEED_WORKSPACE_TOO_SMALL:
        return "WorkspaceTooSmall";
    case HEED_NO_DEVICE:
        return "NoDevice";
    case HEED_OUT_OF_MEMORY:
        return "OutOfMemory";
    case HEED_OK:
    case HEED_INTERNAL:
        break;
    }
    return "Internal";
}

void raise(const std::exception_ptr &thrown, void *) {
    try {
        std::rethrow_exception(thrown);
    } catch (const Error &error) {
        const nb::object type = nb::module_::import_("heed._errors").attr(class_of(error.status()));
        PyErr_SetString(type.ptr(), error.what());
    }
}

}  // namespace

void refuse(const char *format, ...) {
    char sentence[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(sentence, sizeof(sentence), format, arguments);
    va_end(arguments);
    throw Error(HEED_INVALID_ARGUMENT, sentence);
}

void translate_errors() { nb::register_exception_translator(raise); }

}  // namespace heed::python
