#pragma once
// What every kernel of attention's gradients on CUDA is told (runtime/kernel.h: CUDA attention_backward), and where its
// rows lie.

#include <vector>

#include "../element_type.h"
#include "device_code.h"
#include "device_tensor.h"
#include "sequence_field.h"

namespace heed::cuda {

// Gradients are sums along one side of the score matrix: of keys (dk and dv), over the queries that see them, and of
// queries (dq), over the keys that they see. A block of either side makes its sums alone: no atomics, and the bits
// depend on nothing else.
enum BackwardSide { backward_keys, backward_queries };

constexpr int backward_stat_bytes = 8;  // of a row of `stats`: lse in log2, then delta = dout . out

struct BackwardInputs {
    DeviceTensor q{"q", 4}, k{"k", 4}, v{"v", 4}, out{"out", 4}, lse{"lse", 4}, dout{"dout", 4}, mask{"mask", 4},
        bias{"bias", 4}, bias_16{"bias_16", 4}, sink{"sink", 1}, slopes{"alibi_slopes", 1}, table{"tasks", 2},
        dq{"dq", 4}, dk{"dk", 4}, dv{"dv", 4}, dbias{"dbias", 4};  // dbias: extent 1 where elements are shared
    Halide::Param<int32_t> batch{"batch"}, max_q_len{"max_q_len"}, max_kv_len{"max_kv_len"};
    // Not 0: no table is read; every sequence has max_q_len queries, max_kv_len keys and these values.
    Halide::Param<int32_t> uniform{"uniform"}, visible_begin{"visible_begin"}, visible_end{"visible_end"},
        position_offset{"position_offset"};
    Halide::Param<int32_t> mask_form{"mask_form"}, bias_form{"bias_form"}, symmetric{"alibi_symmetric"};
    Halide::Param<int32_t> side{"side"};
    Halide::Param<int32_t> all_keys{"all_keys"};    // not 0: keys behind a sequence's last one, up to max_kv_len, get 0
    Halide::Param<int32_t> stat_rows{"stat_rows"};  // rows of `stats` of a head
    Halide::Param<float> scale{"scale"}, softcap{"softcap"}, dropout_scale{"dropout_scale"};
    Halide::Param<uint64_t> dropout_seed{"dropout_seed"}, dropout_offset{"dropout_offset"},
        dropout_threshold{"dropout_threshold"};
    // Addresses: of `stats` (row, head, sequence), of dsink.
    Halide::Param<uint64_t> stats{"stats"}, dsink{"dsink"};

    std::vector<DeviceTensor> tensors() const;
    std::vector<Halide::Argument> arguments(ElementType type) const;

    SequenceFields read_sequence(DeviceCode &code, const Halide::Expr &sequence) const;
    // Of row 0 of a head of a sequence.
    Halide::Expr stats_of(const Halide::Expr &sequence, const Halide::Expr &head) const;
};

// Element 0 of a row of a tensor; the batch stride of ragged tensors is 0.
Halide::Expr tensor_row(const DeviceTensor &tensor, const Halide::Expr &sequence, const Halide::Expr &head,
                        const Halide::Expr &token, int size);

}  // namespace heed::cuda
