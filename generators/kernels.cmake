# The kernel table. A kernel exists because it is in this table; library, registry, tests, benchmarks and the support matrix follow.
#
# Pruning rule. A kernel is compiled for what changes its inner loops: phase, element types, head dims, storage of the keys, and what
# happens to each logit. All else is decided at run time outside the inner loops and costs nothing there: causal, window, position,
# lengths, ragged batches, group size, strides, scale, sinks, lse.
# - Logits: a plain kernel, and one kernel with alibi, bias, mask and the cap that serves any of them (the cap is tested per block of keys,
#   the others cost a few operations per logit). Dropout, ten rounds of a generator per logit, is in general kernels only.
# - Storage: `contiguous` reads keys in place (contiguous and varlen, prefill of f32 also copies of pages). `paged` finds them through a table of slots per block and
#   serves every storage. Prefill with f16, bf16 or int8 keys converts each block anyway, so that it has paged kernels only.
# - Head dims: those of common models; `any` serves the rest of 1..640 and other pairs of head_dim and head_dim_v, with loops
#   whose lengths are known at run time. Each pair of types has general kernels with every feature, so that nothing the API allows lacks a kernel.
#   A head dim lacks a kernel that the one of `any` serves within 2 %: f32 of 80 with a mask (AVX2, Zen 3: 1.36 against 1.44 of the plain
#   kernel's time). Plain kernels of `any` take 1.15 to 1.34 times as long as a kernel of the head dim, so that both are there.
# - A decode kernel with gqa works on four rows (heads of a group, positions) at once, one without on one row: its waste would be fourfold.
# - Decode of large groups is a form of these: for types whose vectors of rows gain at least 1.4, head dims of models with such groups
#   (576/512: one latent head for all), plain.
# - x86_64 serves machines without AVX2, from before 2013: general kernels only.
# - Attention on 16 bits in f32 arithmetic is for chips before sm_80.
set(HEED_KERNEL_EXCLUDE "" CACHE STRING "Make no kernels of the default table whose names match this regular expression")
set(excluded ${HEED_KERNEL_EXCLUDE})
if(NOT heed_attention_isas STREQUAL heed_isas)
    list(APPEND excluded "^attention_(prefill|decode)_.*_avx2$")
endif()
if(NOT 75 IN_LIST heed_cuda_archs)
    list(APPEND excluded "^attention_(prefill|decode)_b?f16_.*_sm75$")
endif()
heed_add_kernel_library(heed_kernels ISAS ${heed_table_isas} EXCLUDE ${excluded})

# f32, keys in place.
heed_add_attention_kernels(heed_kernels PHASE prefill HEAD_DIM any FEATURES none alibi_bias_mask_softcap ISA x86_64 avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE prefill HEAD_DIM 80 ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE prefill HEAD_DIM 16 32 64 96 128 256 128x64 192x128
    FEATURES none alibi_bias_mask_softcap ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode HEAD_DIM any FEATURES none gqa alibi_bias_gqa_mask_softcap ISA x86_64 avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode HEAD_DIM 80 FEATURES none gqa ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode HEAD_DIM 16 32 64 96 128 256
    FEATURES none gqa alibi_bias_gqa_mask_softcap ISA avx2 avx512)

# f16 and bf16; f32 in pages. Heads of 80, 96 and 256: Phi and Gemma.
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f16 bf16 HEAD_DIM 64 128
    FEATURES none alibi_bias_mask_softcap STORAGE paged ISA avx2 avx512)
# Heads of many rows are read in copies of floats, which are widened once.
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f16 bf16 KV_DTYPE f32 HEAD_DIM 64 128 any ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 HEAD_DIM 64 128
    FEATURES none gqa alibi_bias_gqa_mask_softcap ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 HEAD_DIM 80 96 256 FEATURES none gqa ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f32 f16 bf16 HEAD_DIM 64 128 FEATURES none gqa STORAGE paged ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE prefill HEAD_DIM 64 128 STORAGE paged ISA avx2 avx512)

# bf16 dot products, in prefill by pairs and by matrix tiles. In decode for what plans choose most: any such kernel goes before those of
# AVX-512, so that there is a plain one next to gqa.
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE bf16 HEAD_DIM any 64 80 96 128 128x64 192x128 256
    FEATURES none alibi_bias_mask_softcap STORAGE paged ISA avx512bf16 amx)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE bf16 HEAD_DIM 64 96 128 256 FEATURES none gqa ISA avx512bf16)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE bf16 HEAD_DIM 64 128 FEATURES none gqa STORAGE paged ISA avx512bf16)

# Decode of groups of 16 heads and more, and of few queries with matrix tiles: query rows are the lanes.
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f32 HEAD_DIM any 64 80 96 128 256 576x512 FEATURES gqa ISA avx2 avx512
    SCHEDULE wide)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f32 HEAD_DIM 64 128 FEATURES gqa STORAGE paged ISA avx2 avx512 SCHEDULE wide)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE bf16 HEAD_DIM any 64 128 576x512 FEATURES gqa STORAGE paged ISA avx512bf16 amx SCHEDULE wide)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE bf16 HEAD_DIM 80 96 256 FEATURES gqa STORAGE paged ISA avx512bf16 SCHEDULE wide)
