# heed_add_kernels(): the kernels of a program, by what the program needs. Which rows of which kind serve that on each ISA is
# said here and nowhere else; heed_add_rows() and heed_add_op_rows() (HeedRows.cmake) add rows by their own axes.
include_guard(GLOBAL)

# heed_add_kernels(<target> PHASES prefill|decode ... DTYPES f32|f16|bf16 ... HEAD_DIMS d|dxdv|any ...
#                  ISAS x86_64|avx2|avx512|avx512bf16|amx|sm75|sm80 ... [FEATURES f...] [OPS o...]
#                  [SCORE_MOD file.cpp] [TUNED table.json])
#
# Adds the rows to the kernel library <target>, which it makes when there is none. HEAD_DIMS: 128, 128x64 (head_dim x head_dim_v),
# any (1..640; CUDA: 1..256). FEATURES:
#   causal gqa lse sinks varlen window    in every row: naming them adds nothing
#   paged                                 keys that page tables find
#   int8                                  int8 keys and values, in addition to those of the dtype
#   alibi bias dropout mask softcap       for each plain row a second one, which has all the named ones
# SCORE_MOD: all rows of the call have the score function that the file defines (heed/user_score.h), and serve the problems that name it.
# TUNED: speed parameters by row, as ./dev tune writes them (schedules/tuned), instead of those that the schedules choose; each of its rows
# must be one of <target>.
# OPS: attention_backward attention_probs dropout_mask kv_append kv_copy layer_norm linear merge_states rope; layers: all that
# <heed/layer.h> needs except for gradients; layer_gradients: what heed_layer_backward needs in addition.
# An ISA serves what it has instructions for: f32 with amx becomes AVX-512 rows, with sm80 sm75 rows.
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
    _heed_check_values("${call}" OPS attention_backward attention_probs dropout_mask kv_append kv_copy layer_norm linear merge_states
                       rope layers layer_gradients)
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
                _heed_add_operation(${target} ${op} ${isa} ${dtype} "${int8}")
            endforeach()
        endforeach()
    endforeach()
endfunction()

# The rows of one shape: without anything at the logits, and with all of `logits`.
function(_heed_add_variants target isa phase dtype kv_dtype head_dim logits features score_mod)
    set(options "")
    if(kv_dtype)
        list(APPEND options KV_DTYPE ${kv_dtype})
    endif()
    if(score_mod)
        list(APPEND options SCORE_MOD ${score_mod})
    endif()
    foreach(of_logits "" "${logits}")
        _heed_row_isa(row_isa ${isa} ${phase} ${dtype} "${kv_dtype}" ${head_dim} "${of_logits}")
        foreach(gqa IN ITEMS no yes)
            if(phase STREQUAL "prefill" AND gqa)
                continue()
            endif()
            # Rows with something at the logits, and those of CUDA, work on the heads of a group at once, or on one.
            if(phase STREQUAL "decode" AND NOT gqa AND (of_logits OR row_isa MATCHES "^sm"))
                continue()
            endif()
            set(row_features ${of_logits})
            if(gqa)
                list(APPEND row_features gqa)
            endif()
            list(SORT row_features)
            list(JOIN row_features "_" row_features)
            if(NOT row_features)
                set(row_features none)
            endif()
            _heed_row_storages(storages ${row_isa} ${phase} ${dtype} "${kv_dtype}" "${features}")
            foreach(storage IN LISTS storages)
                # Several ISAs may be served by one row.
                _heed_once(${target} heed_add_rows PHASE ${phase} DTYPE ${dtype} ${options} HEAD_DIM ${head_dim}
                           FEATURES ${row_features} STORAGE ${storage} ISA ${row_isa})
                if(phase STREQUAL "decode" AND row_isa STREQUAL "sm80" AND head_dim MATCHES "^(64|80|96|128)$" AND NOT of_logits AND NOT score_mod)
                    _heed_once(${target} heed_add_rows PHASE decode DTYPE ${dtype} ${options} HEAD_DIM ${head_dim}
                               FEATURES gqa STORAGE ${storage} ISA sm80 SCHEDULE wide)
                endif()
            endforeach()
        endforeach()
    endforeach()
endfunction()

# Dot products of bf16 exist in rows of bf16 keys, without dropout, for head dims of whole chunks; those of tiles in prefill only.
function(_heed_row_isa result isa phase dtype kv_dtype head_dim of_logits)
    set(row_isa ${isa})
    if(isa MATCHES "^(amx|avx512bf16)$")
        string(REPLACE "x" ";" dims "${head_dim}")
        set(whole TRUE)
        foreach(dim IN LISTS dims)
            if(dim STREQUAL "any")
                set(whole FALSE)
            else()
                math(EXPR rest "${dim} % 16")
                if(rest)
                    set(whole FALSE)
                endif()
            endif()
        endforeach()
        if(NOT dtype STREQUAL "bf16" OR kv_dtype OR NOT whole OR "dropout" IN_LIST of_logits)
            set(row_isa avx512)
        elseif(phase STREQUAL "decode")
            set(row_isa avx512bf16)
        endif()
    elseif(isa STREQUAL "sm80" AND dtype STREQUAL "f32")
        set(row_isa sm75)
    endif()
    set(${result} ${row_isa} PARENT_SCOPE)
endfunction()

# Rows of the CPU that convert each block of keys anyway, and all of int8 keys, serve every storage by their paged form.
function(_heed_row_storages result isa phase dtype kv_dtype features)
    if(kv_dtype OR (phase STREQUAL "prefill" AND NOT dtype STREQUAL "f32" AND NOT isa MATCHES "^sm"))
        set(storages paged)
    elseif("paged" IN_LIST features)
        set(storages contiguous paged)
    else()
        set(storages contiguous)
    endif()
    set(${result} ${storages} PARENT_SCOPE)
endfunction()
