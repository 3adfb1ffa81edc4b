/*
 * Each check names the argument and its value in the message.
 */
#include "arguments/checks.h"

#include "core/status.h"
#include "kernels/common/dtype.h"

#include <inttypes.h>
#include <stdbool.h>

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

/* Returns the name of a type of K and V alone; NULL for other types. */
static const char *name_of_keys_type(int32_t dtype) {
    DTYPES_KNOWN(7);
    switch (dtype) {
    case FLASH_DTYPE_E4M3:
        return "FLASH_DTYPE_E4M3";
    case FLASH_DTYPE_LATENT_E4M3:
        return "FLASH_DTYPE_LATENT_E4M3";
    case FLASH_DTYPE_Q8_0:
        return "FLASH_DTYPE_Q8_0";
    case FLASH_DTYPE_Q4_0:
        return "FLASH_DTYPE_Q4_0";
    default:
        return NULL;
    }
}

flash_status_t argument_check_query(const char *name, int32_t dtype, int32_t k_dtype) {
    if (dtype != FLASH_DTYPE_E4M3)
        return argument_check_not_of_keys(name, dtype);
    FLASH_REQUIRE(k_dtype == FLASH_DTYPE_E4M3, FLASH_ERROR_UNSUPPORTED,
                  "%s is FLASH_DTYPE_E4M3 (%d), and k.dtype is %" PRId32
                  ": beside Q of that type K and V are of it, too",
                  name, FLASH_DTYPE_E4M3, k_dtype);
    return FLASH_SUCCESS;
}

flash_status_t argument_check_not_of_keys(const char *name, int32_t dtype) {
    const char *of_keys = name_of_keys_type(dtype);
    FLASH_REQUIRE(of_keys == NULL, FLASH_ERROR_UNSUPPORTED,
                  "%s is %s (%" PRId32 "): K and V alone may be of that type", name, of_keys,
                  dtype);
    return FLASH_SUCCESS;
}

/* Elements of e4m3 have scales of the call, and latent tokens are K and V at once. */
static bool goes_alone(int32_t dtype) {
    return dtype == FLASH_DTYPE_E4M3 || dtype == FLASH_DTYPE_LATENT_E4M3;
}

flash_status_t argument_check_mixed(const char *k_name, int32_t k_dtype, const char *v_name,
                                    int32_t v_dtype) {
    const int32_t alone = goes_alone(k_dtype) ? k_dtype : v_dtype;
    FLASH_REQUIRE(k_dtype == v_dtype || !goes_alone(alone), FLASH_ERROR_UNSUPPORTED,
                  "%s is %" PRId32 " and %s is %" PRId32
                  ": where one of K and V is of %s, both are",
                  k_name, k_dtype, v_name, v_dtype, name_of_keys_type(alone));
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
