# The kernels of operations around attention: which there are, and which of them serve an instruction set. The default table has all.
include_guard(GLOBAL)

# One line for each kind of kernel: heed_add_op_rows()'s OP, DTYPE, ISA, KV_DTYPE, ROWS, HEAD_DIM. An ISA is served by the best line of
# the operation and the dtype up to it. WITH <isa>: and by the line of that ISA too. FOR: dtypes of tensors that the kernel serves where
# it is not its own.
#
# They are bound by memory: except for products, AVX-512 kernels would add code and no speed. kv_append is for int8 caches, where it
# quantises: into a cache of its own type tokens go by rope and memcpy. The rotary dimension, the kind of pairs, the number of states,
# strides and dropout_p are run-time values. Gradients of CPUs are tiles of floats, whatever the type of the tensors, or of bf16. linear:
# a full register tile, and smaller ones for few rows, sums in f32. CUDA: for sm75 and all later chips; kv_copy moves bytes, rope serves
# appends to a cache of its own type too; linear of sm80 has tensor cores, its sm75 kernels take what is not aligned.
set(_heed_op_kernels
    "OP rope merge_states layer_norm attention_probs DTYPE f32 f16 bf16 ISA x86_64 avx2"
    "OP attention_probs DTYPE f32 f16 bf16 KV_DTYPE i8 ISA x86_64 avx2"
    "OP kv_append DTYPE f32 f16 bf16 KV_DTYPE i8 ISA x86_64 avx2"
    "OP dropout_mask DTYPE u8 ISA x86_64 avx2"
    "OP attention_backward DTYPE f32 FOR f32 f16 bf16 ISA x86_64 avx2 avx512"
    "OP attention_backward DTYPE bf16 ISA avx512bf16 amx WITH avx512"
    "OP linear linear_rows DTYPE f32 f16 bf16 ROWS 2 4 6 ISA x86_64 avx2"
    "OP linear linear_rows DTYPE f32 f16 bf16 ROWS 4 8 12 ISA avx512"
    "OP linear linear_rows DTYPE bf16 ROWS 4 8 12 ISA avx512bf16"
    "OP linear linear_rows DTYPE bf16 ROWS 16 32 ISA amx WITH avx512bf16"
    "OP rope merge_states layer_norm attention_probs linear DTYPE f32 f16 bf16 ISA sm75"
    "OP linear DTYPE f16 bf16 ISA sm80 WITH sm75"
    "OP attention_probs kv_append DTYPE f32 f16 bf16 KV_DTYPE i8 ISA sm75"
    "OP kv_copy key_padding DTYPE u8 ISA sm75"
    "OP put_words sequences DTYPE i32 ISA sm75"
    "OP merge_splits DTYPE f32 f16 bf16 ISA sm75"
    "OP attention_backward attention_backward_bias attention_backward_sinks attention_backward_stats DTYPE f32 f16 bf16 ISA sm75"
    "OP attention_backward_keys attention_backward_queries DTYPE f16 bf16 HEAD_DIM 64 128 256 ISA sm80"
    "OP clip add clip_gradient column_sums copy_rows layer_norm_gradient transpose DTYPE f32 f16 bf16 ISA sm75")

# What an operation of heed_add_kernels() brings along; `layers` and `layer_gradients` are nothing but that.
set(_heed_brings_kv_append rope)
set(_heed_brings_linear linear_rows)
set(_heed_brings_attention_backward attention_backward_bias attention_backward_sinks attention_backward_stats attention_backward_keys
    attention_backward_queries)
set(_heed_brings_layers attention_probs dropout_mask kv_append kv_copy layer_norm linear merge_states rope clip key_padding)
set(_heed_brings_layer_gradients attention_backward add clip_gradient column_sums copy_rows layer_norm_gradient transpose)

