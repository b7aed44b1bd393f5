# What there is to add, which the generator knows and CMake asks: heed_generate list=.. (generators/table/list.h).
include_guard(GLOBAL)

# While Heed's own build configures, no generator is there: what it lists with, which needs no Halide, is a program of its own.
function(_heed_make_list_program root program)
    file(GLOB sources CONFIGURE_DEPENDS ${root}/generators/table/*.cpp)
    file(GLOB files ${root}/generators/table/* ${root}/generators/contract/* ${root}/generators/common/bad_input.h)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
    set(hashes "")
    foreach(file IN LISTS files)
        file(SHA256 ${file} hash)
        string(APPEND hashes ${hash})
    endforeach()
    string(SHA256 hash "${hashes}")
    if(EXISTS ${program} AND HEED_LIST_HASH STREQUAL hash)
        return()
    endif()
    try_compile(made SOURCES ${sources} CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${root} -DCMAKE_UNITY_BUILD=ON
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON NO_CACHE OUTPUT_VARIABLE log COPY_FILE ${program})
    if(NOT made)
        message(FATAL_ERROR "the list of kernels could not be made: ${log}")
    endif()
    set(HEED_LIST_HASH ${hash} CACHE INTERNAL "")
endfunction()

if(TARGET heed::generate) # of an installation
    get_target_property(_heed_list_program heed::generate LOCATION)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_heed_list_program})
else()
    set(_heed_list_program ${CMAKE_CURRENT_BINARY_DIR}/heed_list)
    _heed_make_list_program(${CMAKE_CURRENT_LIST_DIR}/.. ${_heed_list_program})
endif()
set_property(GLOBAL PROPERTY HEED_LIST_PROGRAM ${_heed_list_program})

# _heed_list(<result> <what> <words>...): the lines. A call that is refused stops CMake with the reason.
function(_heed_list result what)
    get_property(program GLOBAL PROPERTY HEED_LIST_PROGRAM)
    execute_process(COMMAND ${program} list=${what} ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE lines ERROR_VARIABLE why
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
    if(failed)
        message(FATAL_ERROR "${why}")
    endif()
    string(REPLACE "\n" ";" lines "${lines}")
    set(${result} "${lines}" PARENT_SCOPE)
endfunction()
