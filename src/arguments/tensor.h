/*
 * Checks of one tensor against the shape that the call gives it.
 */
#ifndef FLASH_TENSOR_H
#define FLASH_TENSOR_H

#include "flashattn.h"

#include <stdbool.h>

typedef struct tensor_shape {
    int64_t batch; /* 1 where the tensor is ragged */
    int64_t seq;
    int64_t longest_seq; /* of a sequence: that of a ragged tensor may be all that is known */
    int64_t heads;
    int64_t d_head;
    int64_t element_size; /* bytes */
    bool may_repeat;      /* a stride of 0 is meant, unless it is an output */
    bool is_output;
} tensor_shape_t;

bool tensor_is_empty(const tensor_shape_t *shape);

/* Requires data where there must be some, no negative stride, none that was forgotten, offsets
 * within an int64 of bytes, reserved fields zero. */
flash_status_t tensor_check(const char *name, const flash_tensor_t *tensor,
                            const tensor_shape_t *shape);

/* Requires the same of n such tensors that are stride elements apart. */
flash_status_t tensor_check_repeat(const char *name, const flash_tensor_t *tensor,
                                   const tensor_shape_t *shape, int64_t stride, int64_t n);

/* Requires that no two elements of the tensor share memory. */
flash_status_t tensor_check_output(const char *name, const flash_tensor_t *tensor,
                                   const tensor_shape_t *shape);

/* Refuses two checked tensors when the first row of one begins or ends in a row of the other: any
 * overlap of contiguous tensors, and whatever is computed in place. Never refuses tensors that
 * share no byte, such as rows that lie between the other's rows. */
flash_status_t tensor_check_apart(const char *name, const flash_tensor_t *tensor,
                                  const tensor_shape_t *shape, const char *other_name,
                                  const flash_tensor_t *other, const tensor_shape_t *other_shape);

#endif
