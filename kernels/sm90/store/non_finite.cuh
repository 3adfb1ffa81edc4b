/*
 * The infinities and NaNs of V that were zeroed because a mask hides their keys from some rows
 * (load/sanitise_v.cuh) are added to those rows of O that see them. Only the rare tile that had any
 * comes here, after its O has been written to global memory.
 */
#ifndef FLASH_KERNELS_SM90_STORE_NON_FINITE_CUH
#define FLASH_KERNELS_SM90_STORE_NON_FINITE_CUH

#include "common/kv.h"
#include "common/non_finite.cuh"
#include "sm90/tile.cuh"

/* Adds what is not finite in keys [begin, end) of one column of V to an element of O: its bits, of
 * V's type or beside V of e4m3 of any of 16 bits, or a number of fp32. */
template <flash_config_t C>
static __device__ uint32_t add_non_finite_keys(uint32_t o, const kv_element_bits<C> *v,
                                               int64_t stride, int64_t begin, int64_t end) {
#pragma unroll 1
    for (int64_t key = begin; key < end; ++key)
        o = add_non_finite<C.dtype>(o, v[key * stride]);
    return o;
}

template <flash_config_t C>
static __device__ float add_non_finite_keys(float o, const kv_element_bits<C> *v, int64_t stride,
                                            int64_t begin, int64_t end) {
#pragma unroll 1
    for (int64_t key = begin; key < end; ++key)
        o = add_non_finite_to_fp32<C.dtype>(o, v, key * stride);
    return o;
}

/* Adds keys of a tile's sequence. v: the column in the sequence's first key; in pages, which
 * are found key by key, in the pool's. An id that is no page adds nothing. */
template <flash_config_t C, typename sum_t>
static __device__ __forceinline__ sum_t add_keys_of_tile(sum_t o, const flash_params_t &p,
                                                         const tile_of<C> &tile,
                                                         const kv_element_bits<C> *v, int64_t begin,
                                                         int64_t end) {
    if constexpr (!has_pages<C>) {
        return add_non_finite_keys<C>(o, v, p.v_stride.seq, begin, end);
    } else {
        const flash_sequence_t sequence = sequence_of<C>(p, tile);
        const int64_t first_id = flash_pages_first_id(&p.pages, tile.batch_index);
#pragma unroll 1
        for (int64_t key = begin; key < end; ++key) {
            const flash_kv_run_t run =
                flash_kv_paged_run(&p.pages, p.pages.v_table, &sequence, first_id, key);
            if (run.entry >= 0 && run.entry < p.pages.n_pages)
                o = add_non_finite_keys<C>(o, v + flash_kv_offset(&p.v_stride, &run, 0), 0, 0, 1);
        }
        return o;
    }
}

/* Completes one row of O, which the warp has written, by the keys that the row sees in the blocks
 * that a mask cuts, left and right of the whole ones. element: element_bits<C> or float. */
template <flash_config_t C, typename element>
static __device__ void add_non_finite_v(const flash_params_t &p, const tile_of<C> &tile,
                                        int32_t row, element *o) {
    typedef std::conditional_t<std::is_same_v<element, float>, float, uint32_t> sum_t;
    const flash_sequence_t sequence = sequence_of<C>(p, tile);
    const flash_kv_run_t run =
        has_pages<C> ? flash_kv_run_t{0, 0, 0, 0} : flash_kv_run(&sequence, tile.batch_index, 0);
    const kv_element_bits<C> *v = (const kv_element_bits<C> *)p.v + run.entry * p.v_stride.batch +
                                  tile.head / p.group * p.v_stride.head +
                                  run.begin * p.v_stride.seq;
    const flash_range_t keys = visible_keys<C>(p, tile, row);
    const int64_t whole_begin = (int64_t)tile.whole_begin * C.B_c;
    const int64_t whole_end = max((int64_t)tile.whole_end * C.B_c, whole_begin);
#pragma unroll 1
    for (int column = threadIdx.x % warp_threads; column < p.d_head_v; column += warp_threads) {
        sum_t sum = o[column];
        sum = add_keys_of_tile<C>(sum, p, tile, v + column, keys.begin,
                                  min(whole_begin, (int64_t)keys.end));
        sum = add_keys_of_tile<C>(sum, p, tile, v + column, max(whole_end, (int64_t)keys.begin),
                                  keys.end);
        o[column] = (element)sum;
    }
}

#endif
