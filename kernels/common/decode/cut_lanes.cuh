/*
 * Each warp cuts a batch of up to 32 sequences, one per lane, and exchanges nothing with the
 * others. This is quicker than what all threads of a block do together (cut_block.cuh), and most of
 * what a block of a small batch does before its first load.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_CUT_LANES_CUH
#define FLASH_KERNELS_COMMON_DECODE_CUT_LANES_CUH

#include "common/decode/piece.cuh"

/* Finds a piece of a batch of one sequence. */
template <flash_config_t C>
static __device__ __forceinline__ decode_piece_t cut_single(const decode_params_t &params,
                                                            int32_t number, int64_t &units) {
    units = count_units<C>(params.attention, 0);
    const decode_cut_t cut = params.most_pieces > 0 ? decode_cut_by(first_share(params, units))
                                                    : decode_own_cut(&params);
    const int32_t pieces = decode_count_pieces((int32_t)units, cut);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *params.n_splits = pieces > 1;
    return {0, number, number < pieces ? pieces : 0, 0};
}

/* Returns the smallest share with which all pieces run side by side, or else the first share. */
static __device__ __forceinline__ int32_t lanes_share(const decode_params_t &params, int32_t first,
                                                      int32_t units, bool exists) {
    if (params.attention.batch > params.most_pieces)
        return first;
#pragma unroll 1
    for (int32_t i = 0; i < DECODE_N_SHARES; ++i) {
        const int32_t share = decode_nth_share(first, i);
        const int32_t pieces = exists ? decode_count_pieces(units, decode_cut_by(share)) : 0;
        if (__reduce_add_sync(0xffffffffu, pieces) <= params.most_pieces)
            return share;
    }
    return first;
}

/* Returns the sum over the lanes before this one. */
static __device__ __forceinline__ int32_t sum_before(int32_t x) {
    int32_t sum = x;
#pragma unroll
    for (int step = 1; step < DECODE_WARP_THREADS; step *= 2) {
        const int32_t left = __shfl_up_sync(0xffffffffu, sum, step);
        sum += (int)threadIdx.x % DECODE_WARP_THREADS >= step ? left : 0;
    }
    return sum - x;
}

/* Counts the lanes of a mask before a lane. */
static __device__ __forceinline__ int32_t lanes_before(uint32_t mask, int32_t lane) {
    return __popc(mask & ((1u << lane) - 1));
}

/* Counts the lanes whose class comes before this lane's, or is the same in a lane before it. */
static __device__ __forceinline__ int32_t rank_of_class(int32_t lane_class) {
    int32_t rank = 0;
#pragma unroll
    for (int32_t i = 0; i < N_LENGTHS; ++i) {
        const uint32_t lanes = __ballot_sync(0xffffffffu, lane_class == i);
        const int32_t lane = threadIdx.x % DECODE_WARP_THREADS;
        rank += i < lane_class ? __popc(lanes) : i == lane_class ? lanes_before(lanes, lane) : 0;
    }
    return rank;
}

/* Finds the piece of this number. */
template <flash_config_t C>
static __device__ __forceinline__ decode_piece_t cut_lanes(const decode_params_t &params,
                                                           int32_t number, int64_t &units) {
    const int32_t lane = threadIdx.x % DECODE_WARP_THREADS;
    const bool exists = lane < params.attention.batch;
    const int32_t lane_units = exists ? count_units<C>(params.attention, lane) : 0;
    units = __reduce_add_sync(0xffffffffu, lane_units);
    const decode_cut_t cut =
        params.most_pieces > 0
            ? decode_cut_by(lanes_share(params, first_share(params, units), lane_units, exists))
            : decode_own_cut(&params);
    const int32_t pieces = exists ? decode_count_pieces(lane_units, cut) : 0;
    const bool is_cut = pieces > 1;
    const uint32_t all_cut = __ballot_sync(0xffffffffu, is_cut);
    const int32_t cut_pieces = __reduce_add_sync(0xffffffffu, is_cut ? pieces : 0);
    const int32_t before = sum_before(is_cut ? pieces : 0);
    const int32_t rank = rank_of_class(pieces == 1 ? length_class(lane_units, cut.share) : -1);
    const int32_t first = is_cut ? before : cut_pieces + rank;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *params.n_splits = __popc(all_cut);
    const bool has_piece = number >= first && number < first + pieces;
    const uint32_t found = __ballot_sync(0xffffffffu, has_piece);
    const int32_t at = found ? __ffs(found) - 1 : 0;
    const int32_t of_sequence = number - __shfl_sync(0xffffffffu, first, at);
    const int32_t count = __shfl_sync(0xffffffffu, pieces, at);
    return {at, of_sequence, found ? count : 0, lanes_before(all_cut, at)};
}

#endif
