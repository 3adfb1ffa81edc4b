/*
 * Host and device code agree on this for the kernel that transposes V of e4m3 ahead of an SM90
 * kernel that multiplies it as such. A block transposes SM90_TRANSPOSED_KEYS keys of a K/V head and
 * as many of its columns, in blocks of SM90_TRANSPOSE_THREADS threads, as many as
 * sm90_transpose_grid() says.
 */
#ifndef FLASH_KERNELS_SM90_TRANSPOSE_V_KERNEL_H
#define FLASH_KERNELS_SM90_TRANSPOSE_V_KERNEL_H

#include "common/host_device.h"
#include "common/params.h"

enum {
    SM90_TRANSPOSED_KEYS = 128, /* of a panel of the transposed V */
    SM90_TRANSPOSE_THREADS = 128,
    SM90_TRANSPOSED_ALIGNMENT = 16 /* bytes */
};

typedef struct sm90_transpose_params {
    flash_params_t problem;
    /* [batch, n_heads_kv, panels, d_head_v, SM90_TRANSPOSED_KEYS]: a panel is what an SM90 kernel
     * loads at a time, a block of keys, and has a row for each column of V. Zeros stand beyond a
     * sequence's last key. The order of keys is that of fp8/products.cuh. */
    uint8_t *transposed;
} sm90_transpose_params_t;

/* Counts the panels of a head. */
FLASH_HOST_DEVICE static inline int32_t sm90_transposed_panels(const flash_params_t *p) {
    return (int32_t)(((int64_t)p->seqlen_k + SM90_TRANSPOSED_KEYS - 1) / SM90_TRANSPOSED_KEYS);
}

/* Counts the blocks that share a panel. */
FLASH_HOST_DEVICE static inline int32_t sm90_transpose_columns(const flash_params_t *p) {
    return (p->d_head_v + SM90_TRANSPOSED_KEYS - 1) / SM90_TRANSPOSED_KEYS;
}

FLASH_HOST_DEVICE static inline int64_t sm90_transpose_grid(const flash_params_t *p) {
    return (int64_t)p->batch * p->n_heads_kv * sm90_transpose_columns(p) *
           sm90_transposed_panels(p);
}

#ifndef __CUDACC__
/* The host launches the kernel and never calls it. */
void flash_sm90_transpose_v(sm90_transpose_params_t params);
#endif

#endif
