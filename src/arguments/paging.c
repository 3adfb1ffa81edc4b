/*
 * See paging.h.
 */
#include "arguments/paging.h"

#include "arguments/checks.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/kv.h"

#include <inttypes.h>

/* ---- The struct ---- */

/* Lengths come from seqused_k alone. */
static flash_status_t check_lengths(const flash_forward_args_t *a) {
    FLASH_REQUIRE(a->cu_seqlens_k == NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "cu_seqlens_k is given with paging: keys in pages are no ragged tensor");
    FLASH_REQUIRE(a->seqused_k != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "seqused_k is NULL with paging: it says how many keys each sequence has");
    return FLASH_SUCCESS;
}

static flash_status_t check_sizes(const flash_paging_t *g) {
    FLASH_REQUIRE(g->reserved32 == 0, FLASH_ERROR_UNSUPPORTED, "paging.reserved32 is not zero");
    FLASH_TRY(argument_check_count("paging.page_size", g->page_size));
    FLASH_TRY(argument_check_size("paging.n_pages", g->n_pages));
    return argument_check_size("paging.page_table_stride", g->page_table_stride);
}

/* A cache of slots has rows, and nothing of a table. */
static flash_status_t check_slots(const flash_paging_t *g) {
    FLASH_REQUIRE(
        g->page_rows != NULL, FLASH_ERROR_INVALID_ARGUMENT,
        "paging.page_table and paging.page_rows are NULL: one of them says where the keys "
        "of a sequence lie");
    FLASH_REQUIRE(g->page_indptr == NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_indptr is given without a page_table");
    FLASH_REQUIRE(g->v_page_table == NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.v_page_table is given without a page_table");
    FLASH_REQUIRE(g->page_table_stride == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_table_stride is %" PRId64 " without a page_table",
                  g->page_table_stride);
    return FLASH_SUCCESS;
}

/* With page_indptr there are no rows. */
static flash_status_t check_table(const flash_paging_t *g) {
    FLASH_REQUIRE(g->page_indptr == NULL || g->page_rows == NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_indptr and paging.page_rows are given: a table has rows or not");
    FLASH_REQUIRE(g->page_indptr == NULL || g->page_table_stride == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_table_stride is %" PRId64 " with page_indptr: it must be 0",
                  g->page_table_stride);
    return FLASH_SUCCESS;
}

flash_status_t arguments_read_paging(const flash_forward_args_t *own, flash_pages_t *pages) {
    flash_paging_t g;
    *pages = (flash_pages_t){0};
    if (own->paging == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(struct_read(&g, sizeof g, own->paging, "flash_paging_t"));
    FLASH_TRY(check_lengths(own));
    FLASH_TRY(check_sizes(&g));
    FLASH_TRY(g.page_table == NULL ? check_slots(&g) : check_table(&g));
    *pages = (flash_pages_t){.table = g.page_table,
                             .table_stride = g.page_table_stride,
                             .indptr = g.page_indptr,
                             .rows = g.page_rows,
                             .v_table = g.v_page_table ? g.v_page_table : g.page_table,
                             .page_size = (int32_t)g.page_size,
                             .n_pages = (int32_t)g.n_pages};
    return FLASH_SUCCESS;
}

/* ---- The arrays ---- */

/* Ascending from 0 or more. *ids: how many there are. */
static flash_status_t check_indptr(const flash_params_t *p, int64_t *ids) {
    int32_t last = 0;
    for (int32_t b = 0; b <= p->batch; b++) {
        const int32_t next = flash_load_length(p->pages.indptr, b);
        FLASH_REQUIRE(next >= last, FLASH_ERROR_INVALID_ARGUMENT,
                      "page_indptr[%" PRId32 "] is %" PRId32 ": below %" PRId32
                      ", where the ids before it begin",
                      b, next, last);
        last = next;
    }
    *ids = last;
    return FLASH_SUCCESS;
}

/* Not negative; of slots, one of them; where the sequence has keys. *rows: past the last one. */
static flash_status_t check_rows(const flash_params_t *p, int64_t *rows) {
    const int32_t most = p->pages.table ? INT32_MAX : p->pages.n_pages - 1;
    *rows = 0;
    for (int32_t b = 0; b < p->batch; b++) {
        const int32_t row = flash_load_length(p->pages.rows, b);
        if (flash_load_length(p->seqused_k, b) == 0)
            continue;
        FLASH_REQUIRE(row >= 0 && row <= most, FLASH_ERROR_INVALID_ARGUMENT,
                      "page_rows[%" PRId32 "] is %" PRId32 ": not within 0 ... %" PRId32, b, row,
                      most);
        if (row >= *rows)
            *rows = (int64_t)row + 1;
    }
    return FLASH_SUCCESS;
}

/* The length of sequence b lies within what its row holds. */
static flash_status_t check_room(const flash_params_t *p, int32_t b) {
    const int32_t used = flash_load_length(p->seqused_k, b);
    const int64_t room = flash_kv_room(p, b);
    FLASH_REQUIRE(used <= room, FLASH_ERROR_INVALID_ARGUMENT,
                  "seqused_k[%" PRId32 "] is %" PRId32 ": its pages hold %" PRId64 " keys", b, used,
                  room);
    return FLASH_SUCCESS;
}

/* The ids that sequence b uses. */
static flash_status_t check_ids(const char *name, const flash_params_t *p, const int32_t *table,
                                int32_t b) {
    const int64_t begin = flash_kv_first_id(p, b), size = p->pages.page_size;
    const int64_t n = ((int64_t)flash_load_length(p->seqused_k, b) + size - 1) / size;
    for (int64_t i = 0; i < n; i++) {
        const int32_t id = flash_load_length(table, begin + i);
        FLASH_REQUIRE(id >= 0 && id < p->pages.n_pages, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s: page %" PRId64 " of sequence %" PRId32 ", at place %" PRId64
                      ", is %" PRId32 ": not within 0 ... %" PRId32,
                      name, i, b, begin + i, id, p->pages.n_pages - 1);
    }
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_pages(const flash_params_t *p, page_limits_t *limits) {
    if (p->pages.indptr)
        FLASH_TRY(check_indptr(p, &limits->ids));
    if (p->pages.rows)
        FLASH_TRY(check_rows(p, &limits->rows));
    for (int32_t b = 0; b < p->batch; b++) {
        FLASH_TRY(check_room(p, b));
        if (p->pages.table)
            FLASH_TRY(check_ids("page_table", p, p->pages.table, b));
        if (p->pages.v_table != p->pages.table)
            FLASH_TRY(check_ids("v_page_table", p, p->pages.v_table, b));
    }
    return FLASH_SUCCESS;
}
