# What a project that calls find_package(heed) gets.
include(CMakePackageConfigHelpers)

set(heed_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/heed)
set_target_properties(heed_generate PROPERTIES EXPORT_NAME generate)
set_target_properties(heed_generator PROPERTIES EXPORT_NAME generator)
set_target_properties(heed_kernel_interface PROPERTIES EXPORT_NAME kernel_interface)
set_target_properties(heed_halide_runtime PROPERTIES EXPORT_NAME halide_runtime)
install(TARGETS heed_generate heed_generator heed_algorithm heed_schedules heed_warnings heed_kernel_interface heed_halide_runtime EXPORT heed-targets)
if(HEED_BUILD_TABLE)
    set_target_properties(heed_kernels PROPERTIES EXPORT_NAME kernels)
    install(TARGETS heed heed_kernels EXPORT heed-targets)
endif()
install(FILES generators/include/heed/user_score.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/heed)
install(EXPORT heed-targets NAMESPACE heed:: DESTINATION ${heed_package_dir})

configure_package_config_file(cmake/heed-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/heed-config.cmake
                              INSTALL_DESTINATION ${heed_package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/heed-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/heed-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/heed-config-version.cmake
              cmake/HeedKernels.cmake cmake/HeedList.cmake cmake/HeedCuda.cmake cmake/HeedAddKernels.cmake cmake/HeedTuned.cmake
              cmake/HeedGenerate.cmake runtime/kernel_table.cpp
        DESTINATION ${heed_package_dir})
install(DIRECTORY schedules/tuned DESTINATION ${heed_package_dir})

if(NOT HEED_BUILD_TABLE)
    return()
endif()
# For builds without CMake: the shared library. It finds its folders from its own, so that an install tree may be moved.
file(RELATIVE_PATH HEED_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/heed.pc.in ${CMAKE_CURRENT_BINARY_DIR}/heed.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/heed.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
