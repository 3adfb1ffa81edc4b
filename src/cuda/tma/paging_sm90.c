#include "cuda/tma/paging_sm90.h"

#include "cuda/tma/tma_tensor.h"
#include "cuda/tuning.h"

#include <stddef.h>

enum { MOST_BOXES = 32 /* of a block of keys: one for each lane of a warp */ };

/* Returns the greatest power of two that divides page_size, the block and what blocks begin at; 0
 * if keys are better copied one by one. */
static int32_t box_keys(const flash_config_t *config, int32_t page_size, int32_t unit_keys) {
    const int32_t multiples = config->B_c | page_size | unit_keys;
    const int32_t keys = multiples & -multiples;
    return keys >= TMA_BOX_MIN_KEYS && keys * MOST_BOXES >= config->B_c ? keys : 0;
}

static int64_t token_bytes(const tma_tensor_t *tensor) {
    return tensor->stride[1] * tensor->element_bytes;
}

sm90_paging_t paging_sm90(const flash_config_t *config, const flash_params_t *p,
                          int32_t unit_keys) {
    if (!sm90_has_pages(config))
        return (sm90_paging_t){.box_keys = 0};
    const tma_tensor_t k = tma_tensor_k(config, p), v = tma_tensor_v(config, p);
    const int32_t page_size = p->pages.page_size;
    return (sm90_paging_t){.by_page_size = flash_divider(page_size),
                           .box_keys = box_keys(config, page_size, unit_keys),
                           .k_token_bytes = (uint32_t)token_bytes(&k),
                           .v_token_bytes = (uint32_t)token_bytes(&v)};
}

int32_t paging_sm90_box_keys(const flash_config_t *config, const sm90_paging_t *paging) {
    return paging->box_keys > 0 ? paging->box_keys : config->B_c;
}

const char *paging_sm90_obstacle(const flash_config_t *config, const flash_params_t *p) {
    if (!sm90_has_pages(config))
        return NULL;
    if (p->pages.page_size == 0)
        return "SM90 kernels with paged read K and V only in pages";
    if (p->pages.n_pages == 0)
        return "SM90 kernels with paged need a page at least";
    const tma_tensor_t k = tma_tensor_k(config, p), v = tma_tensor_v(config, p);
    if (token_bytes(&k) > UINT32_MAX || token_bytes(&v) > UINT32_MAX)
        return "SM90 kernels with paged need tokens less than 2^32 bytes apart";
    return NULL;
}
