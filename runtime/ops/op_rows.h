// Which op row serves a call: the best ISA of the machine.
#pragma once

#include "kernel.h"

struct heed_linear_weights;

namespace heed {

// *row is the row, or NULL with UNSUPPORTED and a sentence that names the rows that were looked at.
heed_status find_op_row(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **row);

// The same for CUDA: NO_DEVICE. Of rows for several chips the newest.
heed_status find_cuda_op_row(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **row);

// The register tiles of linear for the best ISA: fills tiles, row_tiles, num_tiles and columns.
heed_status find_linear_rows(heed_dtype dtype, heed_linear_weights *weights);

// Rows of the CPU, or of CUDA, above `isa` are passed over from now on, in the whole process: so that tests run every
// row. highest_cpu_isa, highest_cuda_isa: none.
constexpr Isa highest_cpu_isa = Isa::amx, highest_cuda_isa = Isa::sm80;
void limit_op_isa(Isa isa);
Isa highest_op_isa(heed_device device);

}  // namespace heed
