#include "cuda/backward/plan_kept_ds.h"

#include "core/int64.h"
#include "cuda/family.h"

enum {
    DS_BYTES = 2,
    /* A section that is not the whole call has at least so many tiles of dK and dV for eight
     * multiprocessors, since kernels of one section wait for those of the one before. */
    TILES_OF_EIGHT = 15
};

/* ---- Places of a head ---- */

/* Returns the most keys that are between the first and the last that some row of tiles sees. */
static int64_t most_keys_of_row(const flash_params_t *p, int64_t queries) {
    int64_t keys = p->seqlen_k;
    if (p->window_left >= 0 && p->window_right >= 0)
        keys = min64(keys, (int64_t)p->window_left + p->window_right + queries);
    if (p->attention_chunk > 0)
        keys = min64(keys, 2 * (int64_t)p->attention_chunk + queries);
    return keys;
}

/* Returns the most tiles of a row, of keys that begin anywhere in a tile. */
static int64_t most_tiles_of_row(const flash_params_t *p, cuda_ds_tile_t tile) {
    const int64_t keys = most_keys_of_row(p, tile.queries);
    return min64(divide_up(p->seqlen_k, tile.keys), divide_up(keys + tile.keys - 1, tile.keys));
}

static bool is_folded(const flash_params_t *p) {
    return problem_lengths_are_equal(p) && p->window_right >= 0 && p->window_left < 0 &&
           p->attention_chunk == 0;
}

/* Returns the tiles that rows number i and rows - 1 - i have together, at most. The last key that
 * they see moves on by as many keys as there are queries, so that the sum is the same for each i,
 * but where one of them sees none. */
static int64_t most_tiles_of_two(const flash_params_t *p, cuda_ds_tile_t tile, int64_t rows) {
    const int64_t all = divide_up(p->seqlen_k, tile.keys);
    const int64_t of_query_0 = (int64_t)p->seqlen_k - p->seqlen_q + p->window_right + 1;
    const int64_t keys = (rows + 1) * tile.queries - 2 + 2 * of_query_0;
    return min64(2 * all, max64(all, (keys + 2 * (tile.keys - 1)) / tile.keys));
}

static flash_kept_ds_t layout_of(const problem_t *problem, cuda_ds_tile_t tile) {
    const flash_params_t *p = &problem->params;
    const bool is_ragged = p->cu_seqlens_q != NULL;
    const int64_t rows = divide_up(p->seqlen_q, tile.queries);
    const int64_t all_rows = is_ragged ? problem->gradients.n_rows / tile.queries + p->batch : rows;
    flash_kept_ds_t ds = {.rows = (int32_t)rows,
                          .is_folded = !tile.has_own_places && is_folded(p),
                          .has_row_of_batch = is_ragged};
    const int64_t places =
        ds.is_folded ? most_tiles_of_two(p, tile, rows) : most_tiles_of_row(p, tile);
    ds.row_places = (int32_t)places;
    ds.head_tiles = (ds.is_folded ? divide_up(rows, 2) : all_rows) * places;
    return ds;
}

/* ---- Sections ---- */

static uint64_t bytes_of_heads(const flash_kept_ds_t *ds, const flash_params_t *p,
                               cuda_ds_tile_t tile, int64_t n_heads_kv) {
    const uint64_t bytes_of_tile = (uint64_t)tile.queries * (uint64_t)tile.keys * DS_BYTES;
    const uint64_t heads = saturating_multiply((uint64_t)n_heads_kv, (uint64_t)p->group);
    return saturating_multiply(saturating_multiply((uint64_t)ds->head_tiles, heads), bytes_of_tile);
}

/* Returns the K/V heads of a section, of all `units` that there are, `most` of which fit: sections
 * are about as large as each other. */
static int64_t heads_of_section(int64_t units, int64_t most) {
    return divide_up(units, divide_up(units, most));
}

/* Cuts the call so that a section has at most that many K/V heads, over batch entries. */
static flash_section_t section_of(const flash_params_t *p, bool is_ragged, int64_t most) {
    flash_section_t section = {0, p->batch, 0, p->n_heads_kv};
    if (is_ragged)
        section.n_heads = (int32_t)heads_of_section(p->n_heads_kv, most);
    else if (most >= p->n_heads_kv)
        section.n_batch = (int32_t)heads_of_section(p->batch, most / p->n_heads_kv);
    else {
        section.n_batch = 1;
        section.n_heads = (int32_t)heads_of_section(p->n_heads_kv, most);
    }
    return section;
}

/* Counts the tiles of dK and dV of a K/V head of a section. */
static int64_t tiles_of_head(const flash_params_t *p, bool is_ragged, cuda_ds_tile_t tile) {
    return divide_up(p->seqlen_k, tile.keys) * (is_ragged ? p->batch : 1);
}

kept_ds_plan_t plan_kept_ds(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t *p = &problem->params;
    const kept_ds_plan_t none = {.size = 0};
    if (kernel->dq_of_ds == NULL || !problem->has_output || p->batch == 0 || p->seqlen_k == 0)
        return none;
    const cuda_ds_tile_t tile = kernel_op(kernel)->cuda->ds_tile(&kernel->config);
    kept_ds_plan_t plan = {.ds = layout_of(problem, tile)};
    const bool is_ragged = plan.ds.has_row_of_batch;
    const int64_t units = is_ragged ? p->n_heads_kv : (int64_t)p->n_heads_kv * p->batch;
    const uint64_t of_head = bytes_of_heads(&plan.ds, p, tile, 1);
    const int64_t most = (int64_t)(MOST_KEPT_DS / max_u64(of_head, 1));
    const int64_t enough = (int64_t)device->n_multiprocessors * TILES_OF_EIGHT / 8;
    if (most == 0 || (most < units && most * tiles_of_head(p, is_ragged, tile) < enough))
        return none;
    plan.section = section_of(p, is_ragged, most);
    plan.ds.batch_heads = is_ragged ? 0 : plan.section.n_heads * p->group;
    /* The size is that of as many heads as fit, not as a section has, so that it grows with the
     * batch. */
    plan.size = bytes_of_heads(&plan.ds, p, tile, min64(most, units));
    return plan;
}

bool plan_next_section(const kept_ds_plan_t *plan, const flash_params_t *p,
                       flash_section_t *section) {
    section->first_head += section->n_heads;
    if (section->first_head >= p->n_heads_kv) {
        section->first_head = 0;
        section->first_batch += section->n_batch;
    }
    section->n_heads = (int32_t)min64(plan->section.n_heads, p->n_heads_kv - section->first_head);
    section->n_batch = (int32_t)min64(plan->section.n_batch, p->batch - section->first_batch);
    return section->first_batch < p->batch;
}
