# Checks the names of the packages, and the files in them.
file(REMOVE_RECURSE ${WORK_DIR}/packages)
execute_process(COMMAND ${CMAKE_CPACK_COMMAND} -B ${WORK_DIR}/packages
                WORKING_DIRECTORY ${BUILD_DIR} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

# Fails unless one archive of this name holds all of the files (regular expressions).
function(check_archive pattern list_command)
    file(GLOB archives ${WORK_DIR}/packages/${pattern})
    list(LENGTH archives n)
    if(NOT n EQUAL 1)
        message(FATAL_ERROR "${n} packages are called ${pattern}")
    endif()
    execute_process(COMMAND ${list_command} ${archives}
                    OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)
    foreach(file IN LISTS ARGN)
        if(NOT listing MATCHES "${file}")
            message(FATAL_ERROR "${archives} has no ${file}:\n${listing}")
        endif()
    endforeach()
endfunction()

set(library "libflashattn\\.so\\.${ABI_VERSION}")
set(development "include/flashattn\\.h" "include/flashattn\\.hpp" "libflashattn\\.a" "libflashattn\\.so[ \n]" "flashattnConfig\\.cmake"
                "pkgconfig/flashattn\\.pc")
check_archive("flashattn-*.tar.gz" "${CMAKE_COMMAND};-E;tar;tf" ${library} ${development})
find_program(DPKG dpkg)
find_program(DPKG_SHLIBDEPS dpkg-shlibdeps)
find_program(FILE file)
if(DPKG AND DPKG_SHLIBDEPS AND FILE)
    set(documents "doc/NAME/copyright" "doc/NAME/changelog\\.gz")
    string(REPLACE NAME libflashattn${ABI_VERSION} runtime_documents "${documents}")
    string(REPLACE NAME libflashattn-dev development_documents "${documents}")
    check_archive("libflashattn${ABI_VERSION}_*.deb" "dpkg-deb;-c" ${library} ${runtime_documents})
    check_archive("libflashattn${ABI_VERSION}_*.deb" "dpkg-deb;-I"
                  "shlibs" "triggers" "Depends: libc6")
    check_archive("libflashattn-dev_*.deb" "dpkg-deb;-c" ${development} ${development_documents})
endif()

# Without the programs that CPack's Debian generator runs, cpack makes the archive alone: it asks when
# it runs, and not when the build was configured.
file(STRINGS ${BUILD_DIR}/CPackConfig.cmake asks REGEX "package_generators[.]cmake")
if(NOT asks)
    message(FATAL_ERROR "CPackConfig.cmake does not ask which packages can be made")
endif()
set(ENV{PATH} ${WORK_DIR}/empty)
set(CMAKE_IGNORE_PATH /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin)
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/package_generators.cmake)
if(NOT CPACK_GENERATOR STREQUAL TGZ)
    message(FATAL_ERROR "without dpkg and file, cpack would make: ${CPACK_GENERATOR}")
endif()
