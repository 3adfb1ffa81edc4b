# Packages: `cpack` in the build tree makes a .tar.gz and, where it can (package_generators.cmake), the
# Debian packages libflashattn<ABI> (the library) and libflashattn-dev (header, link name, CMake and
# pkg-config files). tests/consumers/debian_packages.sh tries these in a Debian that has nothing else.
if(SKBUILD)
    return()
endif()

set(CPACK_PACKAGE_NAME flashattn)
set(CPACK_PACKAGE_VENDOR "the flashattn authors")
# Debian's policy demands an address for mail here and in the changelog. The project has none yet.
set(CPACK_PACKAGE_CONTACT "the flashattn authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Packages of programs that use the library depend on this version, or on a newer one of the same
# ABI; 0 is nobody's. CPack knows this for all components only.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
if(FLASH_ABI_VERSION EQUAL 0)
    set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY "=")
endif()
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libflashattn${FLASH_ABI_VERSION})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION
    "It computes exact attention on CPUs and NVIDIA GPUs. Programs that were
built with libflashattn-dev need this package to run.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libflashattn-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION
    "The C and C++ headers, the static library, and files for CMake and pkg-config.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libflashattn${FLASH_ABI_VERSION} (= ${PROJECT_VERSION})")

# CPack writes scripts that call ldconfig, and cannot leave them out. Packages of Debian have this
# trigger instead, by which dpkg calls ldconfig once for many packages.
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers)

# Debian's policy demands a copyright and a changelog of each package. An installation of everything
# is no Debian package, and leaves them out. Where dpkg is, so is gzip.
find_program(FLASH_GZIP gzip)
mark_as_advanced(FLASH_GZIP)
if(FLASH_GZIP)
    set(_form "%a, %d %b %Y %H:%M:%S +0000")
    file(TIMESTAMP ${PROJECT_SOURCE_DIR}/CHANGELOG.md FLASH_CHANGE_DATE "${_form}" UTC)
    if(DEFINED ENV{SOURCE_DATE_EPOCH})
        string(TIMESTAMP FLASH_CHANGE_DATE "${_form}" UTC)
    endif()
    configure_file(${CMAKE_CURRENT_LIST_DIR}/debian_changelog.in debian/changelog @ONLY)
    execute_process(COMMAND ${FLASH_GZIP} --best --no-name --keep --force debian/changelog
                    WORKING_DIRECTORY ${PROJECT_BINARY_DIR} COMMAND_ERROR_IS_FATAL ANY)
    foreach(_component runtime development)
        string(TOUPPER ${_component} _COMPONENT)
        set(_doc ${CMAKE_INSTALL_DATAROOTDIR}/doc/${CPACK_DEBIAN_${_COMPONENT}_PACKAGE_NAME})
        install(FILES LICENSE RENAME copyright DESTINATION ${_doc}
                COMPONENT ${_component} EXCLUDE_FROM_ALL)
        install(FILES ${PROJECT_BINARY_DIR}/debian/changelog.gz DESTINATION ${_doc}
                COMPONENT ${_component} EXCLUDE_FROM_ALL)
    endforeach()
endif()

set(CPACK_GENERATOR TGZ) # until cpack runs
include(CPack)
file(APPEND ${PROJECT_BINARY_DIR}/CPackConfig.cmake
     "\ninclude(\"${CMAKE_CURRENT_LIST_DIR}/package_generators.cmake\")\n")
