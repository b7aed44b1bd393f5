#pragma once
// How generators and the runtime share the argument list of a kernel. A list is a macro of three parameters, applied to
// the arguments in their order:
//   INPUT(name, element, dims)   a buffer that the kernel reads
//   VALUE(name, type)            a scalar: int32_t, uint8_t, uint64_t, float; or Words, several uint64_t
//   OUTPUT(name, element, dims)  a buffer that the kernel writes
// Kernels take their user context, then the list, in Halide's argv form: args[i] points to argument i; for a buffer
// args[i] is the halide_buffer_t *. Buffers list dimensions innermost first, reversed against the API's index order;
// all mins are 0, innermost strides 1 unless said, extent-1 strides canonical.
//
// element: f32, i32, i8, u8, u16, or a type of the kernel's: own (dtype), keys (kv_dtype), step (f32, or the bits of
// two bf16), panel (own, or the bits of two bf16).

#include <cstdint>

namespace heed {

// Entries of a list that a kernel takes as scalars, word by word.
template <int num_entries, int words_per_entry>
struct Words {
    static constexpr int entries = num_entries, entry_words = words_per_entry;
    uint64_t word[num_entries * words_per_entry] = {};
};

// FNV-1a of a list as text: kernels and the runtime must have been built with the same one.
constexpr uint64_t hash_of(const char *text) {
    uint64_t hash = 0xcbf29ce484222325;
    for (; *text != '\0'; text++) hash = (hash ^ static_cast<uint8_t>(*text)) * 0x100000001b3;
    return hash;
}

}  // namespace heed

#define HEED_INPUT_TEXT(name, element, dims) "in " #name " " #element " " #dims ";"
#define HEED_VALUE_TEXT(name, type) #type " " #name ";"
#define HEED_OUTPUT_TEXT(name, element, dims) "out " #name " " #element " " #dims ";"
#define HEED_LIST_HASH(LIST) ::heed::hash_of("" LIST(HEED_INPUT_TEXT, HEED_VALUE_TEXT, HEED_OUTPUT_TEXT))

// What changes and hides logits, the same for every kernel of attention. HEED_LOGIT_NUMBERS: fields of
// heed_problem, by their names; softcap: 0 = off, else such that it and its multiple by log2(e) are normal numbers.
#define HEED_LOGIT_NUMBERS(VALUE)                                                                                      \
    VALUE(alibi_symmetric, uint8_t)                                                                                    \
    VALUE(scale, float)                                                                                                \
    VALUE(temperature_growth, float)                                                                                   \
    VALUE(temperature_interval, int32_t)                                                                               \
    VALUE(temperature_shift, int32_t)                                                                                  \
    VALUE(softcap, float)
// mask_form, bias_form: MaskForm, BiasForm.
#define HEED_LOGIT_VALUES(VALUE)                                                                                       \
    VALUE(mask_form, int32_t)                                                                                          \
    VALUE(bias_form, int32_t)                                                                                          \
    HEED_LOGIT_NUMBERS(VALUE)

// What changes logits by head, (head) of any stride: in lists of whole calls, and in those of one head.
#define HEED_HEAD_INPUTS(INPUT)                                                                                        \
    INPUT(temperature, f32, 1)                                                                                         \
    INPUT(alibi_slopes, f32, 1)
#define HEED_HEAD_VALUES(VALUE)                                                                                        \
    VALUE(temperature, float)                                                                                          \
    VALUE(alibi_slopes, float)

// An element is dropped when its word of 32 bits is below dropout_threshold; dropout_scale: 1 / (1 - p), 0 for p = 1.
#define HEED_DROPOUT_VALUES(VALUE)                                                                                     \
    VALUE(dropout_seed, uint64_t)                                                                                      \
    VALUE(dropout_offset, uint64_t)                                                                                    \
    VALUE(dropout_threshold, uint64_t)                                                                                 \
    VALUE(dropout_scale, float)

#define HEED_IGNORE(...)
#define HEED_NO_ARGUMENTS(INPUT, VALUE, OUTPUT)
