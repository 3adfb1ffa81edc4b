/*
 * The regions of a call are the tensors and arrays that it reads or writes. What it writes must be
 * apart from everything else.
 */
#ifndef FLASH_ARGUMENTS_REGIONS_H
#define FLASH_ARGUMENTS_REGIONS_H

#include "arguments/tensor.h"
#include "flashattn.h"

enum { REGIONS_MOST = 32 }; /* no call has more */

typedef struct region {
    const char *name;
    flash_tensor_t tensor;
    tensor_shape_t shape; /* is_output: the call writes it */
    int32_t sharing;      /* regions of the same number may overlap; 0: none */
} region_t;

typedef struct regions {
    region_t list[REGIONS_MOST];
    int32_t n;
} regions_t;

/* Adds a checked tensor. `name` must live as long as *regions. */
void regions_add(regions_t *regions, const char *name, const flash_tensor_t *tensor,
                 const tensor_shape_t *shape);

/* Adds a tensor that may overlap others of the same number, which is not 0. */
void regions_add_sharing(regions_t *regions, const char *name, const flash_tensor_t *tensor,
                         const tensor_shape_t *shape, int32_t sharing);

/* Adds an array of n elements that the call reads. One that is not given, or without elements, is
 * nowhere. */
void regions_add_array(regions_t *regions, const char *name, const void *data, int64_t n,
                       int64_t element_size);

/* As above, of an array that the call writes. */
void regions_add_output_array(regions_t *regions, const char *name, void *data, int64_t n,
                              int64_t element_size);

/* Refuses a region that is written and overlaps another one, as tensor_check_apart() does. */
flash_status_t regions_check(const regions_t *regions);

#endif
