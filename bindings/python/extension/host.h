/*
 * This file declares what the extension is given once, by setup(): the functions of libflashattn,
 * and torch's class of tensors with its functions. The extension links neither.
 */
#ifndef FLASH_EXTENSION_HOST_H
#define FLASH_EXTENSION_HOST_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000 /* 3.10, and every later one */
#include <Python.h>
#include <stdbool.h>

#include "exchange.h"
#include "flashattn.h"

/* An argument of forward() that becomes one member of flash_forward_args_t, or a flag. */
typedef struct {
    int32_t place;
    char kind; /* a letter of Kind.member in _argument_list.py */
    union {
        size_t offset; /* of the member */
        uint32_t flag; /* of kind '?' */
    };
} member_t;

enum { MAX_MEMBERS = 64 };

typedef struct {
    flash_status_t (*forward)(const flash_forward_args_t *, const flash_kernel_t *, flash_stream_t);
    flash_status_t (*workspace_size)(const flash_forward_args_t *, const flash_kernel_t *,
                                     uint64_t *);
    flash_status_t (*append)(const flash_kv_append_args_t *, flash_stream_t);

    const exchange_api_t *exchange;
    PyObject *tensor_class;
    PyObject *empty_like;
    PyObject *records_gradients; /* torch.is_grad_enabled */
    PyObject *of_float32;        /* {"dtype": torch.float32} */
    PyObject *watchers;          /* a tuple of functions: true while something watches calls */
    PyObject *forward_ad;        /* a module whose _current_level is below 0 without derivatives */

    member_t members[MAX_MEMBERS];
    int32_t n_members;
    int32_t n_arguments; /* of forward() */

    PyObject *is_neg, *requires_grad, *new_empty, *current_level; /* names */
} host_t;

extern host_t host;

/* Takes what the module needs from the arguments of setup(). Returns None or raises. */
PyObject *host_setup(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* Says whether calls may pass torch's dispatcher by: nothing watches them or changes them. */
bool host_is_plain(void);

#endif
