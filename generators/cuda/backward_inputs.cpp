#include "backward_inputs.h"

namespace heed::cuda {

using namespace Halide;

std::vector<DeviceTensor> BackwardInputs::tensors() const {
    return {q, k, v, out, lse, dout, mask, bias, bias_16, sink, slopes, table, dq, dk, dv, dbias};
}

std::vector<Argument> BackwardInputs::arguments(ElementType type) const {
    const Type own = stored_type(type);
    // dbias is in the type of the bias: its address alone counts.
    const Type types[] = {own,      own,       own,       own,     Float(32), own, UInt(8), Float(32),
                          UInt(16), Float(32), Float(32), Int(32), own,       own, own,     UInt(8)};
    std::vector<Argument> result;
    for (const DeviceTensor &t : tensors()) {
        result.emplace_back(t.name, Argument::InputBuffer, types[result.size()], t.dimensions, ArgumentEstimates());
    }
    for (const auto &param : {batch, max_q_len, max_kv_len, uniform, visible_begin, visible_end, position_offset,
                              mask_form, bias_form, symmetric, side, all_keys, stat_rows}) {
        result.emplace_back(param);
    }
    for (const auto &param : {scale, softcap, dropout_scale}) result.emplace_back(param);
    for (const auto &param : {dropout_seed, dropout_offset, dropout_threshold, stats, dsink}) {
        result.emplace_back(param);
    }
    return result;
}

SequenceFields BackwardInputs::read_sequence(DeviceCode &code, const Expr &sequence) const {
    return read_sequence_fields(code, table, sequence, uniform,
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
