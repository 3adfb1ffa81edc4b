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

# The compute capabilities that FLASH_CUDA_ARCHITECTURES names, as in "80;90"; empty for all.
function(_named_capabilities result)
    set(named "")
    if(FLASH_CUDA_ARCHITECTURES STREQUAL native)
        execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                        OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE code)
        string(REGEX MATCHALL "[0-9]+\\.[0-9]" named "${text}")
        if(NOT code EQUAL 0 OR NOT named)
            message(FATAL_ERROR "FLASH_CUDA_ARCHITECTURES is native, but nvidia-smi names no GPU: "
                                "${text}")
        endif()
        list(TRANSFORM named REPLACE "\\." "")
    elseif(NOT FLASH_CUDA_ARCHITECTURES STREQUAL all)
        string(REPLACE "," ";" named "${FLASH_CUDA_ARCHITECTURES}")
        foreach(capability IN LISTS named)
            if(NOT capability MATCHES "^(8[0-9]|9[0-9]|1[0-9][0-9])$")
                message(FATAL_ERROR "FLASH_CUDA_ARCHITECTURES is \"${FLASH_CUDA_ARCHITECTURES}\"; it "
                                    "can be all, native, or compute capabilities from 8.0 on, as in "
                                    "\"80;90\"")
            endif()
        endforeach()
    endif()
    list(TRANSFORM named REPLACE "^8[0-9]$" "80") # an sm_80 cubin runs on all of 8.x
    list(REMOVE_DUPLICATES named)
    set(${result} "${named}" PARENT_SCOPE)
endfunction()

# Device code of each family. All: SASS for the chips of today, PTX for what comes. Rows in
# ..._BEFORE_90 have no SASS for 9.0, and all code of those in ..._ONE_SOURCE comes from the PTX of
# FLASH_CUDA_SOURCE_... (codegen/machine_code.py): ptxas runs for each chip, what comes before it
# once. Named capabilities: SASS only for these, and for 9.0 among others the PTX of rows that have
# no SASS for it. Dependent launches are in code for 9.0 and newer alone, which is why the PTX of
# SM80_DECODE is of 9.0. COMMON: what every family uses. ./dev test sets some of these to less.
function(_set_code set)
    if(NOT DEFINED FLASH_CUDA_CODE_${set})
        set(FLASH_CUDA_CODE_${set} "${ARGN}" PARENT_SCOPE)
    endif()
endfunction()

set(FLASH_CUDA_CAPABILITIES "")
if(FLASH_CUDA_FAMILIES)
    _named_capabilities(FLASH_CUDA_CAPABILITIES)
endif()
set(_code_sm90 90a-real) # wgmma and setmaxnreg are of this chip only
if(FLASH_CUDA_CAPABILITIES)
    list(TRANSFORM FLASH_CUDA_CAPABILITIES APPEND -real OUTPUT_VARIABLE _code)
    set(_before_90 ${_code})
    list(REMOVE_ITEM _before_90 90-real)
    if(NOT 90 IN_LIST FLASH_CUDA_CAPABILITIES)
        set(_code_sm90 ${_code}) # of kernels beside the rows', which the library refers to
    endif()
    set(_ptx_SM80 80-virtual)
    set(_ptx_SM80_MLA 90-virtual)
    set(_ptx_SM80_WIDE 90-virtual)
    foreach(_family COMMON SM80 SM80_DECODE SM80_MLA SM80_WIDE)
        _set_code(${_family} ${_code})
        _set_code(${_family}_ONE_SOURCE ${_code})
        if(_before_90 AND 90 IN_LIST FLASH_CUDA_CAPABILITIES)
            _set_code(${_family}_BEFORE_90 ${_before_90} ${_ptx_${_family}})
        else()
            _set_code(${_family}_BEFORE_90 ${_before_90})
        endif()
    endforeach()
else()
    _set_code(COMMON 80-real 90-real 80-virtual)
    _set_code(SM80 80-real 90-real 80-virtual)
    _set_code(SM80_BEFORE_90 80-real 80-virtual)
    _set_code(SM80_ONE_SOURCE 80-real 90-real 80-virtual)
    _set_code(SM80_DECODE 80-real 90-real 90-virtual)
    _set_code(SM80_MLA 80-real 90-real 90-virtual)
    _set_code(SM80_MLA_BEFORE_90 80-real 90-virtual)
    _set_code(SM80_WIDE 80-real 90-real 90-virtual)
    _set_code(SM80_WIDE_BEFORE_90 80-real 90-virtual)
endif()
set(FLASH_CUDA_SOURCE_SM80_ONE_SOURCE 80)
foreach(_family SM90 SM90_DECODE SM90_MLA SM90_WIDE)
    _set_code(${_family} ${_code_sm90})
    set(FLASH_CUDA_LAUNCHER_${_family} refuse_ptxas_notes.py)
