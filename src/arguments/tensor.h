/*
 * These functions check a tensor against the shape that the call gives it.
 */
#ifndef FLASH_TENSOR_H
#define FLASH_TENSOR_H

#include "flashattn.h"
#include "kernels/common/params.h"

#include <stdbool.h>

typedef struct tensor_shape {
    int64_t batch; /* 1 if the tensor is ragged */
    int64_t seq;
    int64_t longest_seq; /* tokens of a sequence, at most; for a ragged tensor often all that is
                            known */
    int64_t heads;
    int64_t d_head;
    int64_t element_size; /* bytes */
    bool may_repeat;      /* strides may be 0, except in an output */
    bool is_output;
    bool is_array; /* it is an array with members of the call's struct: "lse", "lse_stride_seq" */
} tensor_shape_t;

/* Several tensors of one shape, or columns of one, lie at equal distances. */
typedef struct tensor_repeat {
    const char *name; /* of the member that is the stride */
    int64_t stride;   /* elements from one to the next */
    int64_t n;
} tensor_repeat_t;

/* Numbers of rows, such as LSE, are treated as a tensor whose rows have one element; these return
 * it, and its shape beside that of Q or O. */
flash_tensor_t tensor_of_rows(const void *numbers, const flash_strides_t *strides,
                              const tensor_shape_t *of);
tensor_shape_t tensor_shape_of_rows(const tensor_shape_t *of);

bool tensor_is_empty(const tensor_shape_t *shape);

/* Requires data unless the tensor is empty, no negative stride, no stride of 0 by mistake, offsets
 * within an int64 of bytes, and reserved fields of zero. */
flash_status_t tensor_check(const char *name, const flash_tensor_t *tensor,
                            const tensor_shape_t *shape);

/* Requires the same of several such tensors, and of the stride between them. */
flash_status_t tensor_check_repeat(const char *name, const flash_tensor_t *tensor,
                                   const tensor_shape_t *shape, const tensor_repeat_t *repeat);

/* Requires that no two elements of the tensor share memory. */
flash_status_t tensor_check_output(const char *name, const flash_tensor_t *tensor,
                                   const tensor_shape_t *shape);

/* Refuses two checked tensors when the first row of one shares a byte with the other. That finds
 * every overlap of contiguous tensors, and whatever is computed in place. Tensors that share no
 * byte are never refused, even if their rows lie between each other's. */
flash_status_t tensor_check_apart(const char *name, const flash_tensor_t *tensor,
                                  const tensor_shape_t *shape, const char *other_name,
                                  const flash_tensor_t *other, const tensor_shape_t *other_shape);

/* Says whether both have the same elements at the same addresses, so that one may be computed in
 * place of the other, row by row. */
bool tensor_is_same(const flash_tensor_t *a, const tensor_shape_t *a_shape, const flash_tensor_t *b,
                    const tensor_shape_t *b_shape);

/* Returns the strides of a tensor of shape [batch, seq, heads]. A ragged tensor keeps its stride of
 * tokens, because its number of tokens may lie in data that has not been read. */
flash_strides_t tensor_strides(const flash_tensor_t *tensor, bool ragged, const int64_t shape[3]);

/* Returns the strides of a pool of pages. With page_size 1 tokens are as far apart as pages. */
flash_strides_t tensor_pool_strides(const flash_tensor_t *tensor, const flash_pages_t *pages,
                                    int64_t n_heads);

#endif
