# The Python package's extension (bindings/python/extension): flash_attn_func and the like for torch
# tensors at a fraction of the host time. It is built where Python's headers are, for every CPython
# from 3.10 on (the limited API), and lies beside the library; the package does without it elsewhere.
include(CheckCSourceCompiles)
find_package(Python3 3.10 QUIET COMPONENTS Interpreter Development.Module)
set(FLASH_HAS_PYTHON_HEADERS OFF)
if(Python3_Development.Module_FOUND AND NOT FLASH_SANITIZE)
    set(CMAKE_REQUIRED_INCLUDES ${Python3_INCLUDE_DIRS}) # which a cross compiler may be unable to use
    check_c_source_compiles("#define Py_LIMITED_API 0x030a0000
                             #include <Python.h>
                             int main(void) { return 0; }" FLASH_COMPILES_PYTHON_H)
    set(FLASH_HAS_PYTHON_HEADERS ${FLASH_COMPILES_PYTHON_H})
endif()
if(NOT FLASH_HAS_PYTHON_HEADERS)
    message(STATUS "The Python package's extension is not built: it needs Python.h of 3.10 or newer")
    add_custom_target(flashattn_extension)
    return()
endif()

add_library(flashattn_extension MODULE
    bindings/python/extension/append.c
    bindings/python/extension/attention.c
    bindings/python/extension/cache.c
    bindings/python/extension/host.c
    bindings/python/extension/module.c
    bindings/python/extension/numbers.c
    bindings/python/extension/tensor.c
    bindings/python/extension/workspace.c)
flash_compile_options(flashattn_extension)
# Neither Python nor the library is linked: both are there when it is loaded.
target_include_directories(flashattn_extension PRIVATE include)
target_include_directories(flashattn_extension SYSTEM PRIVATE ${Python3_INCLUDE_DIRS})
set_target_properties(flashattn_extension PROPERTIES
    OUTPUT_NAME _extension PREFIX "" SUFFIX .abi3.so)
target_link_options(flashattn_extension PRIVATE -Wl,-z,now -Wl,-z,noexecstack)
if(SKBUILD)
    install(TARGETS flashattn_extension LIBRARY DESTINATION flashattn COMPONENT python)
endif()
