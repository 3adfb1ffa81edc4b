# Decides where the generated sources come from: kernel table, facts of configurations, and sources of
# kernels. In a checkout the generator (codegen/, Python) writes them to the build tree when the
# project is configured, and a change of codegen/, or of a header that has rules, configures again. A
# source release brings those of the ship set along, in generated/, and needs no Python.
set(FLASH_CPU_FAMILIES reference)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    list(APPEND FLASH_CPU_FAMILIES ${FLASH_FAMILIES_X86_64})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    list(APPEND FLASH_CPU_FAMILIES ${FLASH_FAMILIES_AARCH64})
endif()
list(JOIN FLASH_CPU_FAMILIES "," _families)
if(FLASH_CUDA_FAMILIES)
    list(JOIN FLASH_CUDA_FAMILIES "," _cuda_families)
    string(APPEND _families ",${_cuda_families}")
endif()

find_package(Python3 3.9 COMPONENTS Interpreter)

function(_flash_generate directory)
    if(NOT Python3_Interpreter_FOUND)
        message(FATAL_ERROR "The sources of FLASH_KERNELS=\"${FLASH_KERNELS}\" for the families "
                            "${_families} are to be generated: this needs Python 3.9 or newer")
    endif()
    file(GLOB_RECURSE generator_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/codegen/*.py
         ${PROJECT_SOURCE_DIR}/codegen/results/*.txt)
    file(GLOB rules CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*/*_kernel.h)
    list(APPEND generator_files ${rules})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${generator_files})
    execute_process(
        COMMAND ${CMAKE_COMMAND} -E env PYTHONDONTWRITEBYTECODE=1
                ${Python3_EXECUTABLE} -m codegen
                --out ${directory} --kernels "${FLASH_KERNELS}" --families "${_families}"
                --capabilities "${FLASH_CUDA_CAPABILITIES}" --compiled "${FLASH_COMPILED_KERNELS}"
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
        COMMAND_ERROR_IS_FATAL ANY)
endfunction()

string(REPLACE "," "-" _released ${_families})
set(FLASH_GENERATED_DIR ${PROJECT_SOURCE_DIR}/generated/${_released})
if(NOT FLASH_KERNELS STREQUAL "ship" OR FLASH_CUDA_CAPABILITIES
   OR NOT EXISTS ${FLASH_GENERATED_DIR})
    set(FLASH_GENERATED_DIR ${PROJECT_BINARY_DIR}/generated)
    _flash_generate(${FLASH_GENERATED_DIR})
endif()
include(${FLASH_GENERATED_DIR}/kernels.cmake)

# Fuzzers are about arguments; the sanitizer builds without a fuzzer check the kernels. There, every
# check in line would make gcc take minutes for one kernel: AddressSanitizer checks by calls, what
# it reports itself, bad addresses, is not checked a second time, and pointers that overflow in AMX
# kernels are what a build with FLASH_SANITIZE=pointer-overflow is for.
set(_vector_kernel_flags "")
if("fuzzer" IN_LIST FLASH_SANITIZE)
    set(_vector_kernel_flags -fno-sanitize=undefined)
elseif("address" IN_LIST FLASH_SANITIZE)
    set(_vector_kernel_flags -fno-sanitize=null,object-size)
    if(CMAKE_C_COMPILER_ID STREQUAL GNU)
        list(APPEND _vector_kernel_flags --param=asan-instrumentation-with-call-threshold=0)
    endif()
endif()
foreach(_family IN LISTS FLASH_FAMILIES_X86_64 FLASH_FAMILIES_AARCH64)
    string(TOUPPER ${_family} _family)
    list(APPEND FLASH_KERNEL_FLAGS_${_family} ${_vector_kernel_flags})
endforeach()
if("address" IN_LIST FLASH_SANITIZE)
    list(APPEND FLASH_KERNEL_FLAGS_AMX -fno-sanitize=pointer-overflow)
endif()
set(FLASH_CPU_KERNEL_SOURCES "")
foreach(_family IN LISTS FLASH_CPU_FAMILIES)
    string(TOUPPER ${_family} _family)
    set_source_files_properties(${FLASH_KERNEL_SOURCES_${_family}} PROPERTIES
        COMPILE_OPTIONS "${FLASH_KERNEL_FLAGS_${_family}}")
    list(APPEND FLASH_CPU_KERNEL_SOURCES ${FLASH_KERNEL_SOURCES_${_family}})
endforeach()
