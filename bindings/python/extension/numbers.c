/* This file reads numbers and flags. */
#include "numbers.h"

#include <float.h>

static const double ROUNDS_TO_ZERO = 0x1p-150; /* float32 rounds this and smaller values to 0 */

bool read_integer(PyObject *object, int64_t *value) {
    *value = PyLong_AsLongLong(object);
    return *value != -1 || !PyErr_Occurred();
}

bool read_count(PyObject *object, int32_t *value) {
    int64_t number = 0;
    if (!read_integer(object, &number) || number < 0 || number > INT32_MAX)
        return false;
    *value = (int32_t)number;
    return true;
}

bool read_flag(PyObject *object, uint32_t flag, uint32_t *flags) {
    if (PyUnicode_Check(object) || PyBytes_Check(object))
        return false; /* "no" would be as true as "yes" */
    const int truth = PyObject_IsTrue(object);
    if (truth > 0)
        *flags |= flag;
    return truth >= 0;
}

bool read_positive(PyObject *object, bool none_is_absent, float *value) {
    *value = 0;
    if (none_is_absent && object == Py_None)
        return true;
    if (!PyFloat_Check(object) && !PyLong_Check(object))
        return false; /* a tensor may require a gradient, which a number has not */
    const double number = PyFloat_AsDouble(object);
    if (number == 0 && !none_is_absent)
        return true;
    *value = (float)number;
    return number > ROUNDS_TO_ZERO && number <= FLT_MAX;
}
