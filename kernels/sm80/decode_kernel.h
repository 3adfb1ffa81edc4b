/*
 * Host and device code agree on this for every SM80_DECODE kernel: block and shared memory sizes.
 * It is plain C, and constant expressions in CUDA C++.
 *
 * A kernel is an `extern "C" __global__ void name(const __grid_constant__ sm80_decode_params_t)`.
 * common/decode.h says which block computes what.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_KERNEL_H
#define FLASH_KERNELS_SM80_DECODE_KERNEL_H

#include "common/decode.h"
#include "common/operand.h"
#include "common/rules.h"

enum {
    DECODE_LINE_BYTES = 128, /* a line of shared memory */
    DECODE_MOST_HEADS_PER_BLOCK = 4,
    DECODE_STATIC_SHARED_BYTES = 1024, /* at most */
    DECODE_REGISTERS_OF_SM = 65536,
    DECODE_SHARED_BYTES_MAX = 226 * 1024,
    DECODE_SHARED_BYTES_OF_SM =
        227 * 1024 /* of compute capability 9.0, without the system's part */
};

typedef decode_params_t sm80_decode_params_t;

/* A slot holds B_c keys of K or of V for one warp; a stage is a slot of each. */
DECODE_CONSTANT int32_t decode_slot_bytes(const flash_config_t *c) {
    return c->B_c * c->d_head * dtype_size(c->dtype);
}

DECODE_CONSTANT int32_t decode_shared_bytes(const flash_config_t *c) {
    return c->n_warps * c->n_stages * 2 * decode_slot_bytes(c);
}

/* Counts the blocks that share a multiprocessor of 9.0, by which the compiler assigns registers. */
DECODE_CONSTANT int32_t decode_blocks_per_sm(const flash_config_t *c) {
    const int32_t by_memory =
        DECODE_SHARED_BYTES_OF_SM / (decode_shared_bytes(c) + DECODE_STATIC_SHARED_BYTES);
    const int32_t by_registers = DECODE_REGISTERS_OF_SM / (168 * decode_block_threads(c));
    return by_memory < by_registers ? by_memory : by_registers > 0 ? by_registers : 1;
}

/* The rules among fields (common/rules.h). */
#define SM80_DECODE_FWD_RULES(X, c)                                                                \
    X(decode_shared_bytes(c) <= DECODE_SHARED_BYTES_MAX,                                           \
      "d_head %d, B_c %d, n_warps %d and n_stages %d take %d bytes of shared memory: at most %d",  \
      (c)->d_head, (c)->B_c, (c)->n_warps, (c)->n_stages, decode_shared_bytes(c),                  \
      DECODE_SHARED_BYTES_MAX)

#endif
