# heed_add_kernels(): the kernels of a program, by what the program needs. Which kernels of which kind serve that on each ISA is
# said here and nowhere else; heed_add_attention_kernels() and heed_add_op_kernels() (HeedKernels.cmake) add kernels by their own axes.
include_guard(GLOBAL)

# heed_add_kernels(<target> PHASES prefill|decode ... DTYPES f32|f16|bf16 ... HEAD_DIMS d|dxdv|any ...
#                  ISAS x86_64|avx2|avx512|avx512bf16|amx|sm75|sm80 ... [FEATURES f...] [OPS o...]
#                  [SCORE_MOD file.cpp] [TUNED table.json])
#
# Adds the kernels to the kernel library <target>, which it makes when there is none. HEAD_DIMS: 128, 128x64 (head_dim x head_dim_v),
# any (1..640; CUDA: 1..256). FEATURES:
#   causal gqa lse sinks varlen window    in every kernel: naming them adds nothing
#   paged                                 keys that page tables find
#   int8                                  int8 keys and values, in addition to those of the dtype
#   one of HEED_FEATURES but gqa           for each plain kernel a second one, which has all the named ones
# SCORE_MOD: all kernels of the call have the score function that the file defines (heed/user_score.h), and serve the problems that name it;
# with OPS attention_backward also gradients through it, on CPUs.
# TUNED: speed parameters by kernel, as ./dev tune writes them (schedules/tuned), instead of those that the schedules choose; each of its kernels
# must be one of <target>.
# OPS: operations around attention, by the lines OPS of generators/contract/operations.h; layers: all that <heed/layer.h> needs except for
# gradients; layer_gradients: what heed_layer_backward needs in addition.
# An ISA serves what it has instructions for: f32 with amx becomes AVX-512 kernels, with sm80 sm75 kernels.
function(heed_add_kernels target)
    set(lists PHASES DTYPES HEAD_DIMS FEATURES ISAS OPS)
    set(others SCORE_MOD TUNED)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "${others}" "${lists}")
    set(call "heed_add_kernels(${target})")
    _heed_check_keywords("${call}" "${lists}" "${others}")
    _heed_check_required("${call}" DTYPES ISAS)
    if(NOT arg_OPS OR arg_PHASES OR arg_HEAD_DIMS)
        _heed_check_required("${call}" PHASES HEAD_DIMS)
    endif()
    _heed_check_values("${call}" PHASES prefill decode)
    _heed_check_values("${call}" DTYPES f32 f16 bf16)
    _heed_check_values("${call}" ISAS ${_heed_cpu_isas} ${_heed_cuda_isas})
    _heed_check_values("${call}" FEATURES causal lse sinks varlen window paged int8 ${_heed_features})
    _heed_check_values("${call}" OPS ${_heed_all_OPS})
    _heed_check_head_dims("${call}" HEAD_DIMS "${arg_ISAS}")
    _heed_check_file("${call}" SCORE_MOD)
    _heed_check_file("${call}" TUNED)
    if(NOT TARGET ${target})
        heed_add_kernel_library(${target})
    endif()
    if(arg_TUNED)
        _heed_use_tuned(${target} ${arg_TUNED})
    endif()

    set(logits ${arg_FEATURES})
    list(FILTER logits EXCLUDE REGEX "^(causal|gqa|lse|sinks|varlen|window|paged|int8)$")
    list(REMOVE_DUPLICATES logits)
    set(int8 FALSE)
    if("int8" IN_LIST arg_FEATURES)
        set(int8 TRUE)
    endif()
    foreach(isa IN LISTS arg_ISAS)
        foreach(dtype IN LISTS arg_DTYPES)
            foreach(phase IN LISTS arg_PHASES)
                foreach(head_dim IN LISTS arg_HEAD_DIMS)
                    _heed_add_variants(${target} ${isa} ${phase} ${dtype} "" ${head_dim} "${logits}" "${arg_FEATURES}" "${arg_SCORE_MOD}")
                    if(int8)
                        _heed_add_variants(${target} ${isa} ${phase} ${dtype} i8 ${head_dim} "${logits}" "${arg_FEATURES}" "${arg_SCORE_MOD}")
                    endif()
                endforeach()
            endforeach()
            foreach(op IN LISTS arg_OPS)
                _heed_add_operation(${target} ${op} ${isa} ${dtype} "${int8}" "${arg_SCORE_MOD}")
            endforeach()
        endforeach()
    endforeach()
endfunction()

