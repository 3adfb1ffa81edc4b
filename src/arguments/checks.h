/*
 * Checks of one argument: what calls of attention and of merging have in common.
 */
#ifndef FLASH_ARGUMENT_CHECKS_H
#define FLASH_ARGUMENT_CHECKS_H

#include "flashattn.h"

/* Requires a size within 0 ... INT32_MAX. */
flash_status_t argument_check_size(const char *name, int64_t size);

/* Requires a count within 1 ... INT32_MAX. */
flash_status_t argument_check_count(const char *name, int64_t count);

/* Requires one of FLASH_DTYPE_... */
flash_status_t argument_check_dtype(const char *name, int32_t dtype);

/* Requires another type than e4m3, which K and V alone may have: a call whose own type is e4m3
 * names that of each other tensor. UNSUPPORTED. */
flash_status_t argument_check_not_e4m3(const char *name, int32_t dtype);

/* Requires data that is aligned to elements of size bytes, which CUDA kernels load and store whole;
 * NULL always is. */
flash_status_t argument_check_alignment(const char *name, const void *data, int64_t size);

#endif
