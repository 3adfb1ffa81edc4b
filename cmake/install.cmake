# Install rules: the library (component runtime), what a build against it needs (development), and
# only the library inside the Python package (python), with the sources of the plug-in for ggml.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(SKBUILD)
    install(FILES $<TARGET_FILE:flashattn> RENAME libflashattn.so
            DESTINATION flashattn COMPONENT python)
    # What flashattn.ggml compiles on the user's machine, for the ggml that is there.
    file(GLOB _plugin bindings/ggml/*.cc bindings/ggml/*.h)
    install(FILES ${_plugin} include/flashattn.h
            DESTINATION flashattn/ggml/plugin COMPONENT python)
    return()
endif()

set(_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashattn)

install(TARGETS flashattn EXPORT flashattn
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
        NAMELINK_COMPONENT development
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET flashattn_static)
    install(TARGETS flashattn_static EXPORT flashattn
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
            INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
install(FILES include/flashattn.h include/flashattn.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

install(EXPORT flashattn NAMESPACE flashattn:: FILE flashattnTargets.cmake
        DESTINATION ${_config_dir} COMPONENT development)
set(FLASH_NEEDS_CUDART OFF) # of the static library: the shared one holds its own
if(TARGET flashattn_static AND FLASH_CUDA_FAMILIES)
    set(FLASH_NEEDS_CUDART ON)
endif()
configure_package_config_file(cmake/flashattnConfig.cmake.in flashattnConfig.cmake
    INSTALL_DESTINATION ${_config_dir} NO_SET_AND_CHECK_MACRO)
set(_compatible SameMajorVersion)
if(FLASH_ABI_VERSION EQUAL 0)
    set(_compatible SameMinorVersion)
endif()
write_basic_package_version_file(flashattnConfigVersion.cmake COMPATIBILITY ${_compatible})
install(FILES ${PROJECT_BINARY_DIR}/flashattnConfig.cmake
              ${PROJECT_BINARY_DIR}/flashattnConfigVersion.cmake
        DESTINATION ${_config_dir} COMPONENT development)

# Paths in the .pc file are relative to the file, so that the installed tree can be moved.
file(RELATIVE_PATH FLASH_PC_LIBDIR
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH FLASH_PC_INCLUDEDIR
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/flashattn.pc.in flashattn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/flashattn.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