# The kernels of one shape: without anything at the logits, and with all of `logits`; general ones with dot products, which have no
# dropout, also with all of the others.
function(_heed_add_variants target isa phase dtype kv_dtype head_dim logits features score_mod)
    set(options "")
    if(kv_dtype)
        list(APPEND options KV_DTYPE ${kv_dtype})
    endif()
    if(score_mod)
        list(APPEND options SCORE_MOD ${score_mod})
    endif()
    set(without_dropout "")
    if(head_dim STREQUAL "any")
        set(without_dropout ${logits})
        list(REMOVE_ITEM without_dropout dropout)
        _heed_kernel_isa(kernel_isa ${isa} ${phase} ${dtype} "${kv_dtype}" any "${without_dropout}")
        if(NOT kernel_isa STREQUAL "avx512bf16")
            set(without_dropout "")
        endif()
    endif()
    foreach(of_logits "" "${without_dropout}" "${logits}")
        _heed_kernel_isa(kernel_isa ${isa} ${phase} ${dtype} "${kv_dtype}" ${head_dim} "${of_logits}")
        foreach(gqa IN ITEMS no yes)
            if(phase STREQUAL "prefill" AND gqa)
                continue()
            endif()
            # Kernels with something at the logits, and those of CUDA, work on the heads of a group at once, or on one.
            if(phase STREQUAL "decode" AND NOT gqa AND (of_logits OR kernel_isa MATCHES "^sm"))
                continue()
            endif()
            set(kernel_features ${of_logits})
            if(gqa)
                list(APPEND kernel_features gqa)
            endif()
            list(SORT kernel_features)
            list(JOIN kernel_features "_" kernel_features)
            if(NOT kernel_features)
                set(kernel_features none)
            endif()
            _heed_kernel_storages(storages ${kernel_isa} ${phase} ${dtype} "${kv_dtype}" "${features}")
            foreach(storage IN LISTS storages)
                # Several ISAs may be served by one kernel.
                _heed_once(${target} heed_add_attention_kernels PHASE ${phase} DTYPE ${dtype} ${options} HEAD_DIM ${head_dim}
                           FEATURES ${kernel_features} STORAGE ${storage} ISA ${kernel_isa})
                if(phase STREQUAL "decode" AND kernel_isa STREQUAL "sm80" AND head_dim MATCHES "^(64|80|96|128)$" AND NOT of_logits AND NOT score_mod)
                    _heed_once(${target} heed_add_attention_kernels PHASE decode DTYPE ${dtype} ${options} HEAD_DIM ${head_dim}
                               FEATURES gqa STORAGE ${storage} ISA sm80 SCHEDULE wide)
                endif()
            endforeach()
        endforeach()
    endforeach()
endfunction()

# Dot products of bf16 exist in kernels of bf16 keys, without dropout, for head dims of whole chunks, in prefill for any; those of
# tiles in prefill for whole chunks only.
function(_heed_kernel_isa result isa phase dtype kv_dtype head_dim of_logits)
    set(kernel_isa ${isa})
    if(isa MATCHES "^(amx|avx512bf16)$")
        string(REPLACE "x" ";" dims "${head_dim}")
        set(whole TRUE)
        foreach(dim IN LISTS dims)
            if(NOT dim STREQUAL "any")
                math(EXPR rest "${dim} % 16")
                if(rest)
                    set(whole FALSE)
                endif()
            elseif(NOT phase STREQUAL "prefill")
                set(whole FALSE)
            endif()
        endforeach()
        if(NOT dtype STREQUAL "bf16" OR kv_dtype OR NOT whole OR "dropout" IN_LIST of_logits)
            set(kernel_isa avx512)
        elseif(phase STREQUAL "decode" OR head_dim STREQUAL "any")
            set(kernel_isa avx512bf16)
        endif()
    elseif(isa STREQUAL "sm80" AND dtype STREQUAL "f32")
        set(kernel_isa sm75)
    endif()
    set(${result} ${kernel_isa} PARENT_SCOPE)
endfunction()

# Kernels of the CPU that convert each block of keys anyway, and all of int8 keys, serve every storage by their paged form.
function(_heed_kernel_storages result isa phase dtype kv_dtype features)
    if(kv_dtype OR (phase STREQUAL "prefill" AND NOT dtype STREQUAL "f32" AND NOT isa MATCHES "^sm"))
        set(storages paged)
    elseif("paged" IN_LIST features)
        set(storages contiguous paged)
    else()
        set(storages contiguous)
    endif()
    set(${result} ${storages} PARENT_SCOPE)
endfunction()
