/*
 * This file describes DLPack's C exchange API, version 1.3 of https://github.com/dmlc/dlpack: the
 * table of functions by which a class of tensors tells where its elements lie.
 */
#ifndef FLASH_EXTENSION_EXCHANGE_H
#define FLASH_EXTENSION_EXCHANGE_H

#include <stdint.h>

enum { EXCHANGE_MAJOR = 1, EXCHANGE_CPU = 1, EXCHANGE_CUDA = 2 };
enum {
    EXCHANGE_INT = 0,
    EXCHANGE_UINT = 1,
    EXCHANGE_FLOAT = 2,
    EXCHANGE_BFLOAT = 4,
    EXCHANGE_E4M3FN = 10
};

typedef struct {
    int32_t type; /* EXCHANGE_CPU ... */
    int32_t id;
} exchange_device_t;

typedef struct {
    uint8_t code; /* EXCHANGE_INT ... */
    uint8_t bits;
    uint16_t lanes;
} exchange_dtype_t;

typedef struct {
    void *data;
    exchange_device_t device;
    int32_t ndim;
    exchange_dtype_t dtype;
    int64_t *shape;
    int64_t *strides; /* in elements */
    uint64_t byte_offset;
} exchange_tensor_t;

typedef struct {
    uint32_t major, minor;
} exchange_version_t;

/* A tensor with an owner, whom its deleter tells that the tensor is no longer used. */
typedef struct exchange_managed {
    exchange_version_t version;
    void *context;
    void (*deleter)(struct exchange_managed *);
    uint64_t flags;
    exchange_tensor_t tensor;
} exchange_managed_t;

typedef struct exchange_header {
    exchange_version_t version;
    struct exchange_header *previous;
} exchange_header_t;

/* Each function returns 0, or -1 with an exception of Python set. */
typedef struct {
    exchange_header_t header;
    int (*allocate)(exchange_tensor_t *like, exchange_managed_t **tensor, void *context,
                    void (*fail)(void *context, const char *kind, const char *message));
    int (*managed_from_object)(void *object, exchange_managed_t **tensor);
    int (*managed_to_object)(exchange_managed_t *tensor, void **object);
    int (*from_object)(void *object, exchange_tensor_t *tensor); /* may be NULL */
    int (*current_stream)(int32_t device_type, int32_t device, void **stream);
} exchange_api_t;

#endif
