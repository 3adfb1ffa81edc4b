/*
 * Shared memory is laid out as follows:
 *
 *     0            q_bytes      + kv_bytes   + kv_bytes = sm80_shared_bytes()
 *     | Q, later O | K          | V          |
 *       B_r rows     B_c rows     B_c rows        of row_bytes each
 *
 * Swizzled, chunk c of row r lies at chunk c ^ swizzle(r) of its panel, so that the eight rows of a
 * matrix of ldmatrix touch all 32 banks once.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_LAYOUT_CUH
#define FLASH_KERNELS_SM80_FORWARD_LAYOUT_CUH

#include "common/ptx/opaque.cuh"
#include "sm80/forward/derive.cuh"

template <flash_config_t C> static __device__ __forceinline__ int swizzle(int row) {
    if constexpr (!C.swizzled)
        return 0;
    else
        return panel_chunks<C> == 8 ? row & 7 : (row >> 1) & 3;
}

/* Returns the offset in bytes of a chunk in a block of rows. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
    return (uint32_t)(row * row_bytes<C> + (chunk ^ swizzle<C>(row)) * SM80_CHUNK_BYTES);
}

/*
 * A lane reads tile (0, 0), 16 x 16, of a block of rows from this address, by ldmatrix.x4. The
 * addresses of other tiles in the same row of tiles differ in the bits of the chunk, if the block
 * begins at a whole panel, and by an immediate offset.
 */
template <flash_config_t C> struct lane_address { uint32_t base; };

/* Returns the same address as a value that is new to the compiler. It then computes the addresses
 * of other tiles where they are used, instead of keeping them in registers over the main loop. */
template <flash_config_t C>
static __device__ __forceinline__ lane_address<C> renew(const lane_address<C> &address) {
    return {opaque(address.base)};
}

/* The four matrices of a tile are loaded in the order of fragments, so that operands of one mma are
 * in neighbouring registers. Down first serves A from rows (Q), and B from columns (V). */
template <flash_config_t C>
static __device__ __forceinline__ lane_address<C> lane_address_down_first(uint32_t block) {
    const int lane = threadIdx.x % SM80_WARP_THREADS;
    return {block + chunk_offset<C>(lane % 16, lane / 16)};
}

/* Across first serves B from rows (K). */
template <flash_config_t C>
static __device__ __forceinline__ lane_address<C> lane_address_across_first(uint32_t block) {
    const int lane = threadIdx.x % SM80_WARP_THREADS;
    return {opaque(block + chunk_offset<C>(lane / 16 * 8 + lane % 8, lane / 8 % 2))};
}

/* Returns the address of tile (row_tile, column_tile), both in units of 16. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t tile_address(const lane_address<C> &address,
                                                        int row_tile, int column_tile) {
    constexpr int tile_bytes = 2 * SM80_CHUNK_BYTES;
    constexpr int permuted = C.swizzled ? panel_chunks<C> / 2 : 1; /* tiles of a panel */
    const int across = column_tile % permuted * tile_bytes;
    const int along = column_tile / permuted * permuted * tile_bytes;
    return (address.base ^ across) + row_tile * 16 * row_bytes<C> + along;
}

#endif
