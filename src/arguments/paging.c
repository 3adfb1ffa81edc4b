/*
 * This file reads a call's paging, and checks page tables in host memory.
 */
#include "arguments/paging.h"

#include "arguments/checks.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/sequence.h"

#include <inttypes.h>

/* ---- The struct ---- */

/* Tensors in pages do not say how many keys a sequence has. */
static flash_status_t check_lengths(const flash_forward_args_t *a) {
    FLASH_REQUIRE(a->seqused_k != NULL || a->cu_seqlens_k != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "seqused_k and cu_seqlens_k are NULL with paging: one of them says how many keys "
                  "each sequence has");
    return FLASH_SUCCESS;
}

static flash_status_t check_sizes(const flash_paging_t *g) {
    FLASH_REQUIRE(g->reserved32 == 0, FLASH_ERROR_UNSUPPORTED, "paging.reserved32 is not zero");
    FLASH_TRY(argument_check_count("paging.page_size", g->page_size));
    FLASH_TRY(argument_check_size("paging.n_pages", g->n_pages));
    FLASH_REQUIRE(g->page_rows == NULL || g->page_rows64 == NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_rows and paging.page_rows64 are given: they are the same in 32 and "
                  "in 64 bits");
    return argument_check_size("paging.page_table_stride", g->page_table_stride);
}

static bool has_rows(const flash_paging_t *g) {
    return g->page_rows != NULL || g->page_rows64 != NULL;
}

