/*
 * Shared memory is laid out as follows, with n_stages stages:
 *
 *     | Q or K | dO or V | K or Q | V or dO | sums | K or Q | V or dO | sums | ... | P and dS |
 *       of the tile        stage 0                   stage 1                         handed over
 *
 * Chunk c of row r lies at chunk c ^ (r % 8) of its panel, so that the eight rows of a matrix of
 * ldmatrix touch all 32 banks once. Sums are logarithms and D of each query, in kernels of dK and
 * dV.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_LAYOUT_CUH
#define FLASH_KERNELS_SM80_BACKWARD_LAYOUT_CUH

#include "common/ptx/opaque.cuh"
#include "sm80/backward/derive.cuh"

template <flash_config_t C>
static __device__ __forceinline__ uint32_t stage_address(uint32_t shared, int stage) {
    return shared + 2 * tile_bytes<C> + stage * stage_bytes<C>;
}

template <flash_config_t C>
static __device__ __forceinline__ uint32_t sums_address(uint32_t shared, int stage) {
    return stage_address<C>(shared, stage) + 2 * step_bytes<C>;
}

template <flash_config_t C>
static __device__ __forceinline__ uint32_t handed_address(uint32_t shared) {
    return stage_address<C>(shared, C.n_stages);
}

/* Returns the offset in bytes of a chunk of the first panel in a block of rows. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
    return (uint32_t)(row * row_bytes<C> + (chunk ^ (row & 7)) * chunk_bytes);
}

/* ---- A lane's place in a tile of 16 x 16, for ldmatrix.x4. The four matrices come in the order of
 * fragments, so that operands of one mma are in neighbouring registers. ---- */

/* Down first serves A from rows, and B from columns. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t lane_down_first() {
    const int lane = threadIdx.x % 32;
    return chunk_offset<C>(lane % 16, lane / 16);
}

/* Across first serves B from rows. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t lane_across_first() {
    const int lane = threadIdx.x % 32;
    return chunk_offset<C>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/* Returns the address of tile (row_tile, column_tile), both in units of 16. base: of tile (0, 0) in
 * a block that begins at a whole panel. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t tile_address(uint32_t base, int row_tile,
                                                        int column_tile) {
    constexpr int tile_bytes_across = 2 * chunk_bytes;
    constexpr int of_panel = panel_chunks / 2;
    const int across = column_tile % of_panel * tile_bytes_across;
    const int along = column_tile / of_panel * of_panel * tile_bytes_across;
    return (base ^ across) + row_tile * 16 * row_bytes<C> + along;
}

/* ---- Warps ---- */

static __device__ __forceinline__ int warp_number() {
    return threadIdx.x / 32;
}

/* Returns the first row of a warp, and which of those that share its rows it is. */
template <flash_config_t C> static __device__ __forceinline__ int first_row_of_warp() {
    return warp_number() / sharing_warps<C> * warp_rows<C>;
}

template <flash_config_t C> static __device__ __forceinline__ int share_of_warp() {
    return sharing_warps<C> == 1 ? 0 : warp_number() % sharing_warps<C>;
}

/* Returns the row, in the tile, of this thread's half 0 or 1 of tile m of an accumulator. */
template <flash_config_t C> static __device__ __forceinline__ int row_of_thread(int m, int half) {
    return first_row_of_warp<C>() + m * 16 + half * 8 + threadIdx.x % 32 / 4;
}

/* Returns the first of the thread's two columns in a tile of 8. */
static __device__ __forceinline__ int column_of_thread() {
    return threadIdx.x % 4 * 2;
}

#endif
