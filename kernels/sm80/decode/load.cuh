/*
 * K and V are loaded into a warp's ring of slots, K 0, V 0, K 1, V 1, ..., by asynchronous copies
 * of 16 bytes, each instruction over whole rows. For a key past the last one the last one is read
 * again, and its scores are masked; nothing past it is read. Columns past d_head (of V:
 * d_head_v) become zeros.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_LOAD_CUH
#define FLASH_KERNELS_SM80_DECODE_LOAD_CUH

#include "common/ptx/async_copy.cuh"
#include "sm80/decode/pages.cuh"

/* Problems whose K and V have at most this many bytes leave the second-level cache early
 * (evict_first), which pays; larger ones lose by it (measured on an H200). */
constexpr int64_t evict_first_bytes = 256ll << 20;

/* The part of a block that a warp computes: one K/V head, and every n-th step over the keys. */
typedef struct warp_part {
    int32_t head; /* of the block */
    int32_t number;
    int32_t count;
} warp_part_t;

template <flash_config_t C>
static __device__ __forceinline__ warp_part_t find_warp_part(const sm80_decode_params_t &params) {
    const int32_t warp = threadIdx.x / DECODE_WARP_THREADS;
    const int32_t heads = params.heads_per_block; /* 1, 2 or 4 */
    const int32_t shift = heads >> 1;             /* its logarithm */
    return {warp & (heads - 1), warp >> shift, C.n_warps >> shift};
}

/* Rows of one head of K or V, from the lane's chunk on. */
typedef struct row_stream {
    const char *row;     /* of the next step's first key; with pages, of the pool's first row */
    int64_t step_stride; /* bytes between steps of this warp; 0 with pages */
    int32_t row_stride;  /* bytes */
    bool column_exists;  /* the lane's chunk has columns of the head */
} row_stream_t;

typedef struct kv_stream {
    row_stream_t k;
    row_stream_t v;
    int32_t left;         /* keys after the next step's first one in the piece */
    int32_t step_keys;    /* keys between steps of this warp */
    uint32_t slot_offset; /* of the lane's chunk of the first row in a slot */
    uint64_t policy;
    page_stream_t pages;
} kv_stream_t;

template <flash_config_t C> static __device__ __forceinline__ int copy_chunk() {
    return threadIdx.x % DECODE_WARP_THREADS % row_chunks<C>;
}

template <flash_config_t C> static __device__ __forceinline__ int copy_row() {
    return threadIdx.x % DECODE_WARP_THREADS / row_chunks<C>;
}

/* Returns the offset of a chunk of a row in a slot. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
    const int line = row / line_rows<C>;
    const int position = row % line_rows<C> * row_chunks<C> + chunk % line_chunks;
    return chunk / line_chunks * panel_bytes<C> + line * DECODE_LINE_BYTES +
           ((position ^ line % line_chunks) * DECODE_CHUNK_BYTES);
}

/* Makes the stream of rows that begins with the first key of the run, or of the pool. */
template <flash_config_t C>
static __device__ __forceinline__ row_stream_t make_row_stream(const void *data,
                                                               const flash_strides_t &stride,
                                                               const flash_kv_run_t &run,
                                                               int32_t d_head, int32_t head_kv,
                                                               int32_t step_keys) {
    const int64_t first =
        flash_kv_offset(&stride, &run, head_kv) + copy_chunk<C>() * chunk_elements<C>;
    return {(const char *)data + first * element_bytes<C>,
            has_pages<C> ? 0 : stride.seq * element_bytes<C> * step_keys,
            (int32_t)(stride.seq * element_bytes<C>), copy_chunk<C>() * chunk_elements<C> < d_head};
}

template <flash_config_t C>
static __device__ __forceinline__ kv_stream_t make_kv_stream(const sm80_decode_params_t &params,
                                                             const decode_block_t &block,
                                                             const warp_part_t &part) {
    const flash_params_t &p = params.attention;
    const int32_t first = block.key_begin + part.number * C.B_c;
    const int32_t head_kv = block.first_head_kv + part.head;
    const flash_kv_run_t run = has_pages<C>
                                   ? flash_kv_run_t{0, block.sequence.k_begin, 0, 0}
                                   : flash_kv_run(&block.sequence, block.piece.batch_index, first);
    const int64_t bytes = block.units * DECODE_UNIT_KEYS * ((int64_t)p.d_head + p.d_head_v) *
                          element_bytes<C> * p.n_heads_kv;
    kv_stream_t stream;
    stream.step_keys = part.count * C.B_c;
    stream.k = make_row_stream<C>(p.k, p.k_stride, run, p.d_head, head_kv, stream.step_keys);
    stream.v = make_row_stream<C>(p.v, p.v_stride, run, p.d_head_v, head_kv, stream.step_keys);
    stream.left = block.key_end - 1 - first;
    stream.slot_offset = chunk_offset<C>(copy_row<C>(), copy_chunk<C>());
    stream.policy = cache_policy(bytes <= evict_first_bytes);
    if constexpr (has_pages<C>)
        start_pages<C>(stream.pages, params, block.piece.batch_index, stream.step_keys, first,
                       stream.left);
    return stream;
}

