/*
 * These functions read what the caller says of K and V in pages, and check its page tables.
 */
#ifndef FLASH_ARGUMENTS_PAGING_H
#define FLASH_ARGUMENTS_PAGING_H

#include "arguments/regions.h"
#include "core/problem.h"
#include "flashattn.h"

#include <stdbool.h>

/* Reads the call's paging; NULL gives all zero. Checks sizes and which arrays are given, but reads
 * no array. Returns INVALID_ARGUMENT, or UNSUPPORTED for a field of a newer caller. */
flash_status_t arguments_read_paging(const flash_forward_args_t *checked, flash_pages_t *pages);

/* Reads where the keys of each sequence lie. has_keys: some sequence may have keys, or gets some.
 * Errors as above. */
flash_status_t arguments_read_pages(const flash_paging_t *paging, bool has_keys,
                                    flash_pages_t *pages);

/* Reads a pool of pages whose tokens have numbers of their own (slots), without a table. Errors as
 * above. */
flash_status_t arguments_read_pool(const flash_paging_t *paging, flash_pages_t *pages);

/* Checks a page table in host memory as far as the sequences' lengths reach, which are checked too.
 * *limits receives what the arrays hold. */
flash_status_t arguments_check_pages(const flash_params_t *params, page_limits_t *limits);

/* Adds the arrays to the call's regions. n_ids: those of the table that the call may read, 0 where
 * the host does not know. */
void arguments_add_pages(const flash_pages_t *pages, int64_t batch, int64_t n_ids,
                         regions_t *regions);

/* Requires arrays that are aligned to their elements. */
flash_status_t arguments_check_page_alignments(const flash_pages_t *pages);

#endif
