#include "bench/kernel_names.h"

#include <stdexcept>

#include "heed/heed.h"

namespace heed_bench {

namespace {

size_t isa_begin(const std::string &kernel) {
    for (const std::string storage : {"_contiguous_", "_paged_"}) {
        const size_t at = kernel.rfind(storage);
        if (at != std::string::npos) {
            return at + storage.size();
        }
    }
    throw std::invalid_argument("\"" + kernel + "\" names no kernel");
}

// CUDA: "sm80", "sm90".
bool is_gpu(const std::string &isa) { return isa.compare(0, 2, "sm") == 0; }

}  // namespace

std::string isa_of(const std::string &kernel) {
    const size_t begin = isa_begin(kernel);
    return kernel.substr(begin, kernel.compare(begin, 6, "x86_64") == 0 ? 6 : kernel.find('_', begin) - begin);
}

std::string kernel_for_isa(const std::string &kernel, const std::string &isa) {
    return kernel.substr(0, isa_begin(kernel)) + isa;
}

std::vector<std::string> cpu_kernels(const std::string &isa) {
    std::vector<std::string> names;
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        heed_kernel_info info{};
        info.struct_size = sizeof info;
        if (heed_kernel_get_info(i, &info) == HEED_OK && info.supported) {
            const std::string its = isa_of(info.name);
            if (!is_gpu(its) && (isa.empty() || its == isa)) {
                names.emplace_back(info.name);
            }
        }
    }
    return names;
}

}  // namespace heed_bench
