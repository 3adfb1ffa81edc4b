# FLASH_EMULATE_AMX compiles the AMX kernels with tile instructions in C instead of the processor's,
# and reports AMX as present. It makes a library for tests, which is never installed.
if(NOT "amx" IN_LIST FLASH_CPU_FAMILIES)
    message(FATAL_ERROR "FLASH_EMULATE_AMX=ON, but this is no build for x86-64")
endif()
set(FLASH_INSTALL OFF)

set(_emulation ${CMAKE_CURRENT_LIST_DIR})
set_property(SOURCE ${FLASH_KERNEL_SOURCES_AMX} APPEND PROPERTY COMPILE_OPTIONS
    -include ${_emulation}/intrinsics.h)
set_property(SOURCE ${_emulation}/tiles.c PROPERTY COMPILE_OPTIONS -mavx512f)
target_sources(flashattn_objects PRIVATE ${_emulation}/processor.c ${_emulation}/tiles.c)
foreach(_function cpu_features_isa cpu_features_permit_amx)
    target_link_options(flashattn_objects INTERFACE -Wl,--wrap=${_function})
endforeach()
