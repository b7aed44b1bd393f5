// The lists of generators/contract as structs: callers fill arguments by name, kernels get them in the list's order.
#pragma once

#include <initializer_list>

#include "runtime/kernel.h"

namespace heed {

// One buffer argument, dimensions innermost first.
struct KernelBuffer {
    void *data;
    heed_dtype dtype;
    int32_t num_dims;
    int32_t extent[4], stride[4];
};

// Elements without gaps.
inline KernelBuffer packed_buffer(const void *data, heed_dtype dtype, std::initializer_list<int32_t> extents) {
    KernelBuffer buffer = {const_cast<void *>(data), dtype, 0, {}, {}};
    int64_t stride = 1;
    for (const int32_t extent : extents) {
        buffer.extent[buffer.num_dims] = extent;
        buffer.stride[buffer.num_dims++] = static_cast<int32_t>(stride);
        stride *= extent;
    }
    return buffer;
}

// One argument of a kernel: a buffer, or a scalar.
struct KernelArgument {
    const KernelBuffer *buffer = nullptr;
    const void *scalar = nullptr;  // when there is no buffer
};

constexpr int max_kernel_arguments = 160, max_buffer_arguments = 24;

// The arguments of one call in order. Points into what it lists.
class ArgumentList {
public:
    void add(const KernelBuffer &buffer) { items_[count_++] = {&buffer, nullptr}; }
    template <typename T>
    void add(const T &scalar) {
        items_[count_++] = {nullptr, &scalar};
    }
    template <int entries, int entry_words>
    void add(const Words<entries, entry_words> &words) {
        for (const uint64_t &word : words.word) add(word);
    }

    int count() const { return count_; }
    const KernelArgument &operator[](int i) const { return items_[i]; }

private:
    KernelArgument items_[max_kernel_arguments];
    int count_ = 0;
};

#define HEED_BUFFER_FIELD(name, element, dims) KernelBuffer name = {};
#define HEED_VALUE_FIELD(name, type) type name = {};
#define HEED_LIST_FIELD(name, ...) list->add(name);

// A struct with a field for each argument.
#define HEED_ARGUMENTS(Name, LIST)                                                                                     \
    struct Name {                                                                                                      \
        LIST(HEED_BUFFER_FIELD, HEED_VALUE_FIELD, HEED_BUFFER_FIELD)                                                   \
        void list_to(ArgumentList *list) const { LIST(HEED_LIST_FIELD, HEED_LIST_FIELD, HEED_LIST_FIELD) }             \
    };

HEED_ARGUMENTS(AddArguments, HEED_ADD)
HEED_ARGUMENTS(AttentionProbsArguments, HEED_ATTENTION_PROBS)
HEED_ARGUMENTS(AttentionProductsArguments, HEED_ATTENTION_PRODUCTS)
HEED_ARGUMENTS(BackwardBiasArguments, HEED_BACKWARD_BIAS)
HEED_ARGUMENTS(BackwardRepairArguments, HEED_BACKWARD_REPAIR)
HEED_ARGUMENTS(BackwardRowsArguments, HEED_BACKWARD_ROWS_OF)
HEED_ARGUMENTS(BackwardSinksArguments, HEED_BACKWARD_SINKS)
HEED_ARGUMENTS(BackwardStatsArguments, HEED_BACKWARD_STATS)
HEED_ARGUMENTS(BackwardStoreArguments, HEED_BACKWARD_STORE)
HEED_ARGUMENTS(BackwardTileArguments, HEED_ATTENTION_BACKWARD)
HEED_ARGUMENTS(BackwardTileBf16Arguments, HEED_ATTENTION_BACKWARD_BF16)
HEED_ARGUMENTS(BackwardWordsArguments, HEED_BACKWARD_WORDS)
HEED_ARGUMENTS(ColumnSumsArguments, HEED_COLUMN_SUMS)
HEED_ARGUMENTS(DropoutMaskArguments, HEED_DROPOUT_MASK)
HEED_ARGUMENTS(KvAppendArguments, HEED_KV_APPEND)
HEED_ARGUMENTS(LayerNormArguments, HEED_LAYER_NORM)
HEED_ARGUMENTS(LayerNormGradientArguments, HEED_LAYER_NORM_GRADIENT)
HEED_ARGUMENTS(LayerNormSumsArguments, HEED_LAYER_NORM_SUMS)
HEED_ARGUMENTS(LinearArguments, HEED_LINEAR)
HEED_ARGUMENTS(LinearInPlaceArguments, HEED_LINEAR_IN_PLACE)
HEED_ARGUMENTS(LinearRowsArguments, HEED_LINEAR_ROWS)
HEED_ARGUMENTS(MergeStatesArguments, HEED_MERGE_STATES)
HEED_ARGUMENTS(RopeArguments, HEED_ROPE)

namespace cuda {

HEED_ARGUMENTS(AddArguments, HEED_CUDA_ADD)
HEED_ARGUMENTS(AttentionProbsArguments, HEED_CUDA_ATTENTION_PROBS)
HEED_ARGUMENTS(BackwardBiasArguments, HEED_CUDA_BACKWARD_BIAS)
HEED_ARGUMENTS(BackwardSinksArguments, HEED_CUDA_BACKWARD_SINKS)
HEED_ARGUMENTS(BackwardStatsArguments, HEED_CUDA_BACKWARD_STATS)
HEED_ARGUMENTS(BackwardSumsArguments, HEED_CUDA_BACKWARD_SUMS)
HEED_ARGUMENTS(ClipArguments, HEED_CUDA_CLIP)
HEED_ARGUMENTS(ClipGradientArguments, HEED_CUDA_CLIP_GRADIENT)
HEED_ARGUMENTS(ColumnSumsArguments, HEED_CUDA_COLUMN_SUMS)
HEED_ARGUMENTS(CopyRowsArguments, HEED_CUDA_COPY_ROWS)
HEED_ARGUMENTS(KeyPaddingArguments, HEED_CUDA_KEY_PADDING)
HEED_ARGUMENTS(LayerNormArguments, HEED_CUDA_LAYER_NORM)
HEED_ARGUMENTS(LayerNormGradientArguments, HEED_CUDA_LAYER_NORM_GRADIENT)
HEED_ARGUMENTS(LinearArguments, HEED_CUDA_LINEAR)
HEED_ARGUMENTS(MergeSplitsArguments, HEED_CUDA_MERGE_SPLITS)
HEED_ARGUMENTS(MergeStatesArguments, HEED_CUDA_MERGE_STATES)
HEED_ARGUMENTS(MoveTokensArguments, HEED_CUDA_MOVE_TOKENS)
HEED_ARGUMENTS(WriteMetadataArguments, HEED_CUDA_WRITE_METADATA)
HEED_ARGUMENTS(SequencesArguments, HEED_CUDA_SEQUENCES)
HEED_ARGUMENTS(TransposeArguments, HEED_CUDA_TRANSPOSE)

}  // namespace cuda

// The arguments of an attention kernel.
struct KernelCall {
    HEED_ATTENTION(HEED_BUFFER_FIELD, HEED_VALUE_FIELD, HEED_BUFFER_FIELD)
    KernelBuffer score_buffers[max_score_buffers] = {};
    int32_t num_score_buffers = 0;

    void list_to(ArgumentList *list) const {
        HEED_ATTENTION(HEED_LIST_FIELD, HEED_LIST_FIELD, HEED_IGNORE)
        for (int i = 0; i < num_score_buffers; i++) list->add(score_buffers[i]);
        HEED_ATTENTION(HEED_IGNORE, HEED_IGNORE, HEED_LIST_FIELD)
    }
};

}  // namespace heed
