/*
 * Each check names the argument and its value in the message.
 */
#include "arguments/checks.h"

#include "core/status.h"
#include "kernels/common/dtype.h"

#include <inttypes.h>

flash_status_t argument_check_size(const char *name, int64_t size) {
    FLASH_REQUIRE(size >= 0 && size <= INT32_MAX, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 ": not within 0 ... %" PRId32, name, size, INT32_MAX);
    return FLASH_SUCCESS;
}

flash_status_t argument_check_count(const char *name, int64_t count) {
    FLASH_REQUIRE(count != 0, FLASH_ERROR_INVALID_ARGUMENT, "%s is 0: it must be at least 1", name);
    return argument_check_size(name, count);
}

flash_status_t argument_check_dtype(const char *name, int32_t dtype) {
    FLASH_REQUIRE(dtype_size(dtype) != 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId32 ": no such element type (FLASH_DTYPE_...)", name, dtype);
    return FLASH_SUCCESS;
}

flash_status_t argument_check_not_of_keys(const char *name, int32_t dtype) {
    DTYPES_KNOWN(5);
    FLASH_REQUIRE(dtype != FLASH_DTYPE_E4M3, FLASH_ERROR_UNSUPPORTED,
                  "%s is FLASH_DTYPE_E4M3 (%" PRId32 "): K and V alone may be of that type", name,
                  dtype);
    FLASH_REQUIRE(dtype != FLASH_DTYPE_LATENT_E4M3, FLASH_ERROR_UNSUPPORTED,
                  "%s is FLASH_DTYPE_LATENT_E4M3 (%" PRId32 "): K and V alone may be of that type",
                  name, dtype);
    return FLASH_SUCCESS;
}

flash_status_t argument_check_numbers(const char *name, int32_t dtype, const char *what) {
    FLASH_TRY(argument_check_dtype(name, dtype));
    FLASH_REQUIRE(dtype_size(dtype) > 1, FLASH_ERROR_UNSUPPORTED,
                  "%s is %" PRId32 ": %s are of fp16, bf16 or fp32", name, dtype, what);
    return FLASH_SUCCESS;
}

flash_status_t argument_check_reserved(const char *what, int32_t reserved32,
                                       const uint64_t *reserved, size_t count) {
    uint64_t any = (uint32_t)reserved32;
    for (size_t i = 0; i < count; i++)
        any |= reserved[i];
    FLASH_REQUIRE(any == 0, FLASH_ERROR_UNSUPPORTED, "%s.reserved is not zero", what);
    return FLASH_SUCCESS;
}

flash_status_t argument_check_alignment(const char *name, const void *data, int64_t size) {
    FLASH_REQUIRE((uintptr_t)data % (uintptr_t)size == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %p: not aligned to its elements of %" PRId64
                  " bytes, as CUDA devices need it",
                  name, data, size);
    return FLASH_SUCCESS;
}
