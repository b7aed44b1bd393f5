#pragma once

#include <stdexcept>

namespace heed {

// What heed_generate says of arguments that it refuses, as a sentence.
struct BadInput : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace heed
