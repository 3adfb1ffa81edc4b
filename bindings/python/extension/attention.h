/* This file declares the call of flash_forward(). */
#ifndef FLASH_EXTENSION_ATTENTION_H
#define FLASH_EXTENSION_ATTENTION_H

#include "host.h"

/* Computes attention. Returns O or (O, LSE), or None where it serves the call not. */
PyObject *attention_forward(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

#endif
