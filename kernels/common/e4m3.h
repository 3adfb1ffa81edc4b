/*
 * This file rounds fp32 to e4m3, in code that hosts and devices share: where a device has no
 * instruction for it, and where it has one, too, both give the same codes.
 */
#ifndef FLASH_KERNELS_COMMON_E4M3_H
#define FLASH_KERNELS_COMMON_E4M3_H

#include "common/host_device.h"

#include <stdint.h>
#include <string.h>

FLASH_HOST_DEVICE static inline uint32_t fp32_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FLASH_HOST_DEVICE static inline float fp32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to the nearest code, the even one of two. What is further than 448 from 0 becomes 448 or
 * -448. Below 2^-6, codes are multiples of 2^-9. It has no branches, so that loops over it can
 * become vectors. */
FLASH_HOST_DEVICE static inline uint8_t e4m3_from_fp32(float value) {
    const uint32_t bits = fp32_to_bits(value);
    const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    const uint32_t cut = magnitude < 0x43e00000 ? magnitude : 0x43e00000;
    const float shifted = fp32_from_bits(cut) + 0x1p14f; /* rounds to multiples of 2^-9 */
    const uint32_t small = fp32_to_bits(shifted) - fp32_to_bits(0x1p14f);
    const uint32_t half_ulp = 0x7ffff + (cut >> 20 & 1);
    const uint32_t large = (cut - ((127 - 7) << 23) + half_ulp) >> 20;
    const uint32_t code = sign | (cut < 0x3c800000 ? small : large);
    return (uint8_t)(magnitude > 0x7f800000 ? 0x7f : code);
}

#endif
