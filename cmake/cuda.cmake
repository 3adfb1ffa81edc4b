# Decides whether the CUDA kernel families are built, FLASH_CUDA_FAMILIES, and how CUDA sources are
# compiled. AUTO builds them where a CUDA compiler works; ON insists.
set(FLASH_CUDA_FAMILIES "")
set(_minimum_nvcc 13.0) # the oldest that was tried

if(NOT FLASH_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "FLASH_CUDA is \"${FLASH_CUDA}\"; it can be AUTO, ON or OFF")
endif()

# The end of what nvcc says to a small program, at most 2,000 characters.
function(_nvcc_complaint nvcc result)
    set(probe ${CMAKE_BINARY_DIR}${CMAKE_FILES_DIRECTORY}/nvcc_probe)
    file(WRITE ${probe}.cu "__global__ void probe() {}\n")
    execute_process(COMMAND ${nvcc} -c ${probe}.cu -o ${probe}.o TIMEOUT 120
                    RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(code EQUAL 0)
        set(text "(it compiles, but CMake found it unusable: see ${CMAKE_BINARY_DIR}"
                 "${CMAKE_FILES_DIRECTORY})")
        list(JOIN text "" text)
    endif()
    string(LENGTH "${text}" length)
    if(length GREATER 2000)
        math(EXPR begin "${length} - 2000")
        string(SUBSTRING "${text}" ${begin} -1 text)
    endif()
    set(${result} "exit status ${code}: ${text}" PARENT_SCOPE)
endfunction()

# Why there is no CUDA compiler: none, or what the broken one says.
function(_cuda_missing_reason result)
    set(nvcc "$ENV{CUDACXX}")
    if(NOT nvcc)
        find_program(FLASH_NVCC nvcc HINTS ENV CUDA_PATH PATH_SUFFIXES bin NO_CACHE)
        set(nvcc "${FLASH_NVCC}")
    endif()
    if(nvcc)
        _nvcc_complaint("${nvcc}" complaint)
        set(reason "${nvcc} does not work. The end of its log:\n${complaint}")
    else()
        set(reason "no nvcc found")
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
            set(FLASH_CUDA_FAMILIES ${FLASH_FAMILIES_CUDA})
            # The options of flash_add_cuda_family() leave nothing for the C++ runtime to do.
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
# (an sm_80 cubin runs on 8.x only), PTX for what comes. COMMON: what every family uses. Those of
# SM80 and SM80_DECODE can be set from outside: ./dev test leaves some out.
set(FLASH_CUDA_ARCHITECTURES_COMMON 80-real 90-real 80-virtual)
if(NOT FLASH_CUDA_ARCHITECTURES_SM80)
    set(FLASH_CUDA_ARCHITECTURES_SM80 80-real 90-real 80-virtual)
endif()
if(NOT FLASH_CUDA_ARCHITECTURES_SM80_DECODE)
    # Dependent launches are in code for 9.0 and newer alone.
    set(FLASH_CUDA_ARCHITECTURES_SM80_DECODE 80-real 90-real 90-virtual)
endif()
set(FLASH_CUDA_ARCHITECTURES_SM80_MLA ${FLASH_CUDA_ARCHITECTURES_SM80_DECODE})
set(FLASH_CUDA_ARCHITECTURES_SM90 90a-real) # wgmma and setmaxnreg are of this chip alone
set(FLASH_CUDA_ARCHITECTURES_SM90_DECODE ${FLASH_CUDA_ARCHITECTURES_SM90})
set(FLASH_CUDA_ARCHITECTURES_SM90_MLA ${FLASH_CUDA_ARCHITECTURES_SM90})
set(FLASH_CUDA_LAUNCHER_SM90 refuse_ptxas_notes.py)
set(FLASH_CUDA_LAUNCHER_SM90_DECODE ${FLASH_CUDA_LAUNCHER_SM90})
set(FLASH_CUDA_LAUNCHER_SM90_MLA ${FLASH_CUDA_LAUNCHER_SM90})

set(FLASH_CUDA_OBJECT_TARGETS "") # those of the function below

# Writes sources that include those of all kernels of a type and head dimension, so that the headers
# are read once for all of them.
function(_group_by_type_and_d_head sources result)
    set(groups "")
    foreach(source IN LISTS sources)
        string(REGEX MATCH "flash_fwd_([a-z0-9]+_[a-z0-9]+_d[0-9]+(v[0-9]+)?)_" name "${source}")
        list(APPEND groups ${CMAKE_MATCH_1})
        string(APPEND includes_${CMAKE_MATCH_1} "#include \"${source}\"\n")
    endforeach()
    list(REMOVE_DUPLICATES groups)
    list(TRANSFORM groups REPLACE ".+" "${PROJECT_BINARY_DIR}/grouped/\\0.cu" OUTPUT_VARIABLE files)
    foreach(group file IN ZIP_LISTS groups files)
        file(GENERATE OUTPUT ${file} CONTENT "${includes_${group}}")
    endforeach()
    set(${result} ${files} PARENT_SCOPE)
endfunction()

# An object library of a family's kernels, FLASH_KERNEL_SOURCES_<FAMILY> and more sources, for the
# library; none where none are selected.
function(flash_add_cuda_family family)
    string(TOUPPER ${family} upper)
    set(sources ${FLASH_KERNEL_SOURCES_${upper}})
    if(FLASH_GROUP_CUDA_KERNELS)
        _group_by_type_and_d_head("${sources}" sources)
    endif()
    list(APPEND sources ${ARGN})
    if(NOT sources)
        return()
    endif()
    list(LENGTH sources count)
    message(STATUS "CUDA kernels: ${count} files of family ${family} to build, which takes minutes; "
                   "-DFLASH_CUDA=OFF leaves them out")
    add_library(flashattn_${family} OBJECT ${sources})
    target_sources(flashattn_objects INTERFACE $<TARGET_OBJECTS:flashattn_${family}>)
    set(FLASH_CUDA_OBJECT_TARGETS ${FLASH_CUDA_OBJECT_TARGETS} flashattn_${family} PARENT_SCOPE)
    if(FLASH_CUDA_LAUNCHER_${upper} AND Python3_Interpreter_FOUND)
        set_target_properties(flashattn_${family} PROPERTIES CUDA_COMPILER_LAUNCHER
            "${Python3_EXECUTABLE};${PROJECT_SOURCE_DIR}/cmake/${FLASH_CUDA_LAUNCHER_${upper}}")
    endif()
    set_target_properties(flashattn_${family} PROPERTIES
        CUDA_ARCHITECTURES "${FLASH_CUDA_ARCHITECTURES_${upper}}"
        CUDA_VISIBILITY_PRESET hidden
        CUDA_RUNTIME_LIBRARY Static
        POSITION_INDEPENDENT_CODE ON)
    target_include_directories(flashattn_${family} PRIVATE include kernels)
    # The host code of these files registers kernels, and has a function for each that is never
    # called, since the library launches kernels by their addresses. Without exceptions, and without
    # guards of that function's static variable, it needs no C++ runtime.
    target_compile_options(flashattn_${family} PRIVATE -std=c++20 --compress-mode=size
        -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-threadsafe-statics)
endfunction()
