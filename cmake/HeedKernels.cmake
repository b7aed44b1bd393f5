# Makes kernels ahead of time. Used by Heed itself and, after find_package(heed), by any project:
#
#   heed_add_kernel_library(my_kernels)
#   heed_add_kernels(my_kernels PHASE prefill DTYPE f32 HEAD_DIM 80 128x64 ISA avx2 avx512)
#   target_link_libraries(my_program PRIVATE heed::runtime my_kernels)
#
# One object per row, all in one static library, with a table that the runtime enumerates. A program links exactly one kernel library.
#
# HEED_ROW_FILTER, a regular expression, keeps only the rows whose names match: for work on a few rows.
include_guard(GLOBAL)
# CUDA rows (ISA sm75, sm80) are assembled ahead of time by ptxas and fatbinary of the CUDA toolkit (or of the Python package
# nvidia-cuda-nvcc). HEED_CUDA is ON where both are found; nothing else of the toolkit is needed, to build or to run.
find_program(HEED_PTXAS ptxas HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
find_program(HEED_FATBINARY fatbinary HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
set(HEED_CUDA_CAPABILITIES "75 80 90 100 120" CACHE STRING
    "Compute capabilities with machine code of their own; PTX serves later ones")
if(HEED_PTXAS AND HEED_FATBINARY)
    option(HEED_CUDA "CUDA rows can be made" ON)
else()
    option(HEED_CUDA "CUDA rows can be made" OFF)
endif()
if(HEED_CUDA)
    message(STATUS "CUDA rows: on (${HEED_PTXAS})")
else()
    message(STATUS "CUDA rows: off; they need the programs ptxas and fatbinary (HEED_PTXAS, HEED_FATBINARY)")
endif()

set(HEED_EXTRA_FEATURES "" CACHE STRING "Halide target features of every row of the CPU: asan, tsan, check_unsafe_promises")
set(HEED_ROW_FILTER "" CACHE STRING "Build only the kernel rows whose names match this regular expression")

# heed_add_kernel_library(<target>): an empty table.
function(heed_add_kernel_library target)
    set(dir ${CMAKE_CURRENT_BINARY_DIR}/${target}.dir)
    file(MAKE_DIRECTORY ${dir})
    set(rows $<TARGET_PROPERTY:${target},HEED_ROWS>)
    file(GENERATE OUTPUT ${dir}/kernel_table.inc
         CONTENT "$<$<BOOL:${rows}>:#include \"$<JOIN:${rows},.inc\"\n#include \">.inc\">\n")
    add_library(${target} STATIC ${HEED_KERNEL_TABLE_SOURCE})
    set_target_properties(${target} PROPERTIES HEED_DIR ${dir} HEED_ROWS "")
    target_include_directories(${target} PRIVATE ${dir})
    target_link_libraries(${target} PRIVATE heed::kernel_interface)
    add_custom_target(${target}_rows)
    add_dependencies(${target} ${target}_rows)
endfunction()

# Of the arguments that the calling function has parsed: none unknown, each required one there.
macro(_heed_check_arguments call)
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "${call}: unknown arguments ${arg_UNPARSED_ARGUMENTS}")
    endif()
    foreach(required ${ARGN})
        if(NOT arg_${required})
            message(FATAL_ERROR "${call}: ${required} is missing")
        endif()
    endforeach()
endmacro()

# heed_add_kernels(<target> PHASE p... HEAD_DIM d|dxdv|any ... ISA i... [DTYPE f32|f16|bf16 ...] [KV_DTYPE i8]
#                  [FEATURES f...] [STORAGE contiguous|paged ...] [SCHEDULE x86|default|cuda] [EXTRA_FEATURES halide-target-features])
# Adds one row for each combination of the listed values. DTYPE: f32 (default). KV_DTYPE: as DTYPE, or i8. FEATURES: none (default),
# or of alibi, bias, dropout, gqa, mask, softcap, joined by _ in this order; every row computes causal, window, positions, lengths,
# sinks, GQA and lse. STORAGE: contiguous (default) serves contiguous and varlen keys, paged serves all.
function(heed_add_kernels target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "KV_DTYPE;SCHEDULE;EXTRA_FEATURES"
                          "PHASE;DTYPE;HEAD_DIM;FEATURES;STORAGE;ISA")
    _heed_check_arguments("heed_add_kernels(${target})" PHASE HEAD_DIM ISA)
    foreach(optional FEATURES=none DTYPE=f32 STORAGE=contiguous)
        string(REPLACE "=" ";" optional ${optional})
        list(GET optional 0 key)
        if(NOT arg_${key})
            list(GET optional 1 arg_${key})
        endif()
    endforeach()
    foreach(isa IN LISTS arg_ISA)
        if(isa MATCHES "^sm")
            _heed_add_once(${target} put_words i32)
            _heed_add_once(${target} sequences i32)
        endif()
        foreach(phase IN LISTS arg_PHASE)
            foreach(dtype IN LISTS arg_DTYPE)
                if(isa MATCHES "^sm" AND phase STREQUAL "decode")
                    _heed_add_once(${target} merge_splits ${dtype})
                endif()
                foreach(head_dim IN LISTS arg_HEAD_DIM)
                    foreach(features IN LISTS arg_FEATURES)
                        foreach(storage IN LISTS arg_STORAGE)
                            _heed_add_row(${target} ${phase} ${dtype} "${arg_KV_DTYPE}" ${head_dim} ${features} ${storage}
                                          ${isa} "${arg_SCHEDULE}" "${arg_EXTRA_FEATURES}")
                        endforeach()
                    endforeach()
                endforeach()
            endforeach()
        endforeach()
    endforeach()
endfunction()

# What a library with CUDA rows needs once: metadata goes to the device, or is read there; splits of decode rows are merged.
function(_heed_add_once target op dtype)
    get_target_property(rows ${target} HEED_ROWS)
    if(NOT "${op}_${dtype}_sm75" IN_LIST rows)
        heed_add_op_kernels(${target} OP ${op} DTYPE ${dtype} ISA sm75)
    endif()
endfunction()

function(_heed_add_row target phase dtype kv_dtype head_dim features storage isa schedule extra_features)
    set(name attention_${phase}_${dtype})
    set(options "")
    if(kv_dtype)
        string(APPEND name _kv${kv_dtype})
        list(APPEND options kv_dtype=${kv_dtype})
    endif()
    string(APPEND name _d${head_dim})
    if(NOT features STREQUAL "none")
        string(APPEND name _${features})
    endif()
    string(APPEND name _${storage}_${isa})
    string(REPLACE "x" ";" dims "${head_dim}")
    list(GET dims 0 head_dim_k)
    list(GET dims -1 head_dim_v)
    if(schedule)
        string(APPEND name _${schedule})
        list(APPEND options schedule=${schedule})
    endif()
    if(extra_features)
        list(APPEND options extra_features=${extra_features})
    endif()

    _heed_add_generated_row(${target} ${name} phase=${phase} dtype=${dtype} head_dim=${head_dim_k} head_dim_v=${head_dim_v}
        features=${features} storage=${storage} isa=${isa} ${options})
endfunction()

# heed_add_op_kernels(<target> OP attention_probs|dropout_mask|kv_append|kv_copy|layer_norm|linear|linear_rows|merge_states|rope ...
#                     DTYPE f32|f16|bf16|u8 ... ISA i... [KV_DTYPE i8] [ROWS n...] [EXTRA_FEATURES halide-target-features])
# Adds one row {op}_{dtype}[_kv{dtype}][_r{rows}]_{isa} for each combination: the operations around attention. ROWS, of
# linear and linear_rows: rows of the register tile, 1..12; of amx 16 or 32.
function(heed_add_op_kernels target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "KV_DTYPE;EXTRA_FEATURES" "OP;DTYPE;ISA;ROWS")
    _heed_check_arguments("heed_add_op_kernels(${target})" OP DTYPE ISA)
    if(NOT arg_ROWS)
        set(arg_ROWS 0)
    endif()
    foreach(isa IN LISTS arg_ISA)
        foreach(op IN LISTS arg_OP)
            foreach(dtype IN LISTS arg_DTYPE)
                set(name ${op}_${dtype})
                set(options op=${op} dtype=${dtype})
                if(arg_KV_DTYPE)
                    string(APPEND name _kv${arg_KV_DTYPE})
                    list(APPEND options kv_dtype=${arg_KV_DTYPE})
                endif()
                if(arg_EXTRA_FEATURES)
                    list(APPEND options extra_features=${arg_EXTRA_FEATURES})
                endif()
                foreach(rows IN LISTS arg_ROWS)
                    set(tile "")
                    if(rows)
                        set(tile _r${rows})
                    endif()
                    _heed_add_generated_row(${target} ${name}${tile}_${isa} ${options} rows=${rows} isa=${isa})
                endforeach()
            endforeach()
        endforeach()
    endforeach()
endfunction()

# One object and registry line, from the arguments of heed::generate.
function(_heed_add_generated_row target name)
    if(HEED_ROW_FILTER AND NOT name MATCHES "${HEED_ROW_FILTER}")
        return()
    endif()
    get_target_property(dir ${target} HEED_DIR)
    get_target_property(rows ${target} HEED_ROWS)
    if(name IN_LIST rows)
        message(FATAL_ERROR "${target}: the row ${name} exists already")
    endif()
    set(features "")
    set(device_options "")
    set(device_files "")
    if(HEED_EXTRA_FEATURES AND NOT ARGN MATCHES "extra_features=")
        set(features extra_features=${HEED_EXTRA_FEATURES})
    endif()
    if(name MATCHES "_sm[0-9]+$")
        if(NOT HEED_CUDA)
            message(FATAL_ERROR "${target}: the row ${name} needs HEED_CUDA")
        endif()
        set(device_options ptxas=${HEED_PTXAS} fatbinary=${HEED_FATBINARY} "capabilities=${HEED_CUDA_CAPABILITIES}")
        set(device_files ${dir}/${name}.ptx ${dir}/${name}.fatbin ${dir}/${name}.limits)
    endif()
    add_custom_command(
        OUTPUT ${dir}/${name}.o ${dir}/${name}.inc
        BYPRODUCTS ${dir}/${name}.h ${dir}/${name}.s ${dir}/${name}.stmt ${device_files}
        COMMAND heed::generate name=${name} ${ARGN} ${features} ${device_options} out=${dir}
        DEPENDS heed::generate
        COMMENT "Generating ${name}"
        VERBATIM)
    set_source_files_properties(${dir}/${name}.o PROPERTIES GENERATED TRUE EXTERNAL_OBJECT TRUE)
    target_sources(${target} PRIVATE ${dir}/${name}.o ${dir}/${name}.inc)
    set_property(TARGET ${target} APPEND PROPERTY HEED_ROWS ${name})
endfunction()
