// The floating-point environment of all that computes: round to nearest, denormals kept, all exceptions masked: the
// state in which a process starts.
#pragma once

#include <xmmintrin.h>

namespace heed {

// Gives equal bits whatever the calling thread or a worker has set, and puts its state back, sticky flags included.
class DefaultFloatEnvironment {
public:
    DefaultFloatEnvironment() : saved_(_mm_getcsr()) {
        if (saved_ != default_mxcsr) _mm_setcsr(default_mxcsr);
    }
    ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }
    DefaultFloatEnvironment(const DefaultFloatEnvironment &) = delete;
    DefaultFloatEnvironment &operator=(const DefaultFloatEnvironment &) = delete;

private:
    static constexpr unsigned int default_mxcsr = 0x1f80;
    const unsigned int saved_;
};

}  // namespace heed