/* A cache of slots has page_rows, and nothing that belongs to a page table. */
static flash_status_t check_slots(const flash_paging_t *g) {
    FLASH_REQUIRE(
        has_rows(g), FLASH_ERROR_INVALID_ARGUMENT,
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

/* A table that is addressed by page_indptr has no rows. Other rows hold at least one id, unless no
 * sequence can have keys: on a device their lengths would be cut to nothing. */
static flash_status_t check_table(const flash_paging_t *g, bool may_hold_none) {
    FLASH_REQUIRE(g->page_indptr == NULL || !has_rows(g), FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_indptr and paging.page_rows are given: a table has rows or not");
    FLASH_REQUIRE(g->page_indptr == NULL || g->page_table_stride == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_table_stride is %" PRId64 " with page_indptr: it must be 0",
                  g->page_table_stride);
    FLASH_REQUIRE(g->page_indptr != NULL || g->page_table_stride > 0 || may_hold_none,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_table_stride is 0: a row of page_table holds no id then");
    return FLASH_SUCCESS;
}

/* A pool that slots of tokens are counted in has neither table nor rows. */
static flash_status_t check_pool(const flash_paging_t *g) {
    FLASH_REQUIRE(g->page_table == NULL && !has_rows(g), FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_table or paging.page_rows is given with slot_mapping: one of them "
                  "says where a token goes");
    FLASH_REQUIRE(g->page_indptr == NULL && g->v_page_table == NULL && g->page_table_stride == 0,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "paging.page_indptr, v_page_table or page_table_stride is given without a "
                  "page_table");
    return FLASH_SUCCESS;
}

static flash_pages_t pages_of(const flash_paging_t *g) {
    return (flash_pages_t){.table = g->page_table,
                           .table_stride = g->page_table_stride,
                           .indptr = g->page_indptr,
                           .rows = g->page_rows,
                           .rows64 = g->page_rows64,
                           .v_table = g->v_page_table ? g->v_page_table : g->page_table,
                           .page_size = (int32_t)g->page_size,
                           .n_pages = (int32_t)g->n_pages};
}

static flash_status_t read_paging(const flash_paging_t *paging, flash_paging_t *g) {
    FLASH_TRY(STRUCT_READ(flash_paging_t, g, paging));
    return check_sizes(g);
}

flash_status_t arguments_read_pages(const flash_paging_t *paging, bool has_keys,
                                    flash_pages_t *pages) {
    flash_paging_t g;
    FLASH_TRY(read_paging(paging, &g));
    FLASH_TRY(g.page_table == NULL ? check_slots(&g) : check_table(&g, !has_keys));
    *pages = pages_of(&g);
    return FLASH_SUCCESS;
}

flash_status_t arguments_read_pool(const flash_paging_t *paging, flash_pages_t *pages) {
    flash_paging_t g;
    FLASH_TRY(read_paging(paging, &g));
    FLASH_TRY(check_pool(&g));
    *pages = pages_of(&g);
    return FLASH_SUCCESS;
}

flash_status_t arguments_read_paging(const flash_forward_args_t *checked, flash_pages_t *pages) {
    const bool has_holes = (checked->flags & FLASH_FLAG_PAGE_HOLES) != 0;
    *pages = (flash_pages_t){0};
    FLASH_REQUIRE(checked->paging != NULL || !has_holes, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags has FLASH_FLAG_PAGE_HOLES, and paging is NULL: holes are ids of a "
                  "page_table");
    if (checked->paging == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(check_lengths(checked));
    const bool has_keys = checked->batch > 0 && checked->seqlen_k > 0;
    FLASH_TRY(arguments_read_pages(checked->paging, has_keys, pages));
    FLASH_REQUIRE(pages->table != NULL || !has_holes, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags has FLASH_FLAG_PAGE_HOLES without paging.page_table: slots are no ids of "
                  "pages");
    FLASH_REQUIRE(checked->leftpad_k == NULL || pages->table == NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "leftpad_k is given with a page_table: only keys in one piece can be padded");
    return FLASH_SUCCESS;
}

/* ---- The arrays ---- */

/* The pages of a sequence. Each number is read once, because another thread may change it. */
typedef struct sequence_pages {
    int32_t b;
    int64_t used;  /* keys */
    int64_t begin; /* of its page ids in the table */
    int64_t room;  /* keys that its pages or its slot can hold */
} sequence_pages_t;

/* Reads the range of a sequence's page ids, from *last, which becomes its end. */
static flash_status_t read_indptr(const flash_params_t *p, int32_t b, int32_t *last,
                                  sequence_pages_t *s) {
    const int32_t next = flash_load_length(p->pages.indptr, (int64_t)b + 1);
    FLASH_REQUIRE(next >= *last, FLASH_ERROR_INVALID_ARGUMENT,
                  "page_indptr[%" PRId32 "] is %" PRId32 ": below the %" PRId32 " before it", b + 1,
                  next, *last);
    s->begin = *last;
    s->room = ((int64_t)next - *last) * p->pages.page_size;
    *last = next;
    return FLASH_SUCCESS;
}

static int64_t row_of(const flash_pages_t *pages, int32_t b) {
    if (pages->rows64)
        return flash_load_int64(pages->rows64, b);
    return pages->rows ? flash_load_length(pages->rows, b) : b;
}

/* Reads the row of a sequence, unless it has no keys. *rows: the largest row so far, plus 1. */
static flash_status_t read_row(const flash_params_t *p, sequence_pages_t *s, int64_t *rows) {
    const int64_t row = row_of(&p->pages, s->b);
    const int32_t most = p->pages.table ? INT32_MAX : p->pages.n_pages - 1;
    s->room = (p->pages.table ? p->pages.table_stride : 1) * p->pages.page_size;
    if (s->used == 0)
        return FLASH_SUCCESS;
    FLASH_REQUIRE(row >= 0 && row <= most, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s[%" PRId32 "] is %" PRId64 ": not within 0 ... %" PRId32,
                  p->pages.rows64 ? "page_rows64" : "page_rows", s->b, row, most);
    s->begin = row * p->pages.table_stride;
    if (row >= *rows)
        *rows = row + 1;
    return FLASH_SUCCESS;
}

/* Says whether the id at a place of the table is a hole, for V's table too. */
static bool is_hole(const flash_params_t *p, int64_t at) {
    return p->bias.has_page_holes && flash_load_length(p->pages.table, at) < 0;
}

static flash_status_t check_ids(const char *name, const flash_params_t *p, const int32_t *table,
                                const sequence_pages_t *s) {
    const int64_t size = p->pages.page_size, n = (s->used + size - 1) / size;
    for (int64_t i = 0; i < n; i++) {
        const int32_t id = flash_load_length(table, s->begin + i);
        if (is_hole(p, s->begin + i))
            continue;
        FLASH_REQUIRE(id >= 0 && id < p->pages.n_pages, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s: page %" PRId64 " of sequence %" PRId32 ", at place %" PRId64
                      ", is %" PRId32 ": not within 0 ... %" PRId32,
                      name, i, s->b, s->begin + i, id, p->pages.n_pages - 1);
    }
    return FLASH_SUCCESS;
}

/* Requires that a sequence's pages hold its keys. */
static flash_status_t check_room(const flash_params_t *p, const sequence_pages_t *s) {
    FLASH_REQUIRE((s->used >= 0 && s->used <= s->room) || p->seqused_k == NULL,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "seqused_k[%" PRId32 "] is %" PRId64 ": its pages hold %" PRId64 " keys", s->b,
                  s->used, s->room);
    FLASH_REQUIRE(s->used >= 0 && s->used <= s->room, FLASH_ERROR_INVALID_ARGUMENT,
                  "cu_seqlens_k[%" PRId32 "] - cu_seqlens_k[%" PRId32 "] is %" PRId64
                  ": its pages hold %" PRId64 " keys",
                  s->b + 1, s->b, s->used, s->room);
    return FLASH_SUCCESS;
}

static flash_status_t check_sequence(const flash_params_t *p, const sequence_pages_t *s) {
    FLASH_TRY(check_room(p, s));
    if (p->pages.table)
        FLASH_TRY(check_ids("page_table", p, p->pages.table, s));
    if (p->pages.v_table != p->pages.table)
        FLASH_TRY(check_ids("v_page_table", p, p->pages.v_table, s));
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_pages(const flash_params_t *p, page_limits_t *limits) {
    int32_t last = p->pages.indptr ? flash_load_length(p->pages.indptr, 0) : 0;
    *limits = (page_limits_t){0, 0};
    FLASH_REQUIRE(last >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "page_indptr[0] is %" PRId32 ": negative", last);
    for (int32_t b = 0; b < p->batch; b++) {
        sequence_pages_t s = {.b = b, .used = problem_keys_in_use(p, b)};
        FLASH_TRY(p->pages.indptr ? read_indptr(p, b, &last, &s) : read_row(p, &s, &limits->rows));
        FLASH_TRY(check_sequence(p, &s));
    }
    limits->ids = last;
    return FLASH_SUCCESS;
}

void arguments_add_pages(const flash_pages_t *pages, int64_t batch, int64_t n_ids,
                         regions_t *regions) {
    const int64_t size = sizeof *pages->table;
    regions_add_array(regions, "paging.page_table", pages->table, n_ids, size);
    if (pages->v_table != pages->table)
        regions_add_array(regions, "paging.v_page_table", pages->v_table, n_ids, size);
    regions_add_array(regions, "paging.page_indptr", pages->indptr, batch + 1, size);
    regions_add_array(regions, "paging.page_rows", pages->rows, batch, size);
    regions_add_array(regions, "paging.page_rows64", pages->rows64, batch, sizeof *pages->rows64);
}

flash_status_t arguments_check_page_alignments(const flash_pages_t *pages) {
    const int64_t size = sizeof *pages->table;
    FLASH_TRY(argument_check_alignment("page_table", pages->table, size));
    FLASH_TRY(argument_check_alignment("v_page_table", pages->v_table, size));
    FLASH_TRY(argument_check_alignment("page_indptr", pages->indptr, size));
    FLASH_TRY(argument_check_alignment("page_rows", pages->rows, size));
    return argument_check_alignment("page_rows64", pages->rows64, sizeof *pages->rows64);
}
