/*
 * A block of a decode kernel computes a piece of a sequence, for some heads and a tile of rows.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_BLOCK_CUH
#define FLASH_KERNELS_COMMON_DECODE_BLOCK_CUH

#include "common/decode/cut_block.cuh"
#include "common/decode/cut_lanes.cuh"

typedef struct decode_block {
    flash_sequence_t sequence;
    decode_piece_t piece;
    int32_t piece_index; /* among the pieces of all sequences */
    int32_t row_begin;   /* rows of a K/V head: query * group + query head of its group */
    int32_t rows;        /* at most B_r */
    int32_t first_head_kv;
    int32_t key_begin; /* a multiple of DECODE_UNIT_KEYS */
    int32_t key_end;
    int64_t units; /* of all sequences together */
} decode_block_t;

static __device__ __forceinline__ bool is_whole(const decode_piece_t &piece) {
    return piece.count == 1;
}

template <flash_config_t C>
static __device__ __forceinline__ decode_piece_t find_piece(const decode_params_t &params,
                                                            int32_t number, cut_scratch<C> &scratch,
                                                            int64_t &units) {
    if (params.pieces > 0) {
        const int32_t batch_index = flash_divide(number, params.by_pieces);
        return {batch_index, number - batch_index * params.pieces, params.pieces, batch_index};
    }
    if (params.attention.batch == 1)
        return cut_single<C>(params, number, units);
    if (params.attention.batch <= DECODE_WARP_THREADS)
        return cut_lanes<C>(params, number, units);
    return cut_batch<C>(params, number, scratch, units);
}

/* Finds the keys of the piece: whole units, except at the end of the sequence. The first pieces of
 * a sequence have a unit more than the others where they cannot be equal. */
static __device__ __forceinline__ void find_keys(const decode_params_t &params,
                                                 decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const unit_range_t all = decode_visible_units(&p, &block.sequence);
    const decode_piece_t &piece = block.piece;
    const uint32_t units = (uint32_t)(all.end - all.begin);
    const uint32_t number = (uint32_t)piece.number, count = (uint32_t)piece.count;
    const uint32_t least = units / count, longer = units - least * count;
    const uint32_t begin = (uint32_t)all.begin + number * least + min(number, longer);
    const uint32_t end = begin + least + (number < longer);
    if (params.pieces > 0)
        block.units = (int64_t)units * p.batch;
    block.key_begin = (int32_t)(begin * DECODE_UNIT_KEYS);
    block.key_end = (int32_t)min(end * DECODE_UNIT_KEYS, (uint32_t)block.sequence.len_k);
}

/* If the device cuts the batch, records the sequence of a first piece for the merging kernel. */
static __device__ __forceinline__ void record_split(const decode_params_t &params,
                                                    const decode_block_t &block) {
    const decode_piece_t &piece = block.piece;
    if (params.pieces == 0 && !is_whole(piece) && piece.number == 0)
        params.splits[piece.split] = {piece.batch_index, block.piece_index, piece.count};
}

/* The parts of a block's number. */
typedef struct block_place {
    int32_t piece;
    int32_t row_tile;
    int32_t head_block;
} block_place_t;

/* Blocks of wide heads take the tiles of one K/V head after the other, so that all that run at a
 * time read the same keys, and those first that see most. Measured on an H100. */
template <flash_config_t C>
constexpr bool takes_heads_in_turn =
    C.arch == FLASH_ARCH_SM90_WIDE || C.arch == FLASH_ARCH_SM80_WIDE;

template <flash_config_t C>
static __device__ __forceinline__ block_place_t find_place(const decode_params_t &params) {
    const int32_t number = (int32_t)blockIdx.x;
    if constexpr (takes_heads_in_turn<C>) {
        const int32_t head = flash_divide(number, params.by_row_tiles);
        const int32_t piece = flash_divide(head, params.by_head_blocks);
        return {piece, params.row_tiles - 1 - (number - head * params.row_tiles),
                head - piece * params.head_blocks};
    } else {
        const int32_t tile = flash_divide(number, params.by_head_blocks);
        const int32_t piece = flash_divide(tile, params.by_row_tiles);
        return {piece, tile - piece * params.row_tiles, number - tile * params.head_blocks};
    }
}

/* Returns the slot of the block's partial results. */
template <flash_config_t C>
static __device__ __forceinline__ int64_t find_slot(const decode_params_t &params) {
    if constexpr (takes_heads_in_turn<C>) {
        const block_place_t at = find_place<C>(params);
        return (at.piece * params.row_tiles + at.row_tile) * params.head_blocks + at.head_block;
    } else {
        return blockIdx.x;
    }
}

/* Finds what this block computes; false if nothing. The result is the same for all threads, which
 * use the scratch in shared memory meanwhile. */
template <flash_config_t C>
static __device__ __forceinline__ bool find_block(const decode_params_t &params,
                                                  cut_scratch<C> &scratch, decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const block_place_t at = find_place<C>(params);
    block.piece_index = at.piece;
    block.piece = find_piece<C>(params, at.piece, scratch, block.units);
    if (block.piece.count == 0)
        return false;
    block.first_head_kv = at.head_block * params.heads_per_block;
    block.sequence = sequence_of<C>(p, block.piece.batch_index);
    block.row_begin = at.row_tile * C.B_r;
    block.rows = min(block.sequence.len_q * p.group - block.row_begin, C.B_r);
    if (block.rows <= 0)
        return false;
    find_keys(params, block);
    return true;
}

#endif
