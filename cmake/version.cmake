# FLASH_VERSION and FLASH_ABI_VERSION, read from the public header: the one place that has them.
# The ABI is 0 until version 1.0 (docs/abi.md).
set(_header ${CMAKE_CURRENT_LIST_DIR}/../include/flashattn.h)
if(NOT CMAKE_SCRIPT_MODE_FILE)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_header})
endif()

function(_flash_read_define name result)
    file(STRINGS ${_header} line REGEX "^#define ${name} +[0-9]+$")
    if(NOT line MATCHES "([0-9]+)$")
        message(FATAL_ERROR "include/flashattn.h does not define ${name} as a number")
    endif()
    set(${result} ${CMAKE_MATCH_1} PARENT_SCOPE)
endfunction()

_flash_read_define(FLASH_VERSION_MAJOR _major)
_flash_read_define(FLASH_VERSION_MINOR _minor)
_flash_read_define(FLASH_VERSION_PATCH _patch)
_flash_read_define(FLASH_ABI_VERSION FLASH_ABI_VERSION)
if((_major EQUAL 0 AND NOT FLASH_ABI_VERSION EQUAL 0) OR
   (_major GREATER 0 AND FLASH_ABI_VERSION EQUAL 0))
    message(FATAL_ERROR "include/flashattn.h: version ${_major} has no ABI ${FLASH_ABI_VERSION}")
endif()
set(FLASH_VERSION ${_major}.${_minor}.${_patch})
