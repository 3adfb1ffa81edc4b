/*
 * CUDA kernels find here the keys that lie in holes of a page table (FLASH_FLAG_PAGE_HOLES). Zeros
 * are loaded for them, as for any id that is no page, and their scores become -infinity.
 */
#ifndef FLASH_KERNELS_COMMON_PAGE_HOLES_CUH
#define FLASH_KERNELS_COMMON_PAGE_HOLES_CUH

#include "common/kv.h"

/* These ids of a sequence's pages may be holes. */
typedef struct hole_ids {
    const int32_t *of_pages; /* of K; NULL: the call has no holes */
    int32_t last_key;        /* of the sequence, which has one at least */
} hole_ids_t;

static __device__ __forceinline__ hole_ids_t find_hole_ids(const flash_params_t &p,
                                                           const flash_sequence_t &sequence,
                                                           int32_t batch_index) {
    hole_ids_t ids = {NULL, sequence.len_k - 1};
    if (p.bias.has_page_holes)
        ids.of_pages = p.pages.table + flash_pages_first_id(&p.pages, batch_index);
    return ids;
}

/* Returns a bit for each of 32 keys from first_key on, set for keys in holes; keys beyond the last
 * one have the bit of that one. page_of(): of a key. All lanes of a warp call it. */
template <typename F>
static __device__ __forceinline__ uint32_t find_holes(const hole_ids_t &ids, int32_t first_key,
                                                      const F &page_of) {
    const int32_t key = min(first_key + (int32_t)(threadIdx.x % 32), ids.last_key);
    const int32_t id = __ldg(ids.of_pages + page_of(key));
    return __ballot_sync(0xffffffffu, id < 0);
}

/* Returns the ids that say where V has holes beside its own; NULL: V's ids say it themselves, or
 * the call has no holes. */
static __device__ __forceinline__ const int32_t *
hole_ids_of_v(const flash_params_t &p, const int32_t *table, int64_t first_id) {
    return p.bias.has_page_holes && table != p.pages.table ? p.pages.table + first_id : NULL;
}

#endif
