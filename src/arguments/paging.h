/*
 * K and V in pages: what the caller's paging says, and where its pages are checked.
 */
#ifndef FLASH_ARGUMENTS_PAGING_H
#define FLASH_ARGUMENTS_PAGING_H

#include "core/problem.h"
#include "flashattn.h"

/* Reads the call's paging; NULL: all zero. Checks sizes and which arrays there are, and looks at
 * none. INVALID_ARGUMENT, UNSUPPORTED (a newer caller's field). */
flash_status_t arguments_read_paging(const flash_forward_args_t *own, flash_pages_t *pages);

/* Checks a page table in host memory, as far as the sequences' lengths reach into it; the lengths
 * are checked. *limits: what was found. */
flash_status_t arguments_check_pages(const flash_params_t *params, page_limits_t *limits);

#endif
