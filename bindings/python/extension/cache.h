/* This file declares how the extension reads what a call says of a cache: its pages and scales. */
#ifndef FLASH_EXTENSION_CACHE_H
#define FLASH_EXTENSION_CACHE_H

#include "tensor.h"

/* The objects of a call that say where pages lie; each may be None. */
typedef struct {
    PyObject *table, *v_table, *indptr, *rows;
} page_objects_t;

bool cache_has_pages(const page_objects_t *of);

/* Reads pages for K [n_pages, page_size, n_heads_kv, d_head]; *room is how many keys a sequence can
 * have. On the CPU no row and no boundary leads beyond the table, whose length the C API does not
 * know. */
bool cache_read_pages(const page_objects_t *of, const tensor_t *k, int64_t batch,
                      flash_paging_t *paging, int64_t *room);

/* Reads float32 [batch, n_heads_kv] for each of two objects that is not None. */
bool cache_read_scales(PyObject *k_scale, PyObject *v_scale, int64_t batch, int64_t n_heads_kv,
                       int32_t device, bool records_gradients, flash_quant_t *quant);

#endif
