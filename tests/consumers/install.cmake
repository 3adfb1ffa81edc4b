# Installs the build, then moves the tree, because nothing in it may depend on where it was.
file(REMOVE_RECURSE ${WORK_DIR}/made ${WORK_DIR}/moved)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/made
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${WORK_DIR}/made ${WORK_DIR}/moved)
