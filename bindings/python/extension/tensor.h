/*
 * This file declares how the extension reads torch's tensors. A function that returns false, or 0
 * for an address, has found something that the extension does not serve: the caller gives the call
 * up, and the package's own code serves or refuses it.
 */
#ifndef FLASH_EXTENSION_TENSOR_H
#define FLASH_EXTENSION_TENSOR_H

#include "host.h"

enum { ON_CPU = -1, TENSOR_INT32 = -32, TENSOR_INT64 = -64 };

typedef struct {
    PyObject *object;
    void *data;
    const int64_t *shape, *strides; /* of the tensor itself: they last as long as it does */
    int32_t n_axes;
    int32_t dtype;  /* FLASH_DTYPE_..., or TENSOR_... */
    int32_t device; /* the number of a CUDA device, or ON_CPU */
} tensor_t;

/* Reads a tensor of torch's own class. */
bool tensor_read(PyObject *object, tensor_t *tensor);

/* Reads a tensor of numbers, whose values are those in memory, and which needs no derivative. */
bool tensor_read_values(PyObject *object, bool records_gradients, tensor_t *tensor);

/* Says whether a tensor has this type, this number of axes, and lies on this device. */
bool tensor_is(const tensor_t *tensor, int32_t dtype, int32_t n_axes, int32_t device);

int64_t tensor_last(const tensor_t *tensor, int32_t from_the_end);
bool tensor_has_elements(const tensor_t *tensor);
bool tensor_has_contiguous_rows(const tensor_t *tensor);
bool tensor_has_contiguous_values(const tensor_t *tensor); /* of one axis */

/* Returns the address of a tensor's elements, of which it may have none. */
const void *tensor_address(const tensor_t *tensor);

/* Returns a stride, 0 along an axis of at most one element. */
int64_t tensor_used_stride(const tensor_t *tensor, int32_t axis);

/* Returns the C API's struct of a tensor [batch, seq, head, d_head], flat: without the batch. */
flash_tensor_t tensor_of_api(const tensor_t *tensor, bool is_flat);

/* Reads `count` values of int32 (int64: tensor_read_int64()) that an object, or None, stands for;
 * *address is NULL for None. */
bool tensor_read_int32(PyObject *object, int64_t count, int32_t device, const int32_t **address);
bool tensor_read_int64(PyObject *object, int64_t count, int32_t device, const int64_t **address);

#endif
