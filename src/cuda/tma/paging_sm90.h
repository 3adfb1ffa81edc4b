/*
 * Kernels with wgmma read K and V in pages in one of two ways: by TMA, in boxes of a page, or token
 * by token.
 */
#ifndef FLASH_PAGING_SM90_H
#define FLASH_PAGING_SM90_H

#include "flashattn.h"
#include "kernels/sm90/sm90_kernel.h"

/* Returns how a kernel reads the pages of a problem that it serves. Its blocks of keys begin at
 * multiples of unit_keys. Kernels without pages have no use for it: all zeros. */
sm90_paging_t paging_sm90(const flash_config_t *config, const flash_params_t *p, int32_t unit_keys);

/* Counts the keys of a box of K or V. */
int32_t paging_sm90_box_keys(const flash_config_t *config, const sm90_paging_t *paging);

/* Returns why a kernel with pages cannot read the problem's; NULL: it can, or has no pages. */
const char *paging_sm90_obstacle(const flash_config_t *config, const flash_params_t *p);

#endif
