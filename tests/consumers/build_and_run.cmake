# Configures, builds and runs one consumer project.
file(REMOVE_RECURSE ${WORK_DIR})
file(GLOB pkgconfig_dirs ${PREFIX}/*/pkgconfig ${PREFIX}/*/*/pkgconfig)
list(JOIN pkgconfig_dirs ":" pkgconfig_path)
set(ENV{PKG_CONFIG_PATH} ${pkgconfig_path})
execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR} -G ${GENERATOR}
            -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_PREFIX_PATH=${PREFIX}
            -D FLASHATTN_SOURCE_DIR=${FLASHATTN_SOURCE_DIR} -D FLASH_CUDA=OFF
    COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK_DIR}/consumer COMMAND_ERROR_IS_FATAL ANY)