/* Returns where the i-th copy of a slot goes. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t copy_target(uint32_t slot, const kv_stream_t &stream,
                                                       int i) {
    const int line = i * copy_rows<C> / line_rows<C>;
    return slot + line * DECODE_LINE_BYTES +
           (stream.slot_offset ^ (line % line_chunks * DECODE_CHUNK_BYTES));
}

/* Copies the rows of a step from its first row on. */
template <flash_config_t C>
static __device__ __forceinline__ void load_rows(uint32_t slot, const char *first,
                                                 int32_t row_stride, bool exists,
                                                 const kv_stream_t &stream) {
#pragma unroll
    for (int i = 0; i < copies<C>; ++i) {
        const int32_t row = min(i * copy_rows<C> + copy_row<C>(), stream.left);
        async_copy_or_zero(copy_target<C>(slot, stream, i), first + (int64_t)row * row_stride,
                           exists, stream.policy);
    }
}

/* Copies the rows of a step of which each has a lane; `offset` is that of the lane's row. */
template <flash_config_t C>
static __device__ __forceinline__ void load_scattered_rows(uint32_t slot, const row_stream_t &rows,
                                                           int64_t offset,
                                                           const kv_stream_t &stream) {
#pragma unroll
    for (int i = 0; i < copies<C>; ++i) {
        const int lane = stream.pages.lane + i * copy_rows<C> + copy_row<C>();
        const long long of_row = __shfl_sync(0xffffffffu, (long long)offset, lane);
        async_copy_or_zero(copy_target<C>(slot, stream, i), rows.row + max(of_row, 0ll),
                           rows.column_exists && of_row >= 0, stream.policy);
    }
}

/* Copies a step from pages. offset: bytes from the pool's first row to that of the lane's key;
 * negative if it has none. */
template <flash_config_t C>
static __device__ __forceinline__ void load_page_rows(uint32_t slot, const row_stream_t &rows,
                                                      int64_t offset, const kv_stream_t &stream) {
    if (stream.pages.step_lanes > 1) {
        load_scattered_rows<C>(slot, rows, offset, stream);
        return;
    }
    const long long of_step = __shfl_sync(0xffffffffu, (long long)offset, stream.pages.lane);
    load_rows<C>(slot, rows.row + max(of_step, 0ll), rows.row_stride,
                 rows.column_exists && of_step >= 0, stream);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_k(uint32_t slot, kv_stream_t &stream) {
    if (stream.left >= 0) {
        if constexpr (has_pages<C>)
            load_page_rows<C>(slot, stream.k, stream.pages.k_offset, stream);
        else
            load_rows<C>(slot, stream.k.row, stream.k.row_stride, stream.k.column_exists, stream);
    }
    stream.k.row += stream.k.step_stride;
    async_copy_commit();
}

/* Starts to copy the next step's keys of V, and moves on to the step after it. */
template <flash_config_t C>
static __device__ __forceinline__ void load_v(uint32_t slot, kv_stream_t &stream,
                                              const sm80_decode_params_t &params) {
    if (stream.left >= 0) {
        if constexpr (has_pages<C>)
            load_page_rows<C>(slot, stream.v, stream.pages.v_offset, stream);
        else
            load_rows<C>(slot, stream.v.row, stream.v.row_stride, stream.v.column_exists, stream);
    }
    stream.v.row += stream.v.step_stride;
    async_copy_commit();
    stream.left -= stream.step_keys;
    if constexpr (has_pages<C>)
        next_pages<C>(stream.pages, params, stream.left);
}

/* Leaves out the next n steps. */
template <flash_config_t C>
static __device__ __forceinline__ void skip_steps(kv_stream_t &stream, int32_t n,
                                                  const sm80_decode_params_t &params) {
    stream.k.row += n * stream.k.step_stride;
    stream.v.row += n * stream.v.step_stride;
    if constexpr (has_pages<C>) {
#pragma unroll 1
        for (; n > 0; --n) {
            stream.left -= stream.step_keys;
            next_pages<C>(stream.pages, params, stream.left);
        }
    } else {
        stream.left -= n * stream.step_keys;
    }
}

#endif
