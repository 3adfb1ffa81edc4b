/*
 * V is sanitised where a mask hides a key from some rows only. P is 0 there, but 0 * NaN is NaN. So
 * in the few blocks that a mask cuts, NaN and infinities are replaced by zeros before V is
 * multiplied. A tile that had any, which is rare, adds them at its end to the rows that see them.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_SANITISE_V_CUH
#define FLASH_KERNELS_SM80_FORWARD_SANITISE_V_CUH

#include "common/kv.h"
#include "common/non_finite.cuh"
#include "sm80/forward/block_state.cuh"
#include "sm80/forward/load.cuh"

/* Returns the address of the index-th chunk of a block that this thread copies. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t copied_chunk(uint32_t shared, int index) {
    return shared + chunk_offset<C>(copy_row<C>(), threadIdx.x % panel_chunks<C>) +
           index / row_panels<C> * pass_rows<C> * row_bytes<C> +
           index % row_panels<C> * panel_bytes<C>;
}

/* Zeroes what is not finite in the chunks of V that this thread has copied, without a barrier. */
template <flash_config_t C>
static __device__ __forceinline__ void zero_non_finite(uint32_t shared) {
    constexpr int chunks = C.B_c / pass_rows<C> * row_panels<C>;
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < chunks; ++i)
        sum = add_zero_times_chunk<operand_dtype<C>>(sum, shared_load(copied_chunk<C>(shared, i)));
    if (is_pair_of_zeros(sum))
        return;
    block_state().v_sanitised = 1;
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
        const uint32_t address = copied_chunk<C>(shared, i);
        shared_store(address, finite_chunk<operand_dtype<C>>(shared_load(address)));
    }
}

/* Returns the elements from the pool's first row of V to that of a key; negative without a page. */
static __device__ __forceinline__ int64_t page_value_offset(const flash_params_t &params,
                                                            const query_tile_t &tile, int64_t key) {
    const int64_t first_id = flash_pages_first_id(&params.pages, tile.batch_index);
    const flash_kv_run_t run =
        flash_kv_paged_run(&params.pages, params.pages.v_table, &tile.sequence, first_id, key);
    const bool is_page = run.entry >= 0 && run.entry < params.pages.n_pages;
    return is_page ? flash_kv_offset(&params.v_stride, &run, 0) : -1;
}

/* Adds what is not finite in keys [begin, end) of V to one chunk of O. v.pointer: the chunk's
 * columns in key 0. V of e4m3 can only have NaN, which is NaN in O of either 16-bit type. */
template <flash_config_t C>
static __device__ __forceinline__ uint4 add_non_finite_keys(uint4 o, const row_source_t &v,
                                                            int64_t begin, int64_t end) {
#pragma unroll 1
    for (int64_t key = begin; key < end; ++key) {
        const uint4 chunk = load_chunk<C, kv_element_bytes<C>>(v, v.pointer + key * v.row_stride,
                                                               v.d_head - v.column);
        o.x = add_non_finite_pair<operand_dtype<C>>(o.x, chunk.x);
        o.y = add_non_finite_pair<operand_dtype<C>>(o.y, chunk.y);
        o.z = add_non_finite_pair<operand_dtype<C>>(o.z, chunk.z);
        o.w = add_non_finite_pair<operand_dtype<C>>(o.w, chunk.w);
    }
    return o;
}

/* Adds what is not finite in keys of a tile. v.pointer: the chunk's columns in key 0, or with
 * pages, which are found key by key, in the pool's first row. Ids that are no page add nothing. */
template <flash_config_t C>
static __device__ __forceinline__ uint4 add_keys_of_tile(uint4 o, const flash_params_t &params,
                                                         const query_tile_t &tile,
                                                         const row_source_t &v, int64_t begin,
                                                         int64_t end) {
    if constexpr (has_pages<C>) {
#pragma unroll 1
        for (int64_t key = begin; key < end; ++key) {
            const int64_t offset = page_value_offset(params, tile, key);
            row_source_t row = v;
            row.pointer += max((long long)offset, 0ll) * kv_element_bytes<C>;
            o = add_non_finite_keys<C>(o, row, 0, offset >= 0);
        }
        return o;
    } else {
        return add_non_finite_keys<C>(o, v, begin, end);
    }
}

/* The keys that a row sees in the blocks that a mask cuts, left and right of the whole blocks. */
typedef struct cut_keys {
    int64_t begin, left_end, right_begin, end;
} cut_keys_t;

template <flash_config_t C>
static __device__ __forceinline__ cut_keys_t find_cut_keys(const flash_params_t &params,
                                                           const query_tile_t &tile, int row) {
    const flash_range_t keys =
        visible_keys<C>(params, tile.sequence, (int64_t)tile.row_begin + row);
    const int64_t whole_begin = (int64_t)tile.whole_begin * C.B_c;
    const int64_t whole_end = max((int64_t)end_of_whole_blocks<C>(tile) * C.B_c, whole_begin);
    return cut_keys_t{keys.begin, min(whole_begin, (int64_t)keys.end),
                      max(whole_end, (int64_t)keys.begin), keys.end};
}

