#include "rows.h"

#include <stdexcept>

#include "heed/heed.h"

namespace heed_bench {

namespace {

size_t isa_begin(const std::string &row) {
    for (const std::string storage : {"_contiguous_", "_paged_"}) {
        const size_t at = row.rfind(storage);
        if (at != std::string::npos) {
            return at + storage.size();
        }
    }
    throw std::invalid_argument("\"" + row + "\" names no row");
}

// CUDA: "sm80".
bool is_gpu(const std::string &isa) { return isa.compare(0, 2, "sm") == 0; }

}  // namespace

std::string isa_of(const std::string &row) { return row.substr(isa_begin(row)); }

std::string row_for_isa(const std::string &row, const std::string &isa) { return row.substr(0, isa_begin(row)) + isa; }

std::vector<std::string> cpu_rows(const std::string &isa) {
    std::vector<std::string> names;
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        heed_kernel_info_t info{};
        info.struct_size = sizeof info;
        if (heed_kernel_info(i, &info) == HEED_OK && info.supported) {
            const std::string its = isa_of(info.name);
            if (!is_gpu(its) && (isa.empty() || its == isa)) {
                names.emplace_back(info.name);
            }
        }
    }
    return names;
}

}  // namespace heed_bench
