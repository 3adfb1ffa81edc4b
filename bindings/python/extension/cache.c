/* This file reads pages and scales. */
#include "cache.h"

bool cache_has_pages(const page_objects_t *of) {
    return of->table != Py_None || of->v_table != Py_None || of->indptr != Py_None ||
           of->rows != Py_None;
}

static bool read_table(PyObject *object, int32_t n_axes, int32_t device, tensor_t *table) {
    return tensor_read(object, table) && tensor_is(table, TENSOR_INT32, n_axes, device) &&
           tensor_has_contiguous_rows(table);
}

/* Says whether the table of V has the shape and the strides of K's. */
static bool is_alike(const tensor_t *v_table, const tensor_t *table) {
    for (int32_t i = 0; i < table->n_axes; i++)
        if (v_table->shape[i] != table->shape[i] ||
            tensor_used_stride(v_table, i) != tensor_used_stride(table, i))
            return false;
    return true;
}

/* Reads the rows of a table: *n_ids for each, paging->page_table_stride apart. */
static bool read_rows(const tensor_t *table, bool has_rows, int64_t batch, flash_paging_t *paging,
                      int64_t *n_ids) {
    *n_ids = table->shape[1];
    paging->page_table_stride = table->shape[0] > 1 ? table->strides[0] : *n_ids;
    return paging->page_table_stride >= *n_ids && (has_rows || table->shape[0] >= batch);
}

static bool ends_lie_within(const flash_paging_t *paging, const tensor_t *table, int64_t batch) {
    if (paging->page_indptr != NULL && paging->page_indptr[batch] > table->shape[0])
        return false;
    for (int64_t b = 0; paging->page_rows != NULL && b < batch; b++)
        if (paging->page_rows[b] >= table->shape[0])
            return false;
    for (int64_t b = 0; paging->page_rows64 != NULL && b < batch; b++)
        if (paging->page_rows64[b] >= table->shape[0])
            return false;
    return true;
}

static bool read_tables(const page_objects_t *of, int32_t device, int64_t batch,
                        flash_paging_t *paging, int64_t *n_ids) {
    const bool is_flat = of->indptr != Py_None;
    tensor_t table, v_table;
    if (!read_table(of->table, is_flat ? 1 : 2, device, &table))
        return false;
    paging->page_table = tensor_address(&table);
    if (of->v_table != Py_None) {
        if (!read_table(of->v_table, table.n_axes, device, &v_table) || !is_alike(&v_table, &table))
            return false;
        paging->v_page_table = tensor_address(&v_table);
    }
    *n_ids = table.shape[0];
    if (!is_flat && !read_rows(&table, of->rows != Py_None, batch, paging, n_ids))
        return false;
    return device != ON_CPU || ends_lie_within(paging, &table, batch);
}

/* Reads page_rows, of int32 or of int64. */
static bool read_page_rows(PyObject *object, int64_t batch, int32_t device,
                           flash_paging_t *paging) {
    return tensor_read_int32(object, batch, device, &paging->page_rows) ||
           tensor_read_int64(object, batch, device, &paging->page_rows64);
}

bool cache_read_pages(const page_objects_t *of, const tensor_t *k, int64_t batch,
                      flash_paging_t *paging, int64_t *room) {
    int64_t n_ids = 1;
    *paging = (flash_paging_t)FLASH_PAGING_INIT;
    paging->n_pages = k->shape[0];
    paging->page_size = k->shape[1];
    if (!tensor_read_int32(of->indptr, batch + 1, k->device, &paging->page_indptr) ||
        !read_page_rows(of->rows, batch, k->device, paging))
        return false;
    if (of->table == Py_None) {
        if (of->indptr != Py_None || of->v_table != Py_None)
            return false;
    } else if (!read_tables(of, k->device, batch, paging, &n_ids)) {
        return false;
    }
    *room = INT32_MAX;
    if (paging->page_size == 0 || n_ids <= INT32_MAX / paging->page_size)
        *room = n_ids * paging->page_size;
    return true;
}

static bool read_scale(PyObject *object, int64_t batch, int64_t n_heads_kv, int32_t device,
                       bool records_gradients, tensor_t *scale) {
    return tensor_read_values(object, records_gradients, scale) &&
           tensor_is(scale, FLASH_DTYPE_FP32, 2, device) && scale->shape[0] == batch &&
           scale->shape[1] == n_heads_kv;
}

bool cache_read_scales(PyObject *k_scale, PyObject *v_scale, int64_t batch, int64_t n_heads_kv,
                       int32_t device, bool records_gradients, flash_quant_t *quant) {
    tensor_t scale;
    *quant = (flash_quant_t)FLASH_QUANT_INIT;
    if (k_scale != Py_None) {
        if (!read_scale(k_scale, batch, n_heads_kv, device, records_gradients, &scale))
            return false;
        quant->k_scale = tensor_address(&scale);
        quant->k_scale_stride_batch = tensor_used_stride(&scale, 0);
        quant->k_scale_stride_head = tensor_used_stride(&scale, 1);
    }
    if (v_scale != Py_None) {
        if (!read_scale(v_scale, batch, n_heads_kv, device, records_gradients, &scale))
            return false;
        quant->v_scale = tensor_address(&scale);
        quant->v_scale_stride_batch = tensor_used_stride(&scale, 0);
        quant->v_scale_stride_head = tensor_used_stride(&scale, 1);
    }
    return true;
}
