// The rows of this program's kernel library.
#pragma once

#include <string>

#include "kernel.h"

namespace heed {

// What a problem asks of a row.
struct RowRequest {
    heed_device device;
    heed_dtype dtype, kv_dtype;
    int32_t head_dim, head_dim_v;
    uint32_t features;
    heed_kv_storage kv_storage;
    int32_t q_len, group_size;
    bool any_q_len;  // the choice must not follow q_len: other sequences' lengths are part of it
    const char *score_mod = "";
};

// Why a machine that lacks this ISA cannot run its rows.
const char *isa_reason(Isa isa);

// Why the row cannot serve the request on a machine with these ISAs; empty when it can.
std::string why_not(const Kernel &row, const RowRequest &request, uint32_t isas);

// The name of the first kernel that was generated for another argument list than this runtime passes, or NULL.
const char *foreign_kernel(const KernelTable &table);

// UNSUPPORTED, with its name, when this program's kernel library has such a kernel.
heed_status check_kernel_library();

// Names of feature bits, each after a space.
std::string feature_names(uint32_t bits);

}  // namespace heed
