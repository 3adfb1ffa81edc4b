#include "cuda/v_in_k.h"

#include <string.h>

/* Families with a V of its own serve head dimensions up to this one. */
enum { MOST_D_HEAD_OF_OTHERS = 256 };

bool v_is_in_k(const flash_params_t *p) {
    return p->v == p->k && memcmp(&p->v_stride, &p->k_stride, sizeof p->k_stride) == 0 &&
           p->pages.v_table == p->pages.table && p->d_head_v <= p->d_head;
}

bool v_in_k_is_small(const flash_params_t *p) {
    return p->d_head <= MOST_D_HEAD_OF_OTHERS;
}
