// What functions of the API that may allocate have in common.
#pragma once

#include <exception>

#include "runtime/float_environment.h"
#include "runtime/status.h"

namespace heed {

// Runs `body` in the default floating-point environment; no memory, and a table beyond any, is OUT_OF_MEMORY.
template <typename Body>
heed_status run_api(const char *function, const Body &body) {
    const DefaultFloatEnvironment environment;
    try {
        return body();
    } catch (const std::exception &) {  // bad_alloc, or length_error
        return fail(HEED_OUT_OF_MEMORY, "%s: out of memory", function);
    }
}

}  // namespace heed
