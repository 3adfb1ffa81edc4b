/* This file reads tensors by DLPack's C exchange API, which copies and allocates nothing. */
#include "tensor.h"

static const int64_t nothing = 0; /* where tensors without elements begin */

static int32_t dtype_of(exchange_dtype_t type) {
    if (type.lanes != 1)
        return 0;
    switch (type.code << 8 | type.bits) {
    case EXCHANGE_FLOAT << 8 | 16:
        return FLASH_DTYPE_FP16;
    case EXCHANGE_FLOAT << 8 | 32:
        return FLASH_DTYPE_FP32;
    case EXCHANGE_BFLOAT << 8 | 16:
        return FLASH_DTYPE_BF16;
    case EXCHANGE_E4M3FN << 8 | 8:
        return FLASH_DTYPE_E4M3;
    case EXCHANGE_INT << 8 | 32:
        return TENSOR_INT32;
    case EXCHANGE_INT << 8 | 64:
        return TENSOR_INT64;
    default:
        return 0;
    }
}

bool tensor_read(PyObject *object, tensor_t *tensor) {
    exchange_tensor_t found;
    if ((PyObject *)Py_TYPE(object) != host.tensor_class ||
        host.exchange->from_object(object, &found) != 0)
        return false;
    const bool is_on_cpu = found.device.type == EXCHANGE_CPU;
    *tensor = (tensor_t){
        .object = object,
        .data = found.data,
        .shape = found.shape,
        .strides = found.strides,
        .n_axes = found.ndim,
        .dtype = dtype_of(found.dtype),
        .device = is_on_cpu ? ON_CPU : found.device.id,
    };
    return tensor->dtype != 0 && found.byte_offset == 0 &&
           (is_on_cpu || found.device.type == EXCHANGE_CUDA);
}

static bool is_false(PyObject *object) {
    const bool result = object == Py_False;
    Py_XDECREF(object);
    return result;
}

bool tensor_read_values(PyObject *object, bool records_gradients, tensor_t *tensor) {
    if (!tensor_read(object, tensor))
        return false;
    if (!is_false(PyObject_CallMethodObjArgs(object, host.is_neg, NULL)))
        return false;
    return !records_gradients || is_false(PyObject_GetAttr(object, host.requires_grad));
}

bool tensor_is(const tensor_t *tensor, int32_t dtype, int32_t n_axes, int32_t device) {
    return tensor->dtype == dtype && tensor->n_axes == n_axes && tensor->device == device;
}

int64_t tensor_last(const tensor_t *tensor, int32_t from_the_end) {
    return tensor->shape[tensor->n_axes - from_the_end];
}

bool tensor_has_elements(const tensor_t *tensor) {
    for (int32_t i = 0; i < tensor->n_axes; i++)
        if (tensor->shape[i] == 0)
            return false;
    return true;
}

bool tensor_has_contiguous_rows(const tensor_t *tensor) {
    return tensor->strides[tensor->n_axes - 1] == 1 || tensor_last(tensor, 1) <= 1 ||
           !tensor_has_elements(tensor);
}

bool tensor_has_contiguous_values(const tensor_t *tensor) {
    return tensor->strides[0] == 1 || tensor->shape[0] <= 1;
}

const void *tensor_address(const tensor_t *tensor) {
    return tensor->data != NULL ? tensor->data : &nothing;
}

int64_t tensor_used_stride(const tensor_t *tensor, int32_t axis) {
    return tensor->shape[axis] > 1 ? tensor->strides[axis] : 0;
}

flash_tensor_t tensor_of_api(const tensor_t *tensor, bool is_flat) {
    const int64_t *strides = tensor->strides + (is_flat ? 0 : 1);
    return (flash_tensor_t){
        .data = tensor->data,
        .stride_batch = is_flat ? 0 : tensor->strides[0],
        .stride_seq = strides[0],
        .stride_head = strides[1],
        .dtype = tensor->dtype,
    };
}

static bool read_integers(PyObject *object, int32_t dtype, int64_t count, int32_t device,
                          const void **address) {
    tensor_t tensor;
    *address = NULL;
    if (object == Py_None)
        return true;
    if (!tensor_read(object, &tensor) || !tensor_is(&tensor, dtype, 1, device))
        return false;
    if (tensor.shape[0] != count || !tensor_has_contiguous_values(&tensor))
        return false;
    *address = tensor_address(&tensor);
    return true;
}

bool tensor_read_int32(PyObject *object, int64_t count, int32_t device, const int32_t **address) {
    return read_integers(object, TENSOR_INT32, count, device, (const void **)address);
}

bool tensor_read_int64(PyObject *object, int64_t count, int32_t device, const int64_t **address) {
    return read_integers(object, TENSOR_INT64, count, device, (const void **)address);
}
