# Makes a source release of a commit: its files, and the generated sources of the ship set for each
# kind of machine, so that it builds without Python.
#
# usage: cmake -P cmake/dist.cmake [FOLDER [COMMIT]]      (default: build/dist HEAD)
cmake_minimum_required(VERSION 3.25)
get_filename_component(_source ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
include(${CMAKE_CURRENT_LIST_DIR}/families.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/version.cmake)

set(_folder ${_source}/build/dist)
if(CMAKE_ARGC GREATER 3)
    get_filename_component(_folder ${CMAKE_ARGV3} ABSOLUTE)
endif()
set(_commit HEAD)
if(CMAKE_ARGC GREATER 4)
    set(_commit ${CMAKE_ARGV4})
endif()
set(_name flashattn-${FLASH_VERSION})

file(REMOVE_RECURSE ${_folder}/${_name})
file(MAKE_DIRECTORY ${_folder})
execute_process(COMMAND git archive --prefix=${_name}/ -o ${_folder}/sources.tar ${_commit}
                WORKING_DIRECTORY ${_source} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -E tar xf sources.tar
                WORKING_DIRECTORY ${_folder} COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${_folder}/sources.tar)

find_program(_python NAMES python3 REQUIRED)
foreach(_processor OTHER X86_64 AARCH64)
    foreach(_device OTHER CUDA)
        set(_list reference ${FLASH_FAMILIES_${_processor}} ${FLASH_FAMILIES_${_device}})
        list(JOIN _list "," _families)
        list(JOIN _list "-" _released)
        execute_process(
            COMMAND ${CMAKE_COMMAND} -E env PYTHONDONTWRITEBYTECODE=1 ${_python} -m codegen
                    --out generated/${_released} --kernels ship --families ${_families}
            WORKING_DIRECTORY ${_folder}/${_name}
            OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    endforeach()
endforeach()
# The same commit gives the same bytes: the order of names, one date and no owner.
set(_date $ENV{SOURCE_DATE_EPOCH})
if(NOT _date)
    execute_process(COMMAND git log -1 --format=%ct HEAD WORKING_DIRECTORY ${_source}
                    OUTPUT_VARIABLE _date OUTPUT_STRIP_TRAILING_WHITESPACE
                    COMMAND_ERROR_IS_FATAL ANY)
endif()
execute_process(COMMAND tar --create --sort=name --format=gnu --mtime=@${_date} --owner=0 --group=0
                        --numeric-owner --mode=u+rwX,go+rX,go-w ${_name}
                COMMAND gzip --best --no-name
                WORKING_DIRECTORY ${_folder} OUTPUT_FILE ${_folder}/${_name}.tar.gz
                COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "${_folder}/${_name}.tar.gz")
