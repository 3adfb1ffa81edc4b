/*
 * This kernel transposes V of e4m3 for an SM90 kernel that multiplies it as such: wgmma takes 8-bit
 * operands only with their contraction, the keys, side by side.
 *
 * A warp transposes 32 keys at a time. ldmatrix.trans takes pairs of bytes for elements: a thread
 * gets two neighbouring columns of two neighbouring keys, from each of four matrices of eight keys.
 * The bytes of one column from two matrices are a word, whose keys are 2t, 2t + 1, 2t + 8 and
 * 2t + 9 of sixteen, with t = lane % 4. That is the order in which fragments of P have them.
 */
#include "common/ptx/dependent_launch.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/sequence.h"
#include "sm90/ptx/stmatrix.cuh"
#include "sm90/transpose_v_kernel.h"

constexpr int warp_lanes = 32;
constexpr int chunk_bytes = 16; /* columns, or keys */
constexpr int row_bytes = SM90_TRANSPOSED_KEYS;
constexpr int row_chunks = row_bytes / chunk_bytes;
constexpr int warps = SM90_TRANSPOSE_THREADS / warp_lanes;
constexpr int tile_bytes = SM90_TRANSPOSED_KEYS * row_bytes;
constexpr int chunks_per_thread = tile_bytes / chunk_bytes / SM90_TRANSPOSE_THREADS;
static_assert(warps * warp_lanes == SM90_TRANSPOSED_KEYS, "a warp has 32 keys");

/* This says which panel of which columns of which head a block transposes. */
typedef struct transposed_tile {
    int32_t entry;
    int32_t head_kv;
    int32_t column;
    int32_t key;
} transposed_tile_t;

static __device__ __forceinline__ transposed_tile_t find_tile(const flash_params_t &p) {
    const uint32_t panels = sm90_transposed_panels(&p), columns = sm90_transpose_columns(&p);
    const uint32_t part = blockIdx.x / panels, head = part / columns;
    transposed_tile_t tile;
    tile.key = (int32_t)(blockIdx.x % panels) * SM90_TRANSPOSED_KEYS;
    tile.column = (int32_t)(part % columns) * row_bytes;
    tile.head_kv = (int32_t)(head % p.n_heads_kv);
    tile.entry = (int32_t)(head / p.n_heads_kv);
    return tile;
}

/* Returns where a chunk of a key lies in shared memory: eight keys' chunks lie in different banks.
 */
static __device__ __forceinline__ int loaded_at(int key, int chunk) {
    return key * row_bytes + (chunk ^ key % 8) * chunk_bytes;
}

/* Does the same for a chunk of a column, of which every other one is stored at a time. */
static __device__ __forceinline__ int stored_at(int column, int chunk) {
    return column * row_bytes + (chunk ^ column / 2 % 8) * chunk_bytes;
}

/* Loads the block's part of V; what is beyond the sequence's ends becomes zeros. */
static __device__ __forceinline__ void load_tile(const flash_params_t &p,
                                                 const transposed_tile_t &tile,
                                                 const flash_sequence_t &sequence,
                                                 uint32_t shared) {
    const int64_t token = sequence.k_begin + tile.key;
    const uint8_t *v = static_cast<const uint8_t *>(p.v) + tile.entry * p.v_stride.batch +
                       tile.head_kv * p.v_stride.head + token * p.v_stride.seq + tile.column;
    uint4 chunks[chunks_per_thread];
#pragma unroll
    for (int i = 0; i < chunks_per_thread; ++i) {
        const int at = threadIdx.x + i * SM90_TRANSPOSE_THREADS;
        const int key = at / row_chunks, byte = at % row_chunks * chunk_bytes;
        const bool exists = tile.key + key < sequence.len_k && tile.column + byte < p.d_head_v;
        chunks[i] = exists ? __ldg(reinterpret_cast<const uint4 *>(v + key * p.v_stride.seq + byte))
                           : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < chunks_per_thread; ++i) {
        const int at = threadIdx.x + i * SM90_TRANSPOSE_THREADS;
        shared_store(shared + loaded_at(at / row_chunks, at % row_chunks), chunks[i]);
    }
}

/* Transposes the warp's 32 keys. */
static __device__ __forceinline__ void transpose_keys(uint32_t from, uint32_t to) {
    const int warp = threadIdx.x / warp_lanes, lane = threadIdx.x % warp_lanes;
#pragma unroll
    for (int i = 0; i < row_chunks; ++i) {
        uint32_t m[4];
        ldmatrix_x4_trans(m, from + loaded_at(warp * warp_lanes + lane, i));
        const int column = i * chunk_bytes + lane % 8 * 2 + lane / 8 % 2;
        stmatrix_x4(to + stored_at(column, warp * 2 + lane / 16), __byte_perm(m[0], m[1], 0x6420),
                    __byte_perm(m[0], m[1], 0x7531), __byte_perm(m[2], m[3], 0x6420),
                    __byte_perm(m[2], m[3], 0x7531));
    }
}

/* Stores the block's rows of a panel. */
static __device__ __forceinline__ void store_tile(const sm90_transpose_params_t &params,
                                                  const transposed_tile_t &tile, uint32_t shared) {
    const flash_params_t &p = params.problem;
    const int64_t head = (int64_t)tile.entry * p.n_heads_kv + tile.head_kv;
    const int64_t panel = head * sm90_transposed_panels(&p) + tile.key / row_bytes;
    uint8_t *rows = params.transposed + (panel * p.d_head_v + tile.column) * row_bytes;
#pragma unroll
    for (int i = 0; i < chunks_per_thread; ++i) {
        const int at = threadIdx.x + i * SM90_TRANSPOSE_THREADS;
        const int column = at / row_chunks, chunk = at % row_chunks;
        if (tile.column + column < p.d_head_v)
            *reinterpret_cast<uint4 *>(rows + column * row_bytes + chunk * chunk_bytes) =
                shared_load(shared + stored_at(column, chunk));
    }
}

extern "C" __global__ void __launch_bounds__(SM90_TRANSPOSE_THREADS)
    flash_sm90_transpose_v(const __grid_constant__ sm90_transpose_params_t params) {
    __shared__ __align__(128) unsigned char tiles[2][tile_bytes];
    const transposed_tile_t tile = find_tile(params.problem);
    const uint32_t from = shared_address(tiles[0]), to = shared_address(tiles[1]);
    launch_dependents();
    const flash_sequence_t sequence = flash_sequence(&params.problem, tile.entry);
    if (tile.key >= sequence.len_k)
        return;
    load_tile(params.problem, tile, sequence, from);
    __syncthreads();
    transpose_keys(from, to);
    __syncthreads();
    store_tile(params, tile, to);
}
