#pragma once

#include "generators/contract/fields.h"
#include "generators/cuda/device_code.h"
#include "generators/cuda/device_tensor.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"

namespace heed::cuda {

struct SequenceFields {
    Halide::Expr q_len, first_q, kv_len, first_key, visible_begin, visible_end, position_offset;
};

// A line of the table or, where `uniform` is not 0, the same fields for every sequence.
inline SequenceFields read_sequence_fields(DeviceCode &code, const DeviceTensor &table, const Halide::Expr &sequence,
                                           const Halide::Expr &uniform, const SequenceFields &same) {
    const Halide::Expr of_all[] = {same.q_len,         same.first_q,     same.kv_len,         same.first_key,
                                   same.visible_begin, same.visible_end, same.position_offset};
    const Registers fields = code.registers("fields", Halide::Int(32), num_sequence_fields);
    code.when(
        uniform != 0,
        [&] {
            for (int f = 0; f <= sequence_position_offset; f++) code.set(fields, f, of_all[f]);
        },
        [&] {
            const Halide::Expr line = table.address() + Halide::cast<uint64_t>(sequence) * (4 * num_sequence_fields);
            for (int f = 0; f <= sequence_position_offset; f++) {
                code.set(fields, f, load_i32(line + Halide::cast<uint64_t>(4 * f)));
            }
        });
    const auto field = [&](int f) { return code.let("field", fields[f]); };
    return {field(sequence_q_len),          field(sequence_first_q),       field(sequence_kv_len),
            field(sequence_first_key),      field(sequence_visible_begin), field(sequence_visible_end),
            field(sequence_position_offset)};
}

}  // namespace heed::cuda
