/*
 * This file reads the attributes of a call from XLA, each by its name. One that is unknown is
 * refused, since a newer program may mean something by it.
 */
#include "xla/attributes.h"

#include "core/status.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    XLA_FFI_DataType dtype;
    size_t offset;
} attribute_t;

#define INTEGER(name)                                                                              \
    { #name, XLA_FFI_DataType_S64, offsetof(attributes_t, name) }
#define REAL(name)                                                                                 \
    { #name, XLA_FFI_DataType_F32, offsetof(attributes_t, name) }

static const attribute_t LIST[] = {
    /* in the order of their names */
    INTEGER(attention_chunk),
    INTEGER(diagonal_offset),
    INTEGER(flags),
    INTEGER(k_dtype),
    INTEGER(mask_flags),
    INTEGER(mask_keys),
    INTEGER(n_multiprocessors),
    INTEGER(operands),
    INTEGER(seqlen_k),
    INTEGER(seqlen_q),
    REAL(softcap),
    REAL(softmax_scale),
    INTEGER(v_columns),
    INTEGER(v_dtype),
    INTEGER(window_left),
    INTEGER(window_right),
};

static int compare_name(const void *key, const void *entry) {
    const XLA_FFI_ByteSpan *name = key;
    const char *other = ((const attribute_t *)entry)->name;
    const int difference = strncmp(name->ptr, other, name->len);
    return difference != 0 || other[name->len] == '\0' ? difference : -1;
}

static flash_status_t read_attribute(const XLA_FFI_ByteSpan *name, XLA_FFI_AttrType type,
                                     const void *value, attributes_t *attributes) {
    const attribute_t *found =
        bsearch(name, LIST, sizeof LIST / sizeof LIST[0], sizeof LIST[0], compare_name);
    FLASH_REQUIRE(found != NULL, FLASH_ERROR_UNSUPPORTED,
                  "the attribute %.*s is unknown to this library, version %s", (int)name->len,
                  name->ptr, flash_version());
    const XLA_FFI_Scalar *scalar = value;
    FLASH_REQUIRE(type == XLA_FFI_AttrType_SCALAR && scalar->dtype == found->dtype,
                  FLASH_ERROR_INVALID_ARGUMENT, "the attribute %s is not a scalar of %s",
                  found->name, found->dtype == XLA_FFI_DataType_F32 ? "float32" : "int64");
    const size_t size = found->dtype == XLA_FFI_DataType_F32 ? sizeof(float) : sizeof(int64_t);
    memcpy((char *)attributes + found->offset, scalar->value, size);
    return FLASH_SUCCESS;
}

flash_status_t attributes_read(const XLA_FFI_Attrs *given, attributes_t *attributes) {
    *attributes = (attributes_t){0};
    for (int64_t i = 0; i < given->size; i++)
        FLASH_TRY(read_attribute(given->names[i], given->types[i], given->attrs[i], attributes));
    return FLASH_SUCCESS;
}
