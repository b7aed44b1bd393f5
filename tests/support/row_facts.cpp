// What tolerances ask of a kernel: of the public API only, for the command line.
#include "rows.h"

namespace heed_test {
namespace {

bool has_bf16_dots(heed_isa isa) { return isa == HEED_AVX512_BF16 || isa == HEED_AMX; }

}  // namespace

bool rounds_weights(const heed_kernel_info_t &row) {
    return has_bf16_dots(row.isa) || (is_cuda(row.isa) && row.dtype != HEED_F32);
}

double most_flushed(const heed_kernel_info_t &row, int32_t kv_len) {
    return has_bf16_dots(row.isa) ? 0x1p-126 * (kv_len + 1) : 0;
}

}  // namespace heed_test
