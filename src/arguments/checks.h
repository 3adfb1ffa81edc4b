/*
 * These functions check single arguments, for calls of attention and of merging.
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

/* Requires another type than e4m3, which only K and V may have: a call whose dtype is e4m3 names
 * the types of its other tensors. Returns UNSUPPORTED. */
flash_status_t argument_check_not_e4m3(const char *name, int32_t dtype);

/* Requires data aligned to elements of `size` bytes, which CUDA kernels access whole; or NULL. */
flash_status_t argument_check_alignment(const char *name, const void *data, int64_t size);

#endif
