# On a machine without the program `file`, which CPack's Debian generator runs, cpack makes the
# archive alone.
file(REMOVE_RECURSE ${WORK_DIR}/without_file)
execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${FLASHATTN_SOURCE_DIR} -B ${WORK_DIR}/without_file -G ${GENERATOR}
            -D CMAKE_C_COMPILER=${C_COMPILER} -D FLASH_CUDA=OFF -D FLASH_FILE:STRING=OFF
    COMMAND_ERROR_IS_FATAL ANY)
include(${WORK_DIR}/without_file/CPackConfig.cmake)
if(NOT CPACK_GENERATOR STREQUAL "TGZ")
    message(FATAL_ERROR "without `file`, cpack would make: ${CPACK_GENERATOR}")
endif()
