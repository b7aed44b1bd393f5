# The functions that add kernels to a kernel library: by what a program needs, or by their own axes. The generator says which kernels a
# call is, and refuses words that there are not (generators/table); HeedKernels.cmake makes each of them. A kernel that the library has
# already is not added again.
include_guard(GLOBAL)

# heed_add_kernels(<target> PHASES prefill|decode ... DTYPES f32|f16|bf16 ... HEAD_DIMS d|dxdv|any ...
#                  ISAS x86_64|avx2|avx512|avx512bf16|amx|sm75|sm80|sm90 ... [FEATURES f...] [OPS o...]
#                  [SCORE_MOD file.cpp] [TUNED table.json])
#
# The kernels of a program, in the kernel library <target>, which it makes when there is none. HEAD_DIMS: 128, 128x64 (head_dim x
# head_dim_v), any (1..640; CUDA: 1..256). FEATURES:
#   causal gqa lse sinks varlen window    in every kernel: naming them adds nothing
#   paged                                 keys that page tables find
#   int8                                  int8 keys and values, in addition to those of the dtype
#   one of HEED_FEATURES but gqa           for each plain kernel a second one, which has all the named ones
# SCORE_MOD: all kernels of the call have the score function that the file defines (heed/user_score.h), and serve the problems that name it;
# with OPS attention_backward also gradients through it.
# TUNED: speed parameters by kernel, as ./dev tune writes them (schedules/tuned), instead of those that the schedules choose; each of its kernels
# must be one of <target>.
# OPS: operations around attention, by op_choices of generators/contract/operations.h; layers: all that <heed/layer.h> needs except for
# gradients; layer_gradients: what heed_layer_backward needs in addition.
# An ISA serves what it has instructions for: f32 with amx becomes AVX-512 kernels, with sm80 sm75 kernels. The tiles of amx serve bf16 prefill
# of head dims that are no multiples of 16 by the kernel of any, and, of multiples of 16 and any, decode of groups of heads and of few queries.
function(heed_add_kernels target)
    _heed_add_listed(heed_add_kernels ${ARGV})
endfunction()

# heed_add_attention_kernels(<target> PHASE p... HEAD_DIM d|dxdv|any ... ISA i... [DTYPE f32|f16|bf16 ...] [KV_DTYPE i8|f32]
#                  [FEATURES f...] [STORAGE contiguous|paged ...] [SCHEDULE x86|default|cuda|wide|whole] [EXTRA_FEATURES halide-target-features]
#                  [SCORE_MOD file.cpp])
# One kernel for each combination of the listed values. DTYPE: f32 (default). KV_DTYPE: as DTYPE, i8, or f32: prefill of f16 and bf16 from
# copies of heads whose numbers were widened once (ISA avx2, avx512). FEATURES: none (default), or of
# HEED_FEATURES (generators/contract/fields.h), joined by _ in alphabetical order; every kernel computes causal, window, positions, lengths,
# sinks, GQA and lse. STORAGE: contiguous (default) serves contiguous and varlen keys, paged serves all. SCORE_MOD: a file that defines
# heed::score_mod() (heed/user_score.h); the kernels have the file's name, without folder and extension, in theirs.
function(heed_add_attention_kernels target)
    _heed_add_listed(heed_add_attention_kernels ${ARGV})
endfunction()

# heed_add_op_kernels(<target> OP o... DTYPE f32|f16|bf16|u8|i32 ... ISA i... [KV_DTYPE i8] [ROWS n...] [HEAD_DIM d...]
#                     [EXTRA_FEATURES halide-target-features] [SCORE_MOD file.cpp])
# One kernel {op}_{dtype}[_kv{dtype}][_score_{mod}][_r{rows}][_d{head_dim}]_{isa} for each combination: the operations around attention, as
# HEED_OPERATIONS of generators/contract/operations.h has them. ROWS, of linear and linear_rows on CPUs: rows of the register tile.
# HEAD_DIM, of attention_backward_keys and _queries, plain or not: the largest served. SCORE_MOD, of attention_backward
# and, on CUDA, of its _bias, _keys and _queries: gradients through that score function.
function(heed_add_op_kernels target)
    _heed_add_listed(heed_add_op_kernels ${ARGV})
endfunction()

# heed_add_all_operations(<target>): every kernel of every operation.
function(heed_add_all_operations target)
    _heed_add_listed(heed_add_all_operations ${ARGV})
endfunction()

function(_heed_add_listed function target)
    _heed_list(kernels ${function} ${target} ${ARGN})
    cmake_parse_arguments(PARSE_ARGV 2 arg "" "SCORE_MOD;TUNED" "")
    foreach(key SCORE_MOD TUNED)
        if(arg_${key})
            _heed_check_file("${function}(${target}): ${key} ${arg_${key}}" ${arg_${key}})
        endif()
    endforeach()
    if(NOT TARGET ${target})
        heed_add_kernel_library(${target})
    endif()
    if(arg_TUNED)
        _heed_use_tuned(${target} ${arg_TUNED})
    endif()
    foreach(kernel IN LISTS kernels)
        _heed_add_kernel(${target} "${kernel}" "${arg_SCORE_MOD}")
    endforeach()
endfunction()

# The file is there, or the project makes it while it builds.
function(_heed_check_file what file)
    get_filename_component(file "${file}" ABSOLUTE)
    get_source_file_property(generated "${file}" GENERATED)
    if(NOT generated AND (NOT EXISTS "${file}" OR IS_DIRECTORY "${file}"))
        message(FATAL_ERROR "${what} is not allowed; there is no file ${file}")
    endif()
endfunction()
