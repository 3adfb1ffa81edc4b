/* This file keeps what setup() was given. */
#include "host.h"

host_t host;

enum {
    FORWARD,
    WORKSPACE_SIZE,
    APPEND,
    EXCHANGE,
    TENSOR_CLASS,
    EMPTY_LIKE,
    RECORDS_GRADIENTS,
    FLOAT32,
    WATCHERS,
    FORWARD_AD,
    MEMBERS,
    N_FORWARD_ARGUMENTS,
    N_ARGUMENTS
};

static PyObject *kept(PyObject *object) {
    Py_INCREF(object);
    return object;
}

/* Returns the table of functions in a capsule, or NULL with an exception. */
static const exchange_api_t *exchange_of(PyObject *capsule) {
    const exchange_api_t *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (api == NULL)
        return NULL;
    if (api->header.version.major == EXCHANGE_MAJOR && api->from_object != NULL)
        return api;
    PyErr_SetString(PyExc_ImportError, "the tensors' exchange API is another one");
    return NULL;
}

static bool make_names(void) {
    host.is_neg = PyUnicode_InternFromString("is_neg");
    host.requires_grad = PyUnicode_InternFromString("requires_grad");
    host.new_empty = PyUnicode_InternFromString("new_empty");
    host.current_level = PyUnicode_InternFromString("_current_level");
    return host.is_neg && host.requires_grad && host.new_empty && host.current_level;
}

/* Takes the number of the arguments of forward(), and of each that is one member (place, kind,
 * offset or flag). Returns false with an exception. */
static bool take_members(PyObject *members, PyObject *n_arguments) {
    const Py_ssize_t count = PyTuple_Size(members);
    host.n_arguments = (int32_t)PyLong_AsLong(n_arguments);
    for (Py_ssize_t i = 0; i < count && i < MAX_MEMBERS; i++) {
        int place = 0, kind = 0;
        unsigned long where = 0;
        if (!PyArg_ParseTuple(PyTuple_GetItem(members, i), "iik", &place, &kind, &where))
            return false;
        member_t *member = &host.members[i];
        member->place = place;
        member->kind = (char)kind;
        if (kind == '?')
            member->flag = (uint32_t)where;
        else
            member->offset = where;
    }
    host.n_members = (int32_t)count;
    if (count > MAX_MEMBERS)
        PyErr_Format(PyExc_ImportError, "forward() has %zd members, more than %d", count,
                     MAX_MEMBERS);
    return !PyErr_Occurred();
}

PyObject *host_setup(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != N_ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "setup() takes %d arguments", N_ARGUMENTS);
    *(void **)&host.forward = PyLong_AsVoidPtr(arguments[FORWARD]);
    *(void **)&host.workspace_size = PyLong_AsVoidPtr(arguments[WORKSPACE_SIZE]);
    *(void **)&host.append = PyLong_AsVoidPtr(arguments[APPEND]);
    host.exchange = exchange_of(arguments[EXCHANGE]);
    if (PyErr_Occurred() || !make_names() ||
        !take_members(arguments[MEMBERS], arguments[N_FORWARD_ARGUMENTS]))
        return NULL;
    host.tensor_class = kept(arguments[TENSOR_CLASS]);
    host.empty_like = kept(arguments[EMPTY_LIKE]);
    host.records_gradients = kept(arguments[RECORDS_GRADIENTS]);
    host.watchers = kept(arguments[WATCHERS]);
    host.forward_ad = kept(arguments[FORWARD_AD]);
    host.of_float32 = Py_BuildValue("{sO}", "dtype", arguments[FLOAT32]);
    if (host.of_float32 == NULL)
        return NULL;
    Py_RETURN_NONE;
}

/* Returns whether an object, of which this takes the reference, is true. An exception counts as
 * true: then the caller does without the extension. */
static bool is_true(PyObject *object) {
    const int truth = object == NULL ? -1 : PyObject_IsTrue(object);
    Py_XDECREF(object);
    return truth != 0;
}

bool host_is_plain(void) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(host.watchers); i++)
        if (is_true(PyObject_CallNoArgs(PyTuple_GetItem(host.watchers, i))))
            return false;
    PyObject *level = PyObject_GetAttr(host.forward_ad, host.current_level);
    const bool is_plain = level != NULL && PyLong_AsLong(level) < 0 && !PyErr_Occurred();
    Py_XDECREF(level);
    return is_plain;
}