template <flash_config_t C>
static __device__ __forceinline__ uint4 add_visible_non_finite(uint4 o,
                                                               const flash_params_t &params,
                                                               const query_tile_t &tile,
                                                               const row_source_t &v, int row) {
    const cut_keys_t keys = find_cut_keys<C>(params, tile, row);
    o = add_keys_of_tile<C>(o, params, tile, v, keys.begin, keys.left_end);
    return add_keys_of_tile<C>(o, params, tile, v, keys.right_begin, keys.end);
}

/* Returns the run with the sequence's first key; with pages, with the pool's first row. */
template <flash_config_t C>
static __device__ __forceinline__ flash_kv_run_t first_values(const query_tile_t &tile) {
    return has_pages<C> ? flash_kv_run_t{0, 0, 0, 0}
                        : flash_kv_run(&tile.sequence, tile.batch_index, 0);
}

/* Adds what is not finite in V to the warp's rows of O in shared memory. */
template <flash_config_t C>
static __device__ void add_non_finite_v(const flash_params_t &params, const query_tile_t &tile,
                                        uint32_t shared) {
    const int first_row = threadIdx.x / SM80_WARP_THREADS * warp_rows<C>;
    const flash_kv_run_t run = first_values<C>(tile);
    const row_source_t rows =
        make_row_source<C, kv_element_bytes<C>>(params.v, params.v_stride, params.d_head_v,
                                                run.entry, tile.head / params.group, run.begin, 0);
#pragma unroll 1
    for (int i = threadIdx.x % SM80_WARP_THREADS; i < warp_rows<C> * row_chunks<C>;
         i += SM80_WARP_THREADS) {
        const int row = first_row + i / row_chunks<C>;
        const int chunk = i % row_chunks<C>;
        const uint32_t address = shared + chunk_offset<C>(row, chunk);
        row_source_t v = rows;
        v.pointer += chunk * kv_chunk_bytes<C>;
        v.column += chunk * chunk_elements<C>;
        shared_store(address,
                     add_visible_non_finite<C>(shared_load(address), params, tile, v, row));
    }
}

/* Adds what is not finite in keys [begin, end) of one column of V to an element of O in fp32. */
template <flash_config_t C>
static __device__ float add_non_finite_keys_to_fp32(float o, const kv_element_bits<C> *v,
                                                    int64_t stride, int64_t begin, int64_t end) {
#pragma unroll 1
    for (int64_t key = begin; key < end; ++key)
        o = add_non_finite_to_fp32<C.dtype>(o, v, key * stride);
    return o;
}

template <flash_config_t C>
static __device__ float add_keys_of_tile(float o, const flash_params_t &params,
                                         const query_tile_t &tile, const kv_element_bits<C> *v,
                                         int64_t begin, int64_t end) {
    if constexpr (has_pages<C>) {
#pragma unroll 1
        for (int64_t key = begin; key < end; ++key) {
            const int64_t offset = page_value_offset(params, tile, key);
            const kv_element_bits<C> *value = v + max((long long)offset, 0ll);
            o = add_non_finite_keys_to_fp32<C>(o, value, 0, 0, offset >= 0);
        }
        return o;
    } else {
        return add_non_finite_keys_to_fp32<C>(o, v, params.v_stride.seq, begin, end);
    }
}

/* Adds what is not finite in V to the warp's rows of O in fp32, just stored; o: the tile's
 * first. */
template <flash_config_t C>
static __device__ void add_non_finite_v_to_fp32(const flash_params_t &params,
                                                const query_tile_t &tile, float *o) {
    const int first_row = threadIdx.x / SM80_WARP_THREADS * warp_rows<C>;
    const int64_t stride = params.v_stride.seq;
    const flash_kv_run_t run = first_values<C>(tile);
    const kv_element_bits<C> *v =
        (const kv_element_bits<C> *)params.v + run.entry * params.v_stride.batch +
        tile.head / params.group * params.v_stride.head + run.begin * stride;
#pragma unroll 1
    for (int row = first_row; row < min(first_row + warp_rows<C>, tile.rows); ++row) {
        const cut_keys_t keys = find_cut_keys<C>(params, tile, row);
        float *to = o + row * params.o_stride.seq;
#pragma unroll 1
        for (int i = threadIdx.x % SM80_WARP_THREADS; i < params.d_head_v; i += SM80_WARP_THREADS) {
            float sum = to[i];
            sum = add_keys_of_tile<C>(sum, params, tile, v + i, keys.begin, keys.left_end);
            to[i] = add_keys_of_tile<C>(sum, params, tile, v + i, keys.right_begin, keys.end);
        }
    }
}

#endif