endforeach()

# Writes sources that include those of several kernels: the headers, which take as long as a small
# kernel, are read once for all of them. Kernels of an operation, a type and a d_head are together,
# and where they take little time, those of an operation, a type and all d_heads up to 96, or from
# 128 on.
set(FLASH_CUDA_QUICK_SETS sm80 sm80_before_90 sm80_one_source sm80_decode)
function(_group_kernels sources set result)
    set(groups "")
    foreach(source IN LISTS sources)
        string(REGEX MATCH "flash_(fwd_)?([a-z0-9_]+_)(d([0-9]+)(v[0-9]+)?)_" name "${source}")
        set(group ${CMAKE_MATCH_2}${CMAKE_MATCH_3})
        if(set IN_LIST FLASH_CUDA_QUICK_SETS)
            set(group ${CMAKE_MATCH_2}small)
            if(CMAKE_MATCH_4 GREATER_EQUAL 128)
                set(group ${CMAKE_MATCH_2}large)
            endif()
        endif()
        list(APPEND groups ${group})
        string(APPEND includes_${group} "#include \"${source}\"\n")
    endforeach()
    list(REMOVE_DUPLICATES groups)
    list(TRANSFORM groups REPLACE ".+" "${PROJECT_BINARY_DIR}/grouped/${set}/\\0.cu"
         OUTPUT_VARIABLE files)
    foreach(group file IN ZIP_LISTS groups files)
        file(GENERATE OUTPUT ${file} CONTENT "${includes_${group}}")
    endforeach()
    set(${result} ${files} PARENT_SCOPE)
endfunction()

# Has a target compiled to PTX for a single compute capability, and to all of its code from that.
function(_compile_from_one_source target capability code)
    list(TRANSFORM code REPLACE "^([0-9]+)-real$" "sm_\\1")
    list(TRANSFORM code REPLACE "^([0-9]+)-virtual$" "compute_\\1")
    list(JOIN code "," code)
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF)
    target_compile_options(${target} PRIVATE
        "--generate-code=arch=compute_${capability},code=[${code}]")
endfunction()

set(FLASH_CUDA_OBJECT_TARGETS "") # those of the function below

# An object library for the library: of the kernels FLASH_KERNEL_SOURCES_<SET>, where the set is a
# family, <family>_before_90 or <family>_one_source, and of more sources. None where there are no
# sources.
function(flash_add_cuda_set set)
    string(TOUPPER ${set} upper)
    set(code ${FLASH_CUDA_CODE_${upper}})
    _group_kernels("${FLASH_KERNEL_SOURCES_${upper}}" ${set} sources)
    list(APPEND sources ${ARGN})
    if(NOT sources OR NOT code)
        return()
    endif()
    list(LENGTH sources count)
    message(STATUS "CUDA kernels: ${count} files of ${set} to build for ${code}, which takes "
                   "minutes; -DFLASH_CUDA=OFF leaves them out")
    add_library(flashattn_${set} OBJECT ${sources})
    target_sources(flashattn_objects INTERFACE $<TARGET_OBJECTS:flashattn_${set}>)
    set(FLASH_CUDA_OBJECT_TARGETS ${FLASH_CUDA_OBJECT_TARGETS} flashattn_${set} PARENT_SCOPE)
    if(FLASH_CUDA_LAUNCHER_${upper} AND Python3_Interpreter_FOUND)
        set(launcher ${Python3_EXECUTABLE}
            ${PROJECT_SOURCE_DIR}/cmake/${FLASH_CUDA_LAUNCHER_${upper}}
            ${CMAKE_CUDA_COMPILER_LAUNCHER})
        set_target_properties(flashattn_${set} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
    endif()
    set_target_properties(flashattn_${set} PROPERTIES
        CUDA_ARCHITECTURES "${code}"
        CUDA_VISIBILITY_PRESET hidden
        CUDA_RUNTIME_LIBRARY Static
        POSITION_INDEPENDENT_CODE ON)
    if(FLASH_CUDA_SOURCE_${upper})
        _compile_from_one_source(flashattn_${set} ${FLASH_CUDA_SOURCE_${upper}} "${code}")
    endif()
    target_include_directories(flashattn_${set} PRIVATE include kernels)
    # The host code of these files registers kernels, and has a function for each that is never
    # called, since the library launches kernels by their addresses. Without exceptions, and without
    # guards of that function's static variable, it needs no C++ runtime.
    target_compile_options(flashattn_${set} PRIVATE -std=c++20 --compress-mode=size
        -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-threadsafe-statics)
endfunction()
