/*
 * All threads of a block cut a batch together: each takes a few consecutive sequences.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_CUT_BLOCK_CUH
#define FLASH_KERNELS_COMMON_DECODE_CUT_BLOCK_CUH

#include "common/decode/piece.cuh"

/* These are counted in a batch: pieces of cut sequences, cut sequences, and whole sequences by
 * class of length. */
enum { CUT_PIECES, CUT_SEQUENCES, WHOLE, N_COUNTS = WHOLE + N_LENGTHS };

typedef struct batch_counts {
    int32_t of[N_COUNTS];
} batch_counts_t;

/* The warps of a block exchange their counts here. */
template <flash_config_t C> struct cut_scratch {
    int64_t units[C.n_warps];
    int32_t pieces[DECODE_N_SHARES];
    batch_counts_t counts[C.n_warps];
    decode_piece_t piece;
};

/* The consecutive sequences of the batch that a thread counts. */
typedef struct batch_part {
    int32_t begin;
    int32_t end;
} batch_part_t;

template <flash_config_t C>
static __device__ __forceinline__ batch_part_t thread_part(int32_t batch) {
    constexpr int32_t threads = decode_block_threads(&C);
    const int32_t per_thread = (batch + threads - 1) / threads;
    const int32_t begin = min((int32_t)threadIdx.x * per_thread, batch);
    return {begin, min(begin + per_thread, batch)};
}

template <flash_config_t C>
static __device__ __forceinline__ int64_t sum_units(const flash_params_t &p,
                                                    cut_scratch<C> &scratch) {
    const batch_part_t part = thread_part<C>(p.batch);
    long long sum = 0;
#pragma unroll 1
    for (int32_t b = part.begin; b < part.end; ++b)
        sum += count_units<C>(p, b);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % DECODE_WARP_THREADS == 0)
        scratch.units[threadIdx.x / DECODE_WARP_THREADS] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < C.n_warps; ++w)
        sum += scratch.units[w];
    return sum;
}

/* Returns the smallest share with which all pieces run side by side, or else the first share. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t fitting_share(const decode_params_t &params,
                                                        int32_t first, cut_scratch<C> &scratch) {
    const int32_t batch = params.attention.batch;
    if (batch > params.most_pieces)
        return first;
#pragma unroll 1
    for (int i = threadIdx.x / DECODE_WARP_THREADS; i < DECODE_N_SHARES; i += C.n_warps) {
        int32_t pieces = 0;
#pragma unroll 1
        for (int32_t b = threadIdx.x % DECODE_WARP_THREADS; b < batch; b += DECODE_WARP_THREADS)
            pieces += decode_count_pieces(count_units<C>(params.attention, b),
                                          decode_cut_by(decode_nth_share(first, i)));
        pieces = __reduce_add_sync(0xffffffffu, pieces);
        if (threadIdx.x % DECODE_WARP_THREADS == 0)
            scratch.pieces[i] = pieces;
    }
    __syncthreads();
    int32_t share = first;
#pragma unroll 1
    for (int i = DECODE_N_SHARES - 1; i >= 0; --i)
        share = scratch.pieces[i] <= params.most_pieces ? decode_nth_share(first, i) : share;
    return share;
}

static __device__ __forceinline__ void count_sequence(batch_counts_t &counts, int32_t units,
                                                      decode_cut_t cut) {
    const int32_t pieces = decode_count_pieces(units, cut);
    const int32_t whole = pieces > 1 ? -1 : WHOLE + length_class(units, cut.share);
    counts.of[CUT_PIECES] += pieces > 1 ? pieces : 0;
    counts.of[CUT_SEQUENCES] += pieces > 1;
#pragma unroll
    for (int i = WHOLE; i < N_COUNTS; ++i)
        counts.of[i] += i == whole;
}

/* Counts over a thread's sequences, over those before them, and over the batch. */
typedef struct count_scan {
    batch_counts_t thread;
    batch_counts_t before;
    batch_counts_t all;
} count_scan_t;