# Keys of many heads that leave the caches, and those in pages: whole keys one after the other. (Of AVX2, kernels of f32 and those of one row do so themselves.)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f32 HEAD_DIM 64 128 FEATURES none gqa STORAGE contiguous paged ISA avx512 SCHEDULE whole)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 HEAD_DIM 64 128 FEATURES gqa STORAGE paged ISA avx2 SCHEDULE whole)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 HEAD_DIM 64 128 FEATURES none gqa STORAGE paged ISA avx512 SCHEDULE whole)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE bf16 HEAD_DIM 64 128 FEATURES none gqa STORAGE paged ISA avx512bf16 SCHEDULE whole)

# int8 keys and values.
heed_add_attention_kernels(heed_kernels PHASE prefill decode DTYPE f16 bf16 KV_DTYPE i8 HEAD_DIM 128 STORAGE paged ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 KV_DTYPE i8 HEAD_DIM 128 FEATURES gqa STORAGE paged
    ISA avx2 avx512)

# General kernels for everything else.
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f16 bf16 HEAD_DIM any STORAGE paged ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f32 f16 bf16 HEAD_DIM any
    FEATURES alibi_bias_dropout_mask_softcap STORAGE paged ISA x86_64 avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f32 f16 bf16 KV_DTYPE i8 HEAD_DIM any
    FEATURES alibi_bias_dropout_mask_softcap STORAGE paged ISA x86_64 avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 HEAD_DIM any FEATURES gqa STORAGE paged ISA avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f32 f16 bf16 HEAD_DIM any
    FEATURES alibi_bias_dropout_gqa_mask_softcap STORAGE paged ISA x86_64 avx2 avx512)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f32 f16 bf16 KV_DTYPE i8 HEAD_DIM any
    FEATURES alibi_bias_dropout_gqa_mask_softcap STORAGE paged ISA x86_64 avx2 avx512)

# CUDA, tensor cores. Head dims of common models; `any` serves the rest up to 256 from zero-padded tiles. Kernels that change each logit
# own half as many query rows per warp, for their registers. Decode kernels are bound by memory: wasted rows of a tile cost nothing, so that
# all of them pack groups; those of the schedule `wide` have 32 rows, for groups of more than 16 heads.
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f16 bf16 HEAD_DIM 64 80 96 128 192x128 256 any
    FEATURES none alibi_bias_mask_softcap ISA sm80)
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f16 bf16 HEAD_DIM 64 128 STORAGE paged ISA sm80)
# sm_90: products of warpgroups.
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f16 bf16 HEAD_DIM 64 80 96 128 192x128 FEATURES none alibi_bias_mask_softcap
    ISA sm90)
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f16 bf16 HEAD_DIM 256 FEATURES none alibi_bias_mask_softcap ISA sm90)
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f16 bf16 HEAD_DIM 64 128 FEATURES none alibi_bias_mask_softcap
    STORAGE paged ISA sm90)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 HEAD_DIM 64 128 FEATURES gqa STORAGE contiguous paged ISA sm80)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 HEAD_DIM 64 128 FEATURES gqa STORAGE contiguous paged ISA sm80 SCHEDULE wide)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 HEAD_DIM 64 FEATURES alibi_bias_gqa_mask_softcap STORAGE paged ISA sm80)
heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE f16 bf16 KV_DTYPE i8 HEAD_DIM 128 STORAGE paged ISA sm80)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 KV_DTYPE i8 HEAD_DIM 64 128 FEATURES gqa STORAGE paged ISA sm80)
heed_add_attention_kernels(heed_kernels PHASE decode DTYPE f16 bf16 KV_DTYPE i8 HEAD_DIM 64 128 FEATURES gqa STORAGE paged ISA sm80 SCHEDULE wide)
# f32 arithmetic: for f32, and for f16 and bf16 before sm_80.
heed_add_attention_kernels(heed_kernels PHASE prefill HEAD_DIM 64 128 any FEATURES none alibi_bias_mask_softcap ISA sm75)
# General kernels for everything else.
foreach(isa sm75 sm80)
    set(dtypes f16 bf16)
    if(isa STREQUAL "sm75")
        list(PREPEND dtypes f32)
    endif()
    heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE ${dtypes} HEAD_DIM any
        FEATURES alibi_bias_dropout_mask_softcap STORAGE paged ISA ${isa})
    heed_add_attention_kernels(heed_kernels PHASE prefill DTYPE ${dtypes} KV_DTYPE i8 HEAD_DIM any
        FEATURES alibi_bias_dropout_mask_softcap STORAGE paged ISA ${isa})
    heed_add_attention_kernels(heed_kernels PHASE decode DTYPE ${dtypes} HEAD_DIM any
        FEATURES alibi_bias_dropout_gqa_mask_softcap STORAGE paged ISA ${isa})
    heed_add_attention_kernels(heed_kernels PHASE decode DTYPE ${dtypes} KV_DTYPE i8 HEAD_DIM any
        FEATURES alibi_bias_dropout_gqa_mask_softcap STORAGE paged ISA ${isa})
endforeach()

heed_add_all_operations(heed_kernels)
_heed_check_own_tuned(heed_kernels)
