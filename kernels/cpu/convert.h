/*
 * This file converts one element of a tensor to and from fp32, at any alignment, on any CPU.
 * Narrowing rounds to nearest, ties to even; subnormals, infinities and NaN keep their kind. The
 * vector kernels have their own conversions.
 */
#ifndef FLASH_KERNELS_CPU_CONVERT_H
#define FLASH_KERNELS_CPU_CONVERT_H

#include "common/e4m3.h"
#include "common/key.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float fp32_from_bf16(uint16_t half) {
    return fp32_from_bits((uint32_t)half << 16);
}

static inline uint16_t bf16_from_fp32(float value) {
    const uint32_t bits = fp32_to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays NaN, and becomes quiet */
    const uint32_t half_ulp = 0x7fff + (bits >> 16 & 1);
    return (uint16_t)((bits + half_ulp) >> 16);
}

static inline float fp32_from_fp16(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) /* infinity, NaN */
        return fp32_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude < 0x400) { /* zero, subnormal: a multiple of 2^-24 */
        const float value = (float)magnitude * 0x1p-24f;
        return sign ? -value : value;
    }
    return fp32_from_bits(sign | ((magnitude << 13) + ((127 - 15) << 23)));
}

static inline uint16_t fp16_from_fp32(float value) {
    const uint32_t bits = fp32_to_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) /* a NaN stays NaN, and becomes quiet */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 rounds to multiples of 2^-24 */
        const float shifted = fp32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (fp32_to_bits(shifted) - 0x3f000000));
    }
    const uint32_t half_ulp = 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - ((127 - 15) << 23) + half_ulp) >> 13);
}

/* Only S.1111.111 is NaN. Shifted to fp16, the other codes are 2^8 times too small. */
static inline float fp32_from_e4m3(uint8_t code) {
    const uint16_t half = (uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7);
    return (code & 0x7f) == 0x7f ? fp32_from_fp16(half | 0x7e00) : fp32_from_fp16(half) * 0x1p8f;
}

/* An element of e4m3 as vectors load it (tiled/e4m3.h) times this is the element's value. */
static const float E4M3_UNIT = 0x1p8f;

static inline int64_t element_size(int32_t dtype) {
    return dtype_size(dtype);
}

/* Returns the address of data[index]. */
static inline const void *element_at(const void *data, int64_t index, int32_t dtype) {
    return (const char *)data + index * element_size(dtype);
}

static inline void *element_at_mutable(void *data, int64_t index, int32_t dtype) {
    return (char *)data + index * element_size(dtype);
}

/* An element of LATENT_E4M3, Q8_0 or Q4_0 is a byte, whose value follows from its token or block
 * (key_load()). */
static inline float element_load(const void *data, int64_t index, int32_t dtype) {
    const void *element = element_at(data, index, dtype);
    DTYPES_KNOWN(7);
    if (dtype == FLASH_DTYPE_FP32) {
        float value;
        memcpy(&value, element, sizeof value);
        return value;
    }
    if (dtype == FLASH_DTYPE_E4M3)
        return fp32_from_e4m3(*(const uint8_t *)element);
    uint16_t half;
    memcpy(&half, element, sizeof half);
    return dtype == FLASH_DTYPE_FP16 ? fp32_from_fp16(half) : fp32_from_bf16(half);
}

static inline void element_store(void *data, int64_t index, int32_t dtype, float value) {
    void *element = element_at_mutable(data, index, dtype);
    DTYPES_KNOWN(7);
    if (dtype == FLASH_DTYPE_FP32) {
        memcpy(element, &value, sizeof value);
        return;
    }
    if (dtype == FLASH_DTYPE_E4M3) {
        *(uint8_t *)element = e4m3_from_fp32(value);
        return;
    }
    const uint16_t half = dtype == FLASH_DTYPE_FP16 ? fp16_from_fp32(value) : bf16_from_fp32(value);
    memcpy(element, &half, sizeof half);
}

static inline float latent_scale(const void *token, int64_t column) {
    const char *scales = (const char *)token + LATENT_SCALES_AT;
    return element_load(scales, column / LATENT_GROUP, FLASH_DTYPE_FP32);
}

static inline float latent_load(const void *token, int64_t column) {
    if (column >= LATENT_CODES)
        return element_load((const char *)token + LATENT_ROTARY_AT, column - LATENT_CODES,
                            FLASH_DTYPE_BF16);
    return element_load(token, column, FLASH_DTYPE_E4M3) * latent_scale(token, column);
}

/* Returns the quantised block that has a column of a row. */
static inline const void *quant_block_at(const void *row, int64_t column, int32_t dtype) {
    return (const char *)row + column / FLASH_QUANT_BLOCK * quant_block_bytes(dtype);
}

/* Returns column `i` of a quantised block. */
static inline float quant_block_load(const void *block, int64_t i, int32_t dtype) {
    const uint8_t *elements = (const uint8_t *)block + QUANT_SCALE_BYTES;
    const float scale = element_load(block, 0, FLASH_DTYPE_FP16);
    if (dtype == FLASH_DTYPE_Q8_0)
        return scale * (float)(int8_t)elements[i];
    const uint8_t two = elements[i % (FLASH_QUANT_BLOCK / 2)];
    return scale * (float)((i < FLASH_QUANT_BLOCK / 2 ? two & 0xf : two >> 4) - Q4_0_ZERO);
}

/* Returns a column of a key whose first element has this index. */
static inline float key_load(const void *data, int64_t index, int64_t column, int32_t dtype) {
    const void *key = element_at(data, index, dtype);
    DTYPES_KNOWN(7);
    if (dtype == FLASH_DTYPE_LATENT_E4M3)
        return latent_load(key, column);
    if (has_quant_blocks(dtype))
        return quant_block_load(quant_block_at(key, column, dtype), column % FLASH_QUANT_BLOCK,
                                dtype);
    return element_load(key, column, dtype);
}

#endif
