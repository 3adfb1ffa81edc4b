# What a user's build has without options, and a developer's with the preset: tests, and warnings as
# errors, are in the latter alone.
function(check_build name expected)
    set(folder ${WORK_DIR}/options_${name})
    file(REMOVE_RECURSE ${folder})
    execute_process(
        COMMAND ${CMAKE_COMMAND} ${ARGN} -S ${FLASHATTN_SOURCE_DIR} -B ${folder}
                -D CMAKE_C_COMPILER=${C_COMPILER} -D FLASH_CUDA=OFF
                -D FLASH_KERNELS=ship\ arch=REFERENCE
        WORKING_DIRECTORY ${FLASHATTN_SOURCE_DIR} COMMAND_ERROR_IS_FATAL ANY)
    set(found OFF)
    file(STRINGS ${folder}/build.ninja flags REGEX "FLAGS = .*-Werror")
    if(flags)
        set(found ON)
    endif()
    if(NOT found STREQUAL expected)
        message(FATAL_ERROR "${name}: -Werror is ${found}, not ${expected}")
    endif()
    set(found OFF)
    if(EXISTS ${folder}/tests)
        set(found ON)
    endif()
    if(NOT found STREQUAL expected)
        message(FATAL_ERROR "${name}: tests are ${found}, not ${expected}")
    endif()
endfunction()

check_build(user OFF -G Ninja)
check_build(developer ON --preset dev)
