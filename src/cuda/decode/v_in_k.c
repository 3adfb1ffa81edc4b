#include "cuda/decode/v_in_k.h"

/* Families with a V of its own serve head dimensions up to this one. */
enum { MOST_D_HEAD_OF_OTHERS = 256 };

bool v_in_k_is_small(const flash_params_t *p) {
    return p->d_head <= MOST_D_HEAD_OF_OTHERS;
}
