// Tensors of numbers that a program makes.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/reference/element.h"
#include "runtime/reference/placement.h"

namespace heed_bench {

// Numbers in f32, f16 or bf16.
class Elements {
public:
    Elements(heed_dtype dtype, const std::vector<float> &numbers)
        : dtype_(dtype), count_(static_cast<int64_t>(numbers.size())),
          bytes_(numbers.size() * static_cast<size_t>(heed_reference::element_bytes(dtype))) {
        for (size_t i = 0; i < numbers.size(); i++) {
            heed_reference::store(bytes_.data(), static_cast<int64_t>(i), dtype, numbers[i]);
        }
    }
    heed_tensor tensor() const { return {const_cast<char *>(bytes_.data()), count_, dtype_}; }

private:
    heed_dtype dtype_;
    int64_t count_;
    std::vector<char> bytes_;
};

}  // namespace heed_bench