template <flash_config_t C>
static __device__ __forceinline__ count_scan_t scan_counts(const batch_counts_t &counts,
                                                           cut_scratch<C> &scratch) {
    const int warp = threadIdx.x / DECODE_WARP_THREADS, lane = threadIdx.x % DECODE_WARP_THREADS;
    count_scan_t scan = {counts, {}, {}};
#pragma unroll
    for (int i = 0; i < N_COUNTS; ++i) {
        int32_t sum = counts.of[i];
#pragma unroll
        for (int step = 1; step < DECODE_WARP_THREADS; step *= 2) {
            const int32_t left = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? left : 0;
        }
        scan.before.of[i] = sum - counts.of[i];
        if (lane == DECODE_WARP_THREADS - 1)
            scratch.counts[warp].of[i] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < C.n_warps; ++w)
#pragma unroll
        for (int i = 0; i < N_COUNTS; ++i) {
            const int32_t of_warp = scratch.counts[w].of[i];
            scan.before.of[i] += w < warp ? of_warp : 0;
            scan.all.of[i] += of_warp;
        }
    return scan;
}

/* A piece by its kind and by its number among those of that kind in a thread's sequences. */
typedef struct numbered_kind {
    int32_t kind; /* negative: the piece belongs to another thread */
    int32_t number;
} numbered_kind_t;

/* Finds piece `number` of the batch, if it belongs to the thread's sequences. */
static __device__ __forceinline__ numbered_kind_t find_thread_kind(const count_scan_t &scan,
                                                                   int32_t number) {
    numbered_kind_t found = {-1, 0};
#pragma unroll
    for (int kind = 0; kind < N_COUNTS; ++kind) {
        if (kind == CUT_SEQUENCES)
            continue;
        const int32_t at = number - scan.before.of[kind];
        if (number >= 0 && number < scan.all.of[kind] && at >= 0 && at < scan.thread.of[kind])
            found = {kind, at};
        number -= scan.all.of[kind];
    }
    return found;
}

/* Finds the piece in the thread's sequences from `begin` on; `split` cut ones are before them. */
template <flash_config_t C>
static __device__ __forceinline__ decode_piece_t find_thread_piece(const flash_params_t &p,
                                                                   int32_t begin,
                                                                   numbered_kind_t wanted,
                                                                   int32_t split,
                                                                   decode_cut_t cut) {
    int32_t number = wanted.number;
#pragma unroll 1
    for (int32_t b = begin;; ++b) {
        const int32_t units = count_units<C>(p, b);
        const int32_t pieces = decode_count_pieces(units, cut);
        const int32_t kind =
            pieces > 1 ? (int32_t)CUT_PIECES : WHOLE + length_class(units, cut.share);
        const bool is_kind = kind == wanted.kind;
        if (is_kind && number < pieces)
            return {b, number, pieces, split};
        number -= is_kind ? pieces : 0;
        split += pieces > 1;
    }
}

/* Finds the piece of this number, by all threads of the block. */
template <flash_config_t C>
static __device__ __forceinline__ decode_piece_t cut_batch(const decode_params_t &params,
                                                           int32_t number, cut_scratch<C> &scratch,
                                                           int64_t &units) {
    const flash_params_t &p = params.attention;
    const batch_part_t part = thread_part<C>(p.batch);
    units = sum_units(p, scratch);
    const decode_cut_t cut =
        params.most_pieces > 0
            ? decode_cut_by(fitting_share(params, first_share(params, units), scratch))
            : decode_own_cut(&params);
    batch_counts_t counts = {};
#pragma unroll 1
    for (int32_t b = part.begin; b < part.end; ++b)
        count_sequence(counts, count_units<C>(p, b), cut);
    const count_scan_t scan = scan_counts<C>(counts, scratch);
    if (threadIdx.x == 0)
        scratch.piece.count = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *params.n_splits = scan.all.of[CUT_SEQUENCES];
    __syncthreads();
    const numbered_kind_t found = find_thread_kind(scan, number);
    if (found.kind >= 0)
        scratch.piece =
            find_thread_piece<C>(p, part.begin, found, scan.before.of[CUT_SEQUENCES], cut);
    __syncthreads();
    return scratch.piece;
}

#endif
