# Compiler and linker options of every C target: language, warnings, optimisation, sanitizers.
# Set per target, so that a project which includes this one keeps its own flags.

set(FLASH_WARNINGS -Wall -Wextra -Wpedantic -Wmissing-prototypes -Wstrict-prototypes -Wshadow)
if(FLASH_WARNINGS_AS_ERRORS)
    list(APPEND FLASH_WARNINGS -Werror)
endif()

# "fuzzer" instruments the library; its main function is linked to the fuzz targets only.
set(FLASH_SANITIZER_OPTIONS "")
if(FLASH_SANITIZE)
    if("fuzzer" IN_LIST FLASH_SANITIZE AND NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "FLASH_SANITIZE=fuzzer needs clang: set CMAKE_C_COMPILER=clang")
    endif()
    list(TRANSFORM FLASH_SANITIZE REPLACE "^fuzzer$" "fuzzer-no-link" OUTPUT_VARIABLE _sanitizers)
    list(JOIN _sanitizers "," _sanitizers)
    # -g1: lines for the reports; to track variables too takes gcc longer than all else.
    set(FLASH_SANITIZER_OPTIONS
        -fsanitize=${_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
endif()

function(flash_compile_options target)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11
        C_STANDARD_REQUIRED ON
        C_EXTENSIONS OFF
        C_VISIBILITY_PRESET hidden
        POSITION_INDEPENDENT_CODE ON)
    if(FLASH_SANITIZER_OPTIONS)
        set(optimisation -O1)
    else()
        set(optimisation $<$<NOT:$<CONFIG:Debug>>:-O3>)
    endif()
    target_compile_options(${target} PRIVATE
        ${FLASH_WARNINGS} ${optimisation} ${FLASH_SANITIZER_OPTIONS})
    target_link_options(${target} PUBLIC ${FLASH_SANITIZER_OPTIONS})
endfunction()

# The library exports what its map names, resolves every symbol when it is linked and again when
# it is loaded. clang leaves the sanitizers' own symbols to the executable: no -z defs there.
function(flash_link_options target)
    target_link_options(${target} PRIVATE
        -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/flashattn.map -Wl,-z,now -Wl,-z,noexecstack)
    if(NOT (FLASH_SANITIZER_OPTIONS AND CMAKE_C_COMPILER_ID MATCHES "Clang"))
        target_link_options(${target} PRIVATE -Wl,-z,defs)
    endif()
endfunction()
