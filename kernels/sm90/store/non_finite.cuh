/*
 * The infinities and NaNs of V that were zeroed because a mask hides their keys from some rows
 * (load/sanitise_v.cuh), added to those rows of O that see them. Only the rare tile that had any
 * comes here, after its O has been written to global memory.
 */
#ifndef FLASH_KERNELS_SM90_STORE_NON_FINITE_CUH
#define FLASH_KERNELS_SM90_STORE_NON_FINITE_CUH

#include "common/kv.h"
#include "common/non_finite.cuh"
#include "sm90/tile.cuh"

/* Rows of V of one sequence and head. */
template <flash_config_t C> struct value_rows {
    const element_bits<C> *first; /* of the sequence's first key; in pages, of the pool's */
    int64_t stride;
};

/* The same in pages, which are found key by key. */
template <flash_config_t C> struct value_pages : value_rows<C> {
    const flash_params_t &p;
    flash_sequence_t sequence;
    int64_t first_id;
};

template <flash_config_t C>
using values_of = std::conditional_t<has_pages<C>, value_pages<C>, value_rows<C>>;

template <flash_config_t C>
static __device__ __forceinline__ values_of<C> make_values(const flash_params_t &p,
                                                           const tile_of<C> &tile) {
    const flash_sequence_t sequence = sequence_of<C>(p, tile);
    const element_bits<C> *head =
        (const element_bits<C> *)p.v + tile.head / p.group * p.v_stride.head;
    if constexpr (has_pages<C>) {
        return {{head, p.v_stride.seq}, p, sequence, flash_kv_first_id(&p, tile.batch_index)};
    } else {
        const flash_kv_run_t run = flash_kv_run(&sequence, tile.batch_index, 0);
        return {head + run.entry * p.v_stride.batch + run.begin * p.v_stride.seq, p.v_stride.seq};
    }
}

/* Elements from v.first to the first one of a key's row; negative: the key is in no page. */
template <flash_config_t C>
static __device__ __forceinline__ int64_t value_offset(const values_of<C> &v, int64_t key) {
    if constexpr (has_pages<C>) {
        const flash_kv_run_t run =
            flash_kv_paged_run(&v.p.pages, v.p.pages.table ? v.p.pages.v_table : NULL, &v.sequence,
                               v.first_id, key);
        const bool exists = run.entry >= 0 && run.entry < v.p.pages.n_pages;
        return exists ? flash_kv_offset(&v.p.v_stride, &run, 0) : -1;
    } else {
        return key * v.stride;
    }
}

/* Adds what is not finite in keys [begin, end) of one column of V to an element of O: its bits, of
 * V's type, or a number of fp32. */
template <flash_config_t C>
static __device__ uint32_t add_non_finite_keys(uint32_t o, const values_of<C> &v, int column,
                                               int64_t begin, int64_t end) {
#pragma unroll 1
    for (int64_t key = begin; key < end; ++key) {
        const int64_t offset = value_offset<C>(v, key);
        if (!has_pages<C> || offset >= 0)
            o = add_non_finite<C.dtype>(o, v.first[column + offset]);
    }
    return o;
}

template <flash_config_t C>
static __device__ float add_non_finite_keys(float o, const values_of<C> &v, int column,
                                            int64_t begin, int64_t end) {
#pragma unroll 1
    for (int64_t key = begin; key < end; ++key) {
        const int64_t offset = value_offset<C>(v, key);
        if (!has_pages<C> || offset >= 0)
            o = add_non_finite_to_fp32<C.dtype>(o, v.first + column, offset);
    }
    return o;
}

/* Completes one row of O, which the warp has written, by the keys that the row sees in the blocks
 * that a mask cuts, left and right of the whole ones. element: element_bits<C> or float. */
template <flash_config_t C, typename element>
static __device__ void add_non_finite_v(const flash_params_t &p, const tile_of<C> &tile,
                                        int32_t row, element *o) {
    typedef std::conditional_t<std::is_same_v<element, float>, float, uint32_t> sum_t;
    const values_of<C> v = make_values<C>(p, tile);
    const flash_range_t keys = visible_keys<C>(p, tile, row);
    const int64_t whole_begin = (int64_t)tile.whole_begin * C.B_c;
    const int64_t whole_end = max((int64_t)tile.whole_end * C.B_c, whole_begin);
#pragma unroll 1
    for (int column = threadIdx.x % warp_threads; column < p.d_head; column += warp_threads) {
        sum_t sum = o[column];
        sum = add_non_finite_keys<C>(sum, v, column, keys.begin,
                                     min(whole_begin, (int64_t)keys.end));
        sum = add_non_finite_keys<C>(sum, v, column, max(whole_end, (int64_t)keys.begin),
                                     keys.end);
        o[column] = (element)sum;
    }
}

#endif
