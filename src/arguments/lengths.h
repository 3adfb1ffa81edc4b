/*
 * The lengths of ragged batches are checked here if they lie in host memory.
 */
#ifndef FLASH_ARGUMENTS_LENGTHS_H
#define FLASH_ARGUMENTS_LENGTHS_H

#include "flashattn.h"

/* Requires that cu_seqlens ascends from 0 in steps of at most seqlen. *total: its tokens. */
flash_status_t lengths_check_cu_seqlens(const char *name, const int32_t *cu_seqlens, int32_t batch,
                                        int32_t seqlen, int64_t *total);

#endif
