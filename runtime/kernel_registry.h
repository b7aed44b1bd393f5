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

// Bit 1 << isa for each ISA that the CPU has.
uint32_t machine_isas();

// The same for a CUDA chip of this compute capability, 10 * major + minor; 0: 8.0 or newer.
uint32_t cuda_isas(int32_t capability);

// Why the row cannot serve the request on a machine with these ISAs; empty when it can.
std::string why_not(const Kernel &row, const RowRequest &request, uint32_t isas);

// Names of feature bits, each after a space.
std::string feature_names(uint32_t bits);

// The compute capability that a CUDA row needs, as cuda_isas has it.
int32_t required_capability(Isa isa);

}  // namespace heed
