/*
 * These functions check single arguments, for calls of attention and of merging.
 */
#ifndef FLASH_ARGUMENT_CHECKS_H
#define FLASH_ARGUMENT_CHECKS_H

#include "flashattn.h"

#include <stddef.h>

/* Requires a size within 0 ... INT32_MAX. */
flash_status_t argument_check_size(const char *name, int64_t size);

/* Requires a count within 1 ... INT32_MAX. */
flash_status_t argument_check_count(const char *name, int64_t count);

/* Requires one of FLASH_DTYPE_... */
flash_status_t argument_check_dtype(const char *name, int32_t dtype);

/* Requires another type than those of 8 bits and less, which only K and V may have: a call whose
 * dtype is one of them names the types of its other tensors. Returns UNSUPPORTED. */
flash_status_t argument_check_not_of_keys(const char *name, int32_t dtype);

/* Requires such a type of Q, or e4m3 beside K of it. Returns UNSUPPORTED. */
flash_status_t argument_check_query(const char *name, int32_t dtype, int32_t k_dtype);

/* Requires one type of K and V, or two that may stand beside each other. Returns UNSUPPORTED. */
flash_status_t argument_check_mixed(const char *k_name, int32_t k_dtype, const char *v_name,
                                    int32_t v_dtype);

/* Requires fp16, bf16 or fp32, which numbers beside the tensors are of. what: those numbers, for
 * the message. Returns UNSUPPORTED for another type. */
flash_status_t argument_check_numbers(const char *name, int32_t dtype, const char *what);

/* Requires reserved members to be 0: what a newer library may know by them, this one does not.
 * what: the struct, for the message. Returns UNSUPPORTED. */
flash_status_t argument_check_reserved(const char *what, int32_t reserved32,
                                       const uint64_t *reserved, size_t count);

/* Requires data aligned to elements of `size` bytes, which CUDA kernels access whole; or NULL. */
flash_status_t argument_check_alignment(const char *name, const void *data, int64_t size);

#endif
