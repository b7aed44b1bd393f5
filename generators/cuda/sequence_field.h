#pragma once

#include "device_code.h"
#include "device_tensor.h"
#include "index_math.h"
#include "intrinsics.h"

namespace heed::cuda {

// Fields of the sequence table (runtime/kernel.h: SequenceField).
enum SequenceField {
    field_q_len,
    field_first_q,
    field_kv_len,
    field_first_key,
    field_visible_begin,
    field_visible_end,
    field_position_offset,
    num_sequence_fields = 8
};

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
            for (int f = 0; f <= field_position_offset; f++) code.set(fields, f, of_all[f]);
        },
        [&] {
            const Halide::Expr line = table.address() + Halide::cast<uint64_t>(sequence) * (4 * num_sequence_fields);
            for (int f = 0; f <= field_position_offset; f++) {
                code.set(fields, f, load_i32(line + Halide::cast<uint64_t>(4 * f)));
            }
        });
    const auto field = [&](int f) { return code.let("field", fields[f]); };
    return {field(field_q_len),         field(field_first_q),     field(field_kv_len),         field(field_first_key),
            field(field_visible_begin), field(field_visible_end), field(field_position_offset)};
}

}  // namespace heed::cuda
