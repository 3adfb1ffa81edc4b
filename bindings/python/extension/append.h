/* This file declares the call of flash_kv_append(). */
#ifndef FLASH_EXTENSION_APPEND_H
#define FLASH_EXTENSION_APPEND_H

#include "host.h"

/* Writes new tokens to a cache. Returns True, or False where it serves the call not, and then wrote
 * nothing. */
PyObject *append_tokens(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

#endif
