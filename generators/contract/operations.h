#pragma once
// Operations around attention: name, arguments on CPUs, arguments on CUDA.
#include "generators/contract/attention_arguments.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/contract/cuda_layer_arguments.h"
#include "generators/contract/operation_arguments.h"

#define HEED_OPERATIONS(X)                                                                                             \
    X(add, HEED_NO_ARGUMENTS, HEED_CUDA_ADD)                                                                           \
    X(attention_backward, HEED_ATTENTION_BACKWARD, HEED_CUDA_ATTENTION_BACKWARD)                                       \
    X(attention_backward_bias, HEED_NO_ARGUMENTS, HEED_CUDA_ATTENTION_BACKWARD)                                        \
    X(attention_backward_keys, HEED_NO_ARGUMENTS, HEED_CUDA_ATTENTION_BACKWARD)                                        \
    X(attention_backward_queries, HEED_NO_ARGUMENTS, HEED_CUDA_ATTENTION_BACKWARD)                                     \
    X(attention_backward_sinks, HEED_NO_ARGUMENTS, HEED_CUDA_ATTENTION_BACKWARD)                                       \
    X(attention_backward_stats, HEED_NO_ARGUMENTS, HEED_CUDA_ATTENTION_BACKWARD)                                       \
    X(attention_probs, HEED_ATTENTION_PROBS, HEED_CUDA_ATTENTION_PROBS)                                                \
    X(clip, HEED_NO_ARGUMENTS, HEED_CUDA_CLIP)                                                                         \
    X(clip_gradient, HEED_NO_ARGUMENTS, HEED_CUDA_CLIP_GRADIENT)                                                       \
    X(column_sums, HEED_NO_ARGUMENTS, HEED_CUDA_COLUMN_SUMS)                                                           \
    X(copy_rows, HEED_NO_ARGUMENTS, HEED_CUDA_COPY_ROWS)                                                               \
    X(dropout_mask, HEED_DROPOUT_MASK, HEED_NO_ARGUMENTS)                                                              \
    X(key_padding, HEED_NO_ARGUMENTS, HEED_CUDA_KEY_PADDING)                                                           \
    X(kv_append, HEED_KV_APPEND, HEED_CUDA_MOVE_TOKENS)                                                                \
    X(kv_copy, HEED_NO_ARGUMENTS, HEED_CUDA_MOVE_TOKENS)                                                               \
    X(layer_norm, HEED_LAYER_NORM, HEED_CUDA_LAYER_NORM)                                                               \
    X(layer_norm_gradient, HEED_NO_ARGUMENTS, HEED_CUDA_LAYER_NORM_GRADIENT)                                           \
    X(linear, HEED_LINEAR, HEED_CUDA_LINEAR)                                                                           \
    X(linear_rows, HEED_LINEAR_ROWS, HEED_NO_ARGUMENTS)                                                                \
    X(merge_splits, HEED_NO_ARGUMENTS, HEED_CUDA_MERGE_SPLITS)                                                         \
    X(merge_states, HEED_MERGE_STATES, HEED_CUDA_MERGE_STATES)                                                         \
    X(put_words, HEED_NO_ARGUMENTS, HEED_CUDA_PUT_WORDS)                                                               \
    X(rope, HEED_ROPE, HEED_CUDA_MOVE_TOKENS)                                                                          \
    X(sequences, HEED_NO_ARGUMENTS, HEED_CUDA_SEQUENCES)                                                               \
    X(transpose, HEED_NO_ARGUMENTS, HEED_CUDA_TRANSPOSE)

namespace heed {

enum class Op : int32_t {
#define HEED_OP_NAME(name, cpu, cuda) name,
    HEED_OPERATIONS(HEED_OP_NAME)
#undef HEED_OP_NAME
};

#define HEED_COUNT_OP(name, cpu, cuda) +1
constexpr int num_operations = HEED_OPERATIONS(HEED_COUNT_OP);
#undef HEED_COUNT_OP

inline const char *op_name(Op op) {
    static constexpr const char *names[] = {
#define HEED_OP_TEXT(name, cpu, cuda) #name,
        HEED_OPERATIONS(HEED_OP_TEXT)
#undef HEED_OP_TEXT
    };
    const int number = static_cast<int>(op);
    return number >= 0 && number < num_operations ? names[number] : "?";
}

constexpr uint64_t attention_arguments_hash = HEED_LIST_HASH(HEED_ATTENTION);

// bf16: attention_backward of CPUs in bf16 has a list of its own.
constexpr uint64_t op_arguments_hash(Op op, bool on_cuda, bool bf16) {
    if (op == Op::attention_backward && !on_cuda && bf16) return HEED_LIST_HASH(HEED_ATTENTION_BACKWARD_BF16);
    switch (op) {
#define HEED_OP_HASH(name, cpu, cuda)                                                                                  \
    case Op::name:                                                                                                     \
        return on_cuda ? HEED_LIST_HASH(cuda) : HEED_LIST_HASH(cpu);
        HEED_OPERATIONS(HEED_OP_HASH)
#undef HEED_OP_HASH
    }
    return 0;
}

}  // namespace heed
