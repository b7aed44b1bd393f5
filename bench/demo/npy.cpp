#include "npy.h"

#include <fstream>
#include <stdexcept>

namespace heed_demo {

void write_npy(const std::string &path, const float *values, int64_t rows, int64_t columns) {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
                         std::to_string(columns) + "), }";
    const size_t preamble = 10;                                // magic, version, header length
    header.append(63 - (preamble + header.size()) % 64, ' ');  // so that the data starts at a multiple of 64
    header += '\n';
    std::ofstream file(path, std::ios::binary);
    file.write("\x93NUMPY\x01\x00", 8);
    file.put(static_cast<char>(header.size() & 0xff)).put(static_cast<char>(header.size() >> 8));
    file << header;
    file.write(reinterpret_cast<const char *>(values),
               static_cast<std::streamsize>(static_cast<uint64_t>(rows * columns) * sizeof(float)));
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace heed_demo
