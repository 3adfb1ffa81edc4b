/*
 * The converter makes bf16 of latent tokens: scale * element, rounded to fp32 and then to bf16.
 * What is bf16 already, the last 64 columns, arrives where it stays. The places of chunks are those
 * of load/convert_block.cuh:
 *
 *     panel      | 0 | 1 | 2 | 3      | 4         | 5         | 6         | 7         | 8       |
 *     arrives    |   |   |   | scales | 0 ... 127 | 128 ...   | 256 ...   | 384 ...   | 512 ... |
 *     leaves     | columns 0 ... 511, 64 in each panel                                |         |
 *
 * A lane has a chunk of sixteen columns, all of one scale, of each panel in the same rows. It keeps
 * the scales of these rows in registers.
 */
#ifndef FLASH_KERNELS_SM90_HALVES_CONVERT_LATENT_CUH
#define FLASH_KERNELS_SM90_HALVES_CONVERT_LATENT_CUH

#include "common/latent_elements.cuh"
#include "sm90/halves/state.cuh"
#include "sm90/load/convert_block.cuh"

/* These are the scales of the lane's rows; none, unless K is of latent tokens. */
template <flash_config_t C> struct row_scales {
    float of[is_latent<C> ? lane_chunks<C> : 1][LATENT_CODES / LATENT_GROUP];
};

/* Loads the scales of the lane's rows of the block in the stage at `shared`, before any lane of the
 * warp stores elements over them. */
template <flash_config_t C>
static __device__ __forceinline__ row_scales<C> load_scales(uint32_t shared) {
    row_scales<C> scales = {};
    if constexpr (is_latent<C>) {
        const int lane = threadIdx.x % warp_threads;
        const int warp = threadIdx.x / warp_threads % warpgroup_warps;
        const int row_in_eight = lane / 8 ^ lane / 4 % 2;
        const uint32_t first = shared + latent_scales_offset<C> +
                               (warp * converter_rows<C> + row_in_eight) * SM90_PANEL_BYTES +
                               row_in_eight * SM90_CHUNK_BYTES;
#pragma unroll
        for (int i = 0; i < lane_chunks<C>; ++i) {
            const uint4 four = shared_load(lane_chunk<C>(first, i));
            const uint32_t bits[] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int group = 0; group < LATENT_CODES / LATENT_GROUP; ++group)
                scales.of[i][group] = __uint_as_float(bits[group]);
        }
    }
    return scales;
}

/* A lane loads the bytes of half of its rows before it converts those of the other half. */
template <flash_config_t C> constexpr int latent_batch = lane_chunks<C> / 2;
template <flash_config_t C> struct latent_bytes { uint4 of[is_latent<C> ? latent_batch<C> : 1]; };

/* Loads a batch of the lane's chunks of a panel, batch 0 or 1. */
template <flash_config_t C>
static __device__ __forceinline__ latent_bytes<C> load_latent(uint32_t shared, int panel, int batch,
                                                              const chunk_offsets_t &offsets) {
    latent_bytes<C> bytes = {};
    if constexpr (is_latent<C>) {
        const uint32_t from = shared + offsets.from + panel * kv_panel_bytes<C>;
#pragma unroll
        for (int i = 0; i < latent_batch<C>; ++i)
            bytes.of[i] = shared_load(lane_chunk<C>(from, batch * latent_batch<C> + i));
    }
    return bytes;
}

/* Converts the warp's rows of a panel of 128 columns, which have one scale in each row. bytes: its
 * first batch, and then that of the next panel. What stores write over, all lanes have loaded in
 * the step before. */
template <flash_config_t C>
static __device__ __forceinline__ void
convert_latent_panel(uint32_t shared, int panel, const chunk_offsets_t &offsets,
                     const row_scales<C> &scales, latent_bytes<C> &bytes) {
    static_assert(landing_columns<C> == LATENT_GROUP, "a panel has one scale");
    constexpr int panels = LATENT_CODES / LATENT_GROUP;
    const uint32_t to = shared + offsets.to + 2 * panel * kv_panel_bytes<C>;
#pragma unroll
    for (int batch = 0; batch < 2; ++batch) {
        const latent_bytes<C> now = bytes;
        if (panel + batch < panels)
            bytes = load_latent<C>(shared, panel + batch, 1 - batch, offsets);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < latent_batch<C>; ++i) {
            const int row = batch * latent_batch<C> + i;
            const uint32_t chunk = lane_chunk<C>(to, row);
            const float scale = scales.of[row][panel];
            shared_store(chunk, scaled_eight(now.of[i].x, now.of[i].y, scale));
            shared_store(chunk ^ SM90_CHUNK_BYTES, scaled_eight(now.of[i].z, now.of[i].w, scale));
        }
    }
}

#endif
