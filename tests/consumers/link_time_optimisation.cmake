# The static library shows no names but its functions when a project asks for optimisation at link
# time, of CMake or of the compiler.
function(check_names name)
    set(folder ${WORK_DIR}/lto_${name})
    execute_process(
        COMMAND ${CMAKE_COMMAND} -G Ninja -S ${FLASHATTN_SOURCE_DIR} -B ${folder}
                -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_C_COMPILER_LAUNCHER=${LAUNCHER}
                -D CMAKE_BUILD_TYPE=Debug -D FLASH_CUDA=OFF
                -D FLASH_KERNELS=ship\ arch=REFERENCE\ dtype=FP32 ${ARGN}
        COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${folder} --target flashattn_static
                    COMMAND_ERROR_IS_FATAL ANY)
    execute_process(
        COMMAND ${PYTHON} -B ${FLASHATTN_SOURCE_DIR}/tests/abi/check_exports.py
                ${FLASHATTN_SOURCE_DIR}/include/flashattn.h
                ${FLASHATTN_SOURCE_DIR}/src/xla/xla_backward.h
                ${FLASHATTN_SOURCE_DIR}/src/xla/xla_forward.h ${folder}/libflashattn.a
        COMMAND_ERROR_IS_FATAL ANY)
endfunction()

check_names(cmake -D CMAKE_INTERPROCEDURAL_OPTIMIZATION=ON)
check_names(compiler -D CMAKE_C_FLAGS=-flto)
