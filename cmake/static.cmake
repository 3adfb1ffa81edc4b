# The static library, flashattn::flashattn_static: all objects linked into one whose hidden symbols
# are local, so that the library's own names can meet none of the program's.
set(_object ${PROJECT_BINARY_DIR}/flashattn_static.o)
set(_parts $<TARGET_OBJECTS:flashattn_objects>)
foreach(_target IN LISTS FLASH_CUDA_OBJECT_TARGETS)
    list(APPEND _parts $<TARGET_OBJECTS:${_target}>)
endforeach()

# In objects that a compiler leaves to optimise at link time (LTO) the linker sees no hidden symbols.
string(TOUPPER "${CMAKE_BUILD_TYPE}" _config)
set(_flags "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${_config}}")
foreach(_target IN ITEMS flashattn_objects ${FLASH_CUDA_OBJECT_TARGETS})
    set_target_properties(${_target} PROPERTIES
        INTERPROCEDURAL_OPTIMIZATION OFF INTERPROCEDURAL_OPTIMIZATION_${_config} OFF)
endforeach()
if(_flags MATCHES "-flto")
    target_compile_options(flashattn_objects PRIVATE -fno-lto)
endif()

add_custom_command(OUTPUT ${_object}
    COMMAND ${CMAKE_LINKER} -r -o ${_object} ${_parts}
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${_object}
    DEPENDS flashattn_objects ${FLASH_CUDA_OBJECT_TARGETS} ${_parts}
    COMMENT "Linking flashattn_static.o, with its hidden symbols made local"
    COMMAND_EXPAND_LISTS VERBATIM)

add_library(flashattn_static STATIC ${_object})
add_library(flashattn::flashattn_static ALIAS flashattn_static)
set_target_properties(flashattn_static PROPERTIES LINKER_LANGUAGE C OUTPUT_NAME flashattn)
target_include_directories(flashattn_static INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_link_libraries(flashattn_static INTERFACE Threads::Threads m)
set(FLASH_PC_LIBS_PRIVATE "-pthread -lm")
if(FLASH_CUDA_FAMILIES)
    target_link_libraries(flashattn_static INTERFACE CUDA::cudart_static)
    string(APPEND FLASH_PC_LIBS_PRIVATE " -lcudart_static -ldl -lrt")
endif()
