# Decides whether the CUDA kernel families are built: FLASH_CUDA_FAMILIES, a list. This version
# has none; their compiler checks, object libraries and flags belong here.
set(FLASH_CUDA_FAMILIES "")

if(NOT FLASH_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "FLASH_CUDA is \"${FLASH_CUDA}\"; it can be AUTO, ON or OFF")
elseif(FLASH_CUDA STREQUAL ON)
    message(FATAL_ERROR "FLASH_CUDA=ON, but this version has no CUDA kernels yet: "
                        "use FLASH_CUDA=AUTO or OFF for the CPU library")
elseif(FLASH_CUDA STREQUAL AUTO)
    message(STATUS "FLASH_CUDA=AUTO: no CUDA kernels in this version, building the CPU library")
endif()
