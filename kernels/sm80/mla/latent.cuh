/*
 * Latent tokens (common/latent.h) land in three parts:
 *
 *     | elements of e4m3, B_c x 512 | bf16, B_c x 128 bytes | scales, of each warp B_c |
 *
 * A warp's columns have one scale in each key, and lanes with the same key read it together. Of the
 * columns that are bf16 already a thread has one chunk, which it moves to the last panel.
 */
#ifndef FLASH_KERNELS_SM80_MLA_LATENT_CUH
#define FLASH_KERNELS_SM80_MLA_LATENT_CUH

#include "common/latent_elements.cuh"
#include "common/ptx/async_copy.cuh"
#include "common/ptx/shared_memory.cuh"
#include "sm80/mla/landing.cuh"

/* ---- Scales ---- */

/* Returns the place of the scale of the warp's columns in a key. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t landed_scale(uint32_t landing, int key) {
    return landing + sm80_mla_landed_columns_bytes(&C) +
           (warp_number() * C.B_c + key) * (int)sizeof(float);
}

/* Starts to copy the scale of the warp's columns in a key, in one of the lanes that have the key.
 * token: where the key begins. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_scale(uint32_t landing, int key, const char *token,
                                                  bool exists) {
    static_assert(LATENT_GROUP % warp_columns<C> == 0, "a warp's columns have one scale");
    const int group = warp_number() * warp_columns<C> / LATENT_GROUP;
    if (pass_chunk() == 0)
        async_copy_word_or_zero(landed_scale<C>(landing, key),
                                token + LATENT_SCALES_AT + group * (int)sizeof(float), exists);
}

/* These are the scales of the lane's keys; of other types none. */
template <flash_config_t C> struct pass_scales { float of[passes<C>]; };

template <flash_config_t C>
static __device__ __forceinline__ pass_scales<C> load_scales(uint32_t landing) {
    pass_scales<C> scales = {};
    if constexpr (is_latent<C>)
#pragma unroll
        for (int pass = 0; pass < passes<C>; ++pass)
            scales.of[pass] = __uint_as_float(
                shared_load_32(landed_scale<C>(landing, pass * pass_keys + pass_key())));
    return scales;
}

/* ---- Columns of bf16 ---- */

/* Returns the key of the step of which the thread has a chunk; B_c and more: it has none. */
static __device__ __forceinline__ int rotary_key() {
    return (warp_number() * DECODE_WARP_THREADS + lane_number()) / line_chunks;
}

/* Starts to copy the thread's chunk. token: where its key begins. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_rotary(uint32_t landing, int key, const char *token,
                                                   bool exists) {
    static_assert(C.B_c * line_chunks <= decode_block_threads(&C), "a chunk each");
    const int chunk = lane_number() % line_chunks;
    if (key < C.B_c)
        async_copy_or_zero(landed_chunk<C>(landing, own_chunks<C>),
                           token + LATENT_ROTARY_AT + chunk * DECODE_CHUNK_BYTES, exists);
}

/* Moves the thread's chunk to the last panel of a stage. */
template <flash_config_t C>
static __device__ __forceinline__ void move_rotary(uint32_t panel, uint32_t landing) {
    const int key = rotary_key();
    if (key < C.B_c)
        shared_store(panel + chunk_offset(key, lane_number() % line_chunks),
                     shared_load(landed_chunk<C>(landing, own_chunks<C>)));
}

#endif
