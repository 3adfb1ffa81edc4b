/*
 * Host and device code compute Philox4x32-10 here (Salmon, Moraes, Dror, Shaw: Parallel random
 * numbers, as easy as 1, 2, 3, SC 2011): a function of a counter and a key whose results are
 * independent random words.
 */
#ifndef FLASH_KERNELS_COMMON_PHILOX_H
#define FLASH_KERNELS_COMMON_PHILOX_H

#include "common/host_device.h"

#include <stdint.h>

typedef struct philox {
    uint32_t word[4];
} philox_t;

enum { PHILOX_ROUNDS = 10 };

/* The first two multiply words, and the others are added to the key in each round. */
#define PHILOX_EVEN       UINT64_C(0xd2511f53)
#define PHILOX_ODD        UINT64_C(0xcd9e8d57)
#define PHILOX_KEY_0_STEP 0x9e3779b9u
#define PHILOX_KEY_1_STEP 0xbb67ae85u

/* Returns the words of a counter. */
FLASH_HOST_DEVICE static inline philox_t philox_words(philox_t counter, uint32_t key_0,
                                                      uint32_t key_1) {
    philox_t c = counter;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t even = PHILOX_EVEN * c.word[0];
        const uint64_t odd = PHILOX_ODD * c.word[2];
        const philox_t next = {{(uint32_t)(odd >> 32) ^ c.word[1] ^ key_0, (uint32_t)odd,
                                (uint32_t)(even >> 32) ^ c.word[3] ^ key_1, (uint32_t)even}};
        c = next;
        key_0 += PHILOX_KEY_0_STEP;
        key_1 += PHILOX_KEY_1_STEP;
    }
    return c;
}

#endif
