/*
 * This file is the module flashattn._extension: what flashattn._torch does in Python for each call,
 * for plain torch tensors, in a fraction of the time. bindings/python/flashattn/_torch/extension.py
 * loads it and says when it serves.
 */
#include "append.h"
#include "attention.h"
#include "host.h"

/* In the limited API a function with an array of arguments has another type than its entry. */
#define FUNCTION(name, function)                                                                   \
    { name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, NULL }

static PyMethodDef functions[] = {
    FUNCTION("setup", host_setup),
    FUNCTION("forward", attention_forward),
    FUNCTION("append", append_tokens),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_extension",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__extension(void);

PyMODINIT_FUNC PyInit__extension(void) {
    return PyModule_Create(&definition);
}
