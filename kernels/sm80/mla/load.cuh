/*
 * All warps load keys of 16 bits into a stage, by asynchronous copies of 16 bytes: eight lanes
 * copy a line of a panel, so that a warp copies 128 bytes each of four keys at a time. A thread
 * copies chunks of one key, or of two; with pages it has loaded the page's id a step before. Keys
 * past the walk's end and columns past d_head, of V past d_head_v, become zeros, and no memory is
 * read for them.
 */
#ifndef FLASH_KERNELS_SM80_MLA_LOAD_CUH
#define FLASH_KERNELS_SM80_MLA_LOAD_CUH

#include "common/ptx/async_copy.cuh"
#include "sm80/mla/key_source.cuh"

/* Keys that all warps copy at a time, and the warps that share their panels. */
constexpr int warp_keys = DECODE_WARP_THREADS / line_chunks;
template <flash_config_t C>
constexpr int keys_together = C.B_c < C.n_warps *warp_keys ? C.B_c : C.n_warps *warp_keys;
template <flash_config_t C> constexpr int panel_warps = C.n_warps *warp_keys / keys_together<C>;
template <flash_config_t C> constexpr int key_passes = C.B_c / keys_together<C>;

/* These are the ids of the pages of the thread's keys of a step, or the slot. */
template <flash_config_t C> struct page_ids { int32_t of[key_passes<C>]; };

/* The first of the chunks that a thread copies of each step. */
typedef struct copy_place {
    int line; /* of a panel: a key of the step */
    int panel;
    int chunk; /* of a line */
} copy_place_t;

/* Finds the place anew in each step, because registers are full. */
template <flash_config_t C> static __device__ __forceinline__ copy_place_t find_copy_place() {
    const int warp = warp_number(), lane = lane_number();
    return {warp / panel_warps<C> * warp_keys + lane / line_chunks, warp % panel_warps<C>,
            lane % line_chunks};
}

/* ---- Pages ---- */

/* Loads the ids of the pages of the thread's keys of the step that begins with a key. end: of the
 * walk. */
template <flash_config_t C>
static __device__ __forceinline__ void fetch_ids(page_ids<C> &ids, const key_source_t &source,
                                                 const sm80_decode_params_t &params,
                                                 int32_t step_key, int32_t end) {
    if constexpr (has_pages<C>) {
        int32_t key = step_key + find_copy_place<C>().line;
#pragma unroll
        for (int i = 0; i < key_passes<C>; ++i, key += keys_together<C>)
            ids.of[i] = fetch_id(source, params, key, end);
    }
}

/* ---- Steps ---- */

/* The copies of a thread for a step, before they are issued. */
template <flash_config_t C> struct step_copies {
    const char *from[key_passes<C>]; /* the first chunk of each key */
    bool exists[key_passes<C>];
    uint32_t to;
    int32_t columns; /* from the first chunk on */
};

/* Finds the copies of the step that begins with a key. end: of the walk. */
template <flash_config_t C, key_tensor T>
static __device__ __forceinline__ step_copies<C>
find_copies(uint32_t stage, const page_ids<C> &ids, const key_source_t &source,
            const sm80_decode_params_t &params, int32_t step_key, int32_t end) {
    const copy_place_t place = find_copy_place<C>();
    const int32_t first_column = place.panel * panel_columns + place.chunk * chunk_columns;
    step_copies<C> copies;
    copies.to = stage + place.panel * panel_bytes<C> + chunk_offset(place.line, place.chunk);
    copies.columns = tensor_columns<T>(params.attention) - first_column;
#pragma unroll
    for (int i = 0; i < key_passes<C>; ++i) {
        const int32_t key = step_key + place.line + i * keys_together<C>;
        const int64_t offset = key_offset<C, T>(source, params, key, end, ids.of[i]);
        copies.exists[i] = offset >= 0;
        copies.from[i] =
            source.head + max((long long)offset, 0ll) + first_column * dtype_size(C.dtype);
    }
    return copies;
}

/* The panels of which a thread copies chunks, at most. */
template <flash_config_t C>
constexpr int panel_passes = (key_panels<C> + panel_warps<C> - 1) / panel_warps<C>;

/* Starts to copy the thread's chunks of the n-th of its panels. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_panel(const step_copies<C> &copies, int n) {
    const int panel = n * panel_warps<C>;
    if (panel + panel_warps < C >> key_panels<C> &&
        panel + find_copy_place<C>().panel >= key_panels<C>)
        return;
#pragma unroll
    for (int i = 0; i < key_passes<C>; ++i)
        async_copy_or_zero(copies.to + panel * panel_bytes<C> +
                               i * keys_together<C> * DECODE_LINE_BYTES,
                           copies.from[i] + panel * DECODE_LINE_BYTES,
                           copies.exists[i] && panel * panel_columns < copies.columns);
}

#endif
