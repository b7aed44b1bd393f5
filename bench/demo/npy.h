#pragma once
#include <cstdint>
#include <string>

namespace heed_demo {

// Writes a row-major f32 matrix as a NumPy .npy file. Throws std::runtime_error.
void write_npy(const std::string &path, const float *values, int64_t rows, int64_t columns);

}  // namespace heed_demo
