// Safetensors files, good and bad, put together in memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "heed/heed.h"
#include "tests/support/memory_file.h"
#include "tests/support/reference_names.h"

namespace heed_test {

inline std::string header_length(uint64_t length) {
    std::string bytes;
    for (int i = 0; i < 8; i++) bytes += static_cast<char>(length >> (8 * i) & 0xff);
    return bytes;
}

inline std::string weights_bytes(const std::string &header, const std::string &data) {
    return header_length(header.size()) + header + data;
}

// One header entry, without the name.
inline std::string entry(const std::string &dtype, const std::string &shape, const std::string &begin,
                         const std::string &end) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" + begin + "," + end + "]}";
}

struct WeightsFileDeleter {
    void operator()(heed_weights_file *file) const { heed_weights_close(file); }
};
using WeightsFile = std::unique_ptr<heed_weights_file, WeightsFileDeleter>;

// *status is INVALID_ARGUMENT with a sentence, or HEED_OK and there is a file.
inline WeightsFile open_weights(const std::string &path, heed_status *status) {
    auto *file = reinterpret_cast<heed_weights_file *>(status);
    *status = heed_weights_open(path.c_str(), &file);
    EXPECT_EQ(file != nullptr, *status == HEED_OK);
    return WeightsFile(file);
}

struct Found {
    heed_status status = HEED_OK;
    heed_tensor tensor = {};
    int64_t shape[8] = {};
    int32_t rank = -1;

    Found(const WeightsFile &file, const std::string &name) {
        status = heed_weights_find(file.get(), name.c_str(), &tensor, shape, &rank);
    }
    std::string bytes(int64_t element_bytes) const {
        return std::string(static_cast<const char *>(tensor.data), static_cast<size_t>(tensor.size * element_bytes));
    }
};

}  // namespace heed_test
