/*
 * How the rows of a CUDA family are compared: what choosing asks of each family.
 */
#ifndef FLASH_SELECT_FAMILIES_H
#define FLASH_SELECT_FAMILIES_H

#include "core/device.h"
#include "flashattn.h"
#include "core/problem.h"

/* A row among those of its family that serve with the same d_head and features; less is better, the
 * first field is the most important. */
typedef struct family_rank {
    int64_t without_strategies; /* that always pay */
    int64_t time;               /* estimated, in any unit; 0 where the choice must not look at it */
    int64_t preference;
} family_rank_t;

family_rank_t select_rank_sm80(const flash_config_t *config, const problem_t *problem,
                               const device_t *device);
family_rank_t select_rank_sm90(const flash_config_t *config, const problem_t *problem,
                               const device_t *device);

/* Keys that a row of Q sees, about. */
static inline int64_t select_visible_keys(const flash_params_t *p) {
    const bool triangular = p->window_right >= 0 && p->window_left < 0;
    const int64_t window = (int64_t)p->window_left + p->window_right + 1;
    if (p->window_left >= 0 && p->window_right >= 0 && window < p->seqlen_k)
        return window;
    return triangular ? p->seqlen_k / 2 : p->seqlen_k;
}

#endif