set(_heed_ops "")
foreach(_heed_line IN LISTS _heed_op_kernels)
    separate_arguments(_heed_words UNIX_COMMAND "${_heed_line}")
    cmake_parse_arguments(_heed_kind "" "" "OP;DTYPE;ISA;KV_DTYPE;ROWS;HEAD_DIM;WITH;FOR" ${_heed_words})
    list(APPEND _heed_ops ${_heed_kind_OP})
endforeach()
list(REMOVE_DUPLICATES _heed_ops)
list(SORT _heed_ops)

# All of them.
function(heed_add_all_operations target)
    foreach(line IN LISTS _heed_op_kernels)
        _heed_parse_op_kernels("${line}")
        foreach(op IN LISTS kind_OP)
            foreach(dtype IN LISTS kind_DTYPE)
                foreach(isa IN LISTS kind_ISA)
                    _heed_once(${target} heed_add_op_rows OP ${op} DTYPE ${dtype} ISA ${isa} ${axes})
                endforeach()
            endforeach()
        endforeach()
    endforeach()
endfunction()

# _heed_add_operation(<target> <op> <isa> <dtype> <int8>): the kernels of an operation, and of what it brings along, that serve an ISA.
function(_heed_add_operation target op isa dtype int8)
    set(ladder ${_heed_cpu_isas})
    if(isa IN_LIST _heed_cuda_isas)
        set(ladder ${_heed_cuda_isas})
    endif()
    foreach(kv_dtype "" i8)
        if(kv_dtype AND op STREQUAL "attention_probs" AND NOT int8)
            continue()
        endif()
        set(served ${isa})
        while(served)
            _heed_best_op_kernels(best best_isa ${op} ${served} ${dtype} "${kv_dtype}" "${ladder}")
            set(served "")
            if(best)
                _heed_parse_op_kernels("${best}")
                if(kind_FOR OR NOT dtype IN_LIST kind_DTYPE)
                    set(own ${kind_DTYPE})
                else()
                    set(own ${dtype})
                endif()
                _heed_once(${target} heed_add_op_rows OP ${op} DTYPE ${own} ISA ${best_isa} ${axes})
                set(served ${kind_WITH})
            endif()
        endwhile()
    endforeach()
    foreach(other IN LISTS _heed_brings_${op})
        _heed_add_operation(${target} ${other} ${isa} ${dtype} "${int8}")
    endforeach()
endfunction()

# The line of the operation, if there is one, and the best of its ISAs up to one.
function(_heed_best_op_kernels line_result isa_result op isa dtype kv_dtype ladder)
    set(${line_result} "" PARENT_SCOPE)
    list(FIND ladder ${isa} highest)
    set(found -1)
    foreach(line IN LISTS _heed_op_kernels)
        _heed_parse_op_kernels("${line}")
        if(NOT op IN_LIST kind_OP OR NOT "${kind_KV_DTYPE}" STREQUAL "${kv_dtype}")
            continue()
        endif()
        if(NOT dtype IN_LIST kind_DTYPE AND NOT dtype IN_LIST kind_FOR AND NOT kind_DTYPE MATCHES "^(u8|i32)$")
            continue()
        endif()
        foreach(own IN LISTS kind_ISA)
            list(FIND ladder ${own} place)
            if(place GREATER found AND NOT place GREATER highest)
                set(found ${place})
                set(${line_result} "${line}" PARENT_SCOPE)
                set(${isa_result} ${own} PARENT_SCOPE)
            endif()
        endforeach()
    endforeach()
endfunction()

# A line as kind_OP, kind_DTYPE, ..; `axes`: those of its own beside OP, DTYPE and ISA.
macro(_heed_parse_op_kernels line)
    separate_arguments(words UNIX_COMMAND "${line}")
    cmake_parse_arguments(kind "" "" "OP;DTYPE;ISA;KV_DTYPE;ROWS;HEAD_DIM;WITH;FOR" ${words})
    set(axes "")
    foreach(axis KV_DTYPE ROWS HEAD_DIM)
        if(kind_${axis})
            list(APPEND axes ${axis} ${kind_${axis}})
        endif()
    endforeach()
endmacro()
