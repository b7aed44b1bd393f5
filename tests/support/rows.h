// The rows of the kernel table that this machine can run, and which of them ran.
#pragma once

#include <string>
#include <vector>

#include "attention.h"

namespace heed_test {

struct Row {
    std::string name;
    heed_kernel_info_t info;

    bool any_head_dim() const { return info.head_dim == 0; }
    bool decode() const { return info.phase == HEED_DECODE; }
    bool has(uint32_t features) const { return (info.features & features) == features; }
    // The row's own head dims, or the given ones for a general row.
    Shape shape(int32_t head_dim = 57, int32_t head_dim_v = 40) const;
};

// All rows, and those that run here, sorted so that rows of equal head dims and phase stand together.
std::vector<Row> all_rows();
std::vector<Row> supported_rows();
std::vector<Row> rows_with(uint32_t features);                         // supported, with all of these features
std::vector<Row> rows_for(const Shape &shape, uint32_t features = 0);  // supported, and serving these head dims

const char *isa_name(heed_isa isa);

// By CPUID alone, without asking the library.
bool machine_has(heed_isa isa);

// Notes that a row ran; the ISAs of all that did.
void note_run(const std::string &kernel);
bool any_row_ran(heed_isa isa);

}  // namespace heed_test
