/*
 * A kernel of dK and dV keeps dS, if it is given memory for it, in tiles of 64 queries and 64 keys
 * (common/kept_ds.h). A tile has 4 x 4 fragments of 16 keys and 16 queries, those of its first
 * queries first, as dK's product has them: 16 bytes of each lane, lane by lane.
 *
 * Blocks that no query of a tile sees any key of are not written, nor what is behind the end of a
 * sequence in them. Whoever reads a tile takes only what queries see.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_KEPT_DS_CUH
#define FLASH_KERNELS_SM80_BACKWARD_KEPT_DS_CUH

#include "sm80/backward/layout.cuh"
#include "sm80/backward/products.cuh"
#include "sm80/backward/sanitise.cuh"
#include "sm80/backward/tile.cuh"

constexpr int ds_tile_rows = SM80_DS_TILE_ROWS; /* and columns */
constexpr int ds_tile_fragments = ds_tile_rows / 16;
constexpr int ds_fragment_bytes = 16 * 16 * element_bytes;
constexpr int ds_tile_bytes = ds_tile_rows * ds_tile_rows * element_bytes;

/* Returns the address of a tile of dS of a query head. */
template <flash_config_t C>
static __device__ __forceinline__ char *ds_tile_address(const flash_backward_params_t &params,
                                                        const gradient_tile_t &tile, int32_t head,
                                                        int32_t row, int32_t column) {
    const flash_params_t &p = params.forward;
    const flash_gradients_t &g = params.gradients;
    const int32_t first =
        has_window<C> ? flash_kept_first(&p, &tile.sequence, ds_tile_rows, ds_tile_rows, row) : 0;
    const int64_t place =
        flash_kept_place(&g.ds, &g.section, p.group, &tile.sequence, tile.batch_index, head,
                         ds_tile_rows, row, column, first);
    return static_cast<char *>(g.ds.data) + place * ds_tile_bytes;
}

/* A tile of keys has as many tiles of dS beside each other, and a warp's keys belong to one. */
template <flash_config_t C>
constexpr int ds_tiles_of_rows = (tile_rows<C> + ds_tile_rows - 1) / ds_tile_rows;
constexpr int most_ds_tiles_of_rows = 2;

/* Says whether some query of a block sees some key of those from `first` on of a tile of dS. */
template <flash_config_t C>
static __device__ __forceinline__ bool
is_ds_seen(const flash_params_t &p, const flash_sequence_t &s, int32_t first, int32_t block) {
    if (first >= s.len_k)
        return false;
    const int32_t last = min(first + ds_tile_rows, s.len_k) - 1;
    const int32_t begin = columns_of_row<C>(p, s, first).begin;
    const int32_t end = columns_of_row<C>(p, s, last).end;
    return begin < end && begin < (block + 1) * step_rows<C> && block * step_rows<C> < end;
}

/* Returns the place of the first fragment of a block of queries, of keys of the tile that have tile
 * number i of dS; NULL if dS is not kept. */
template <flash_config_t C>
static __device__ __forceinline__ char *find_kept_block(const flash_backward_params_t &params,
                                                        const gradient_tile_t &tile, int32_t member,
                                                        int32_t block, int i) {
    static_assert(ds_tile_rows % step_rows<C> == 0 && warp_rows<C> <= ds_tile_rows &&
                      (ds_tile_rows % tile_rows<C> == 0 || tile_rows<C> % ds_tile_rows == 0) &&
                      ds_tiles_of_rows<C> <= most_ds_tiles_of_rows,
                  "a block of a warp's keys belongs to one tile of dS");
    const int32_t query = block * step_rows<C>, key = tile.row_begin + i * ds_tile_rows;
    if (params.gradients.ds.data == nullptr)
        return nullptr;
    if (ds_tiles_of_rows<C> != 1 && !is_ds_seen<C>(params.forward, tile.sequence, key, block))
        return nullptr;
    const int fragment = query % ds_tile_rows / 16 * ds_tile_fragments + key % ds_tile_rows / 16;
    return ds_tile_address<C>(params, tile, tile.head * params.forward.group + member,
                              query / ds_tile_rows, key / ds_tile_rows) +
           fragment * ds_fragment_bytes;
}

/* A thread for each of the tile's tiles of dS finds the place of the next block, beside the
 * products of this one. Slots are those of flags (sanitise.cuh), and are shown by the same barrier.
 */
static __device__ __forceinline__ char *&kept_block(int slot, int i) {
    __shared__ char *places[FLAG_SLOTS][most_ds_tiles_of_rows];
    return places[slot][i];
}

template <flash_config_t C>
static __device__ __forceinline__ void prepare_kept_block(const flash_backward_params_t &params,
                                                          const gradient_tile_t &tile, int slot,
                                                          int32_t member, int32_t block) {
    if constexpr (sm80_backward_keeps_ds(&C))
        if (threadIdx.x < ds_tiles_of_rows<C>)
            kept_block(slot, threadIdx.x) =
                find_kept_block<C>(params, tile, member, block, threadIdx.x);
}

/* Keeps a part of the block. */
template <flash_config_t C>
static __device__ __forceinline__ void keep_part(int slot, int part, const operand_part<C> &d_s) {
    if constexpr (!sm80_backward_keeps_ds(&C))
        return;
    const int first_row = first_row_of_warp<C>();
    char *kept = kept_block(slot, first_row / ds_tile_rows);
    if (kept == nullptr)
        return;
    const int first_key = first_row % ds_tile_rows / 16, first_query = part * part_steps<C>;
    kept +=
        (first_query * ds_tile_fragments + first_key) * ds_fragment_bytes + threadIdx.x % 32 * 16;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int step = 0; step < part_steps<C>; ++step) {
            const uint32_t(&a)[4] = d_s.a[m][step];
            const int fragment = step * ds_tile_fragments + m;
            *reinterpret_cast<uint4 *>(kept + fragment * ds_fragment_bytes) =
                uint4{a[0], a[1], a[2], a[3]};
        }
}

#endif
