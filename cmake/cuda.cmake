# Decides whether the CUDA kernel families are built, FLASH_CUDA_FAMILIES, and how CUDA sources are
# compiled. AUTO builds them where a CUDA compiler works; ON insists.
set(FLASH_CUDA_FAMILIES "")
set(_minimum_nvcc 13.0) # the oldest that was tried

if(NOT FLASH_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "FLASH_CUDA is \"${FLASH_CUDA}\"; it can be AUTO, ON or OFF")
endif()

# Why there is no CUDA compiler: none, or the end of what the broken one said.
function(_cuda_missing_reason result)
    find_program(_nvcc nvcc HINTS ENV CUDACXX ENV CUDA_PATH PATH_SUFFIXES bin)
    set(log ${CMAKE_BINARY_DIR}${CMAKE_FILES_DIRECTORY}/CMakeError.log)
    if(NOT _nvcc)
        set(reason "no nvcc found")
    elseif(EXISTS ${log})
        file(READ ${log} text)
        string(LENGTH "${text}" length)
        math(EXPR begin "${length} > 2000 ? ${length} - 2000 : 0")
        string(SUBSTRING "${text}" ${begin} -1 tail)
        set(reason "${_nvcc} does not work. The end of its log:\n${tail}")
    else()
        set(reason "${_nvcc} does not work")
    endif()
    set(${result} "${reason}" PARENT_SCOPE)
endfunction()

if(NOT FLASH_CUDA STREQUAL OFF)
    include(CheckLanguage)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 80) # every family sets its own
    endif()
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        enable_language(CUDA)
        if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS _minimum_nvcc)
            set(_reason "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than ${_minimum_nvcc}")
        else()
            set(FLASH_CUDA_FAMILIES sm80)
            # Launch stubs use the C++ runtime; the library takes its part of it along.
            list(REMOVE_ITEM CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES stdc++ gcc_s)
        endif()
    else()
        _cuda_missing_reason(_reason)
    endif()
    if(FLASH_CUDA_FAMILIES)
        message(STATUS "CUDA: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, families ${FLASH_CUDA_FAMILIES}")
    elseif(FLASH_CUDA STREQUAL ON)
        message(FATAL_ERROR "FLASH_CUDA=ON, but ${_reason}")
    else()
        message(STATUS "CUDA: building the CPU library, because ${_reason}")
    endif()
endif()

# Device code for the architectures that a family's kernels run on: SASS for the chips of today
# (an sm_80 cubin runs on 8.x only), PTX for what comes.
set(FLASH_CUDA_ARCHITECTURES_SM80 80-real 90-real 80-virtual)

# An object library of a family's kernels: FLASH_KERNEL_SOURCES_<FAMILY> and more sources.
function(flash_add_cuda_family family)
    string(TOUPPER ${family} upper)
    add_library(flashattn_${family} OBJECT ${FLASH_KERNEL_SOURCES_${upper}} ${ARGN})
    set_target_properties(flashattn_${family} PROPERTIES
        CUDA_ARCHITECTURES "${FLASH_CUDA_ARCHITECTURES_${upper}}"
        CUDA_VISIBILITY_PRESET hidden
        CUDA_RUNTIME_LIBRARY Static
        POSITION_INDEPENDENT_CODE ON)
    target_include_directories(flashattn_${family} PRIVATE include kernels)
    target_compile_options(flashattn_${family} PRIVATE
        -std=c++20 --compress-mode=size -Xcompiler=-Wall,-Wextra)
endfunction()
