#include "generators/cuda/backward_inputs.h"

namespace heed::cuda {

using namespace Halide;

SequenceFields BackwardInputs::read_sequence(DeviceCode &code, const Expr &sequence) const {
    return read_sequence_fields(code, tasks, sequence, uniform,
                                {max_q_len, 0, max_kv_len, 0, visible_begin, visible_end, position_offset});
}

Expr BackwardInputs::stats_of(const Expr &sequence, const Expr &head) const {
    const Expr row = (cast<int64_t>(sequence) * q.extent(1) + head) * stat_rows;
    return stats + cast<uint64_t>(row * backward_stat_bytes);
}

Expr tensor_row(const DeviceTensor &tensor, const Expr &sequence, const Expr &head, const Expr &token, int size) {
    return tensor.address() + element_bytes(sequence, tensor.stride(3), size) +
           element_bytes(head, tensor.stride(1), size) + element_bytes(token, tensor.stride(2), size);
}

}  // namespace heed::cuda
