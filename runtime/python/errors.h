// What Python sees of a failed call: heed.Error, by a subclass per status.
#pragma once

#include "heed/heed.hpp"

namespace heed::python {

// Throws heed::Error of HEED_INVALID_ARGUMENT with a printf-style sentence: the field, its value, the allowed set.
[[noreturn]] void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

// From here on a heed::Error that leaves a bound function becomes the class of heed._errors that its status names.
void translate_errors();

}  // namespace heed::python
