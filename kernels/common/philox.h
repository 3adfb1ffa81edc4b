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

/* Returns the words of a counter. */
FLASH_HOST_DEVICE static inline philox_t philox_words(philox_t counter, uint32_t key_0,
                                                      uint32_t key_1) {
    philox_t c = counter;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t even = (uint64_t)0xd2511f53u * c.word[0];
        const uint64_t odd = (uint64_t)0xcd9e8d57u * c.word[2];
        const philox_t next = {{(uint32_t)(odd >> 32) ^ c.word[1] ^ key_0, (uint32_t)odd,
                                (uint32_t)(even >> 32) ^ c.word[3] ^ key_1, (uint32_t)even}};
        c = next;
        key_0 += 0x9e3779b9u;
        key_1 += 0xbb67ae85u;
    }
    return c;
}

#endif
