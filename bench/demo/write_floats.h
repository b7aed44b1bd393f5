#pragma once

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

namespace heed_demo {

// Little endian f32, for numpy.fromfile. Throws std::runtime_error.
inline void write_floats(const std::string &path, const float *values, int64_t count) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(values), count * std::streamsize{sizeof(float)});
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace heed_demo
