# The kernel table. A kernel exists because it stands here; library, registry, tests, benchmarks and the support matrix follow.
#
# Pruning rule. A row is compiled for what changes its inner loops: phase, element types, head dims, and whether every logit reads a
# bias or mask element (one row serves either and both). All else is decided at run time outside the inner loops and costs nothing
# there: causal, window, position, lengths, group size, strides, scale, lse. Own head dims are those of common models; `any` serves the
# rest of 1..640 and every head_dim_v != head_dim, from padded copies of the key blocks. A decode row with gqa works on four
# rows (heads of a group, positions) at once, one without on one row: its waste would be fourfold. Each ISA gets the same rows.
heed_add_kernel_library(heed_kernels)
heed_add_kernels(heed_kernels
    PHASE prefill
    DTYPE f32
    HEAD_DIM 32 64 96 128 256 any
    FEATURES none bias_mask
    ISA x86_64 avx2 avx512)
heed_add_kernels(heed_kernels
    PHASE decode
    DTYPE f32
    HEAD_DIM 32 64 96 128 256 any
    FEATURES none gqa bias_gqa_mask
    ISA x86_64 avx2 avx512)

# Operations around attention. They are bound by memory: AVX-512 rows would add code and no speed. A row per element type; kv_append
# exists for int8 caches only, where it quantises: into a cache of its own type tokens go by rope and memcpy. The rotary
# dimension, the kind of pairs, the number of states, strides and dropout_p are run-time values.
heed_add_op_kernels(heed_kernels OP rope merge_states DTYPE f32 f16 bf16 ISA x86_64 avx2)
heed_add_op_kernels(heed_kernels OP kv_append DTYPE f32 f16 bf16 KV_DTYPE i8 ISA x86_64 avx2)
heed_add_op_kernels(heed_kernels OP dropout_mask DTYPE u8 ISA x86_64 avx2)
