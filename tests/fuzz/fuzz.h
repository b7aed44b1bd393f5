// What the fuzz targets share. A target is one function on bytes; it aborts when a promise does not hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>

#include "tests/support/reference_names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace heed_test {

// Prints `promise` and aborts unless it holds.
void require(bool holds, const std::string &promise);

// Numbers out of an input; zeros when it is used up.
class ByteReader {
public:
    ByteReader(const uint8_t *data, size_t size) : data_(data), size_(size) {}

    size_t left() const { return size_ - at_; }

    template <class T>
    T get() {
        T value = {};
        const size_t bytes = sizeof(T) < left() ? sizeof(T) : left();
        if (bytes > 0) std::memcpy(&value, data_ + at_, bytes);
        at_ += bytes;
        return value;
    }
    // low..high, of at most 256 values.
    int32_t between(int32_t low, int32_t high) { return low + get<uint8_t>() % (high - low + 1); }
    bool flag() { return between(0, 1) == 1; }
    template <class T>
    T one_of(std::initializer_list<T> values) {
        return values.begin()[between(0, static_cast<int32_t>(values.size()) - 1)];
    }
    std::string text(size_t bytes) {
        bytes = bytes < left() ? bytes : left();
        at_ += bytes;
        return std::string(reinterpret_cast<const char *>(data_) + at_ - bytes, bytes);
    }

private:
    const uint8_t *data_;
    size_t size_, at_ = 0;
};

}  // namespace heed_test
