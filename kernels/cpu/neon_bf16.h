/*
 * The NEON_BF16 family multiplies pairs of bf16 (FEAT_BF16 of AArch64). The rest is NEON's.
 */
#ifndef FLASH_KERNELS_CPU_NEON_BF16_H
#define FLASH_KERNELS_CPU_NEON_BF16_H

#include "cpu/neon_vectors.h"
#include "cpu/tuning.h"

#define VEC_DOTS_BF16             1
#define VEC_STEP_BYTES            NEON_STEP_BYTES
#define VEC_SINGLE_ROW_STEP_BYTES 0

/* BFDOT takes subnormal elements for zero and rounds each sum to odd (Arm ARM). */
ALWAYS_INLINE vec_t vec_dot_bf16(vec_t a, vec_t b, vec_t c) {
    return vbfdotq_f32(c, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
}

ALWAYS_INLINE vec_t vec_load_bf16(const void *from, int n) {
    if (n >= 2 * VEC_WIDTH)
        return vec_load(FLASH_DTYPE_FP32, from);
    uint8_t bytes[VEC_WIDTH * sizeof(float)] = {0};
    memcpy(bytes, from, (size_t)n * 2);
    return vec_load(FLASH_DTYPE_FP32, bytes);
}

ALWAYS_INLINE void vec_zip_bf16(vec_t a, vec_t b, vec_t zipped[2]) {
    const uint16x8_t a_bits = vreinterpretq_u16_f32(a), b_bits = vreinterpretq_u16_f32(b);
    zipped[0] = vreinterpretq_f32_u16(vzip1q_u16(a_bits, b_bits));
    zipped[1] = vreinterpretq_f32_u16(vzip2q_u16(a_bits, b_bits));
}

ALWAYS_INLINE void vec_mix_bf16(vec_t a, vec_t b, vec_t mixed[2]) {
    vec_zip_bf16(a, b, mixed);
}

ALWAYS_INLINE void vec_unmix(vec_t mixed[2]) {
    (void)mixed;
}

ALWAYS_INLINE void vec_store_bf16(void *to, vec_t x) {
    vst1_u8(to, vreinterpret_u8_bf16(vcvt_bf16_f32(x)));
}

ALWAYS_INLINE vec_t vec_bf16_along(vec_t a, vec_t b) {
    return vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a), b));
}

ALWAYS_INLINE vec_t vec_bf16_across(vec_t a, vec_t b) {
    const uint16x8_t low = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(a));
    const uint16x8_t high = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(b));
    return vreinterpretq_f32_u16(vzip1q_u16(low, high));
}

#include "cpu/tiled.h"

ALWAYS_INLINE void neon_bf16_forward(const flash_config_t *config, const flash_params_t *params,
                                     const cpu_task_t *task, void *scratch) {
    tiled_forward(config, params, task, scratch);
}

#endif
