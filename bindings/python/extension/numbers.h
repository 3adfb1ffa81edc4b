/* This file declares how numbers and flags of Python become those of the C API. */
#ifndef FLASH_EXTENSION_NUMBERS_H
#define FLASH_EXTENSION_NUMBERS_H

#include "host.h"

/* Each returns false for what the C API cannot say. */
bool read_integer(PyObject *object, int64_t *value);
bool read_count(PyObject *object, int32_t *value);                /* not negative */
bool read_flag(PyObject *object, uint32_t flag, uint32_t *flags); /* joins flags where it is true */

/* Reads a number that is positive and finite in float32; `absent`, None or 0, becomes 0. */
bool read_positive(PyObject *object, bool none_is_absent, float *value);

#endif
