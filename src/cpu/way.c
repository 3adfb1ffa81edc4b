/*
 * This file decides which way a CPU task goes.
 */
#include "cpu/way.h"

#include "core/int64.h"
#include "kernels/common/dtype.h"

int64_t cpu_way_split_rows(const cpu_family_t *family, const flash_config_t *config) {
    return min64((int64_t)config->B_r * family->split_blocks, family->rows_max);
}

/* The task has task_blocks blocks of rows, halved until they fit the most rows of a task. */
int32_t cpu_way_task_rows(const cpu_family_t *family, const flash_config_t *config) {
    int32_t rows = family->task_blocks * config->B_r;
    while (rows > family->rows_max)
        rows /= 2;
    return rows;
}

bool cpu_way_is_divisible(const cpu_family_t *family, int32_t rows) {
    return rows % (2 * family->row_unit) == 0 && rows > 2 * family->row_unit;
}

bool cpu_way_is_small(const flash_params_t *p) {
    const double heads = (double)p->batch * p->n_heads, pairs = (double)p->seqlen_q * p->seqlen_k;
    return heads * pairs * ((double)p->d_head + p->d_head_v) < SHARE_MIN_MULTIPLICATIONS;
}

bool cpu_way_shares(const cpu_family_t *family, const flash_config_t *config, int64_t n_rows) {
    const int32_t from = family->shares_from_rows > 0 ? family->shares_from_rows : config->B_r;
    return family->packs && n_rows > from;
}

/* Says whether keys in place are better read in steps than in blocks. Steps read memory in its
 * order, which is best where a cache line is one vector, since little is computed per line.
 * Elsewhere blocks of one head cost less, unless the stride of keys maps a block to so few sets of
 * the level 1 cache that it does not stay there. */
static bool wants_steps(const cpu_family_t *family, const flash_config_t *config,
                        const flash_params_t *params) {
    const int64_t size = dtype_size(config->dtype), stride = params->k_stride.seq;
    return family->step_bytes > 0 &&
           (size * family->vector_elements == CACHE_LINE || stride == params->d_head ||
            stride % (FEW_SETS_BYTES / size) == 0);
}

static cpu_way_t way_in_place(const cpu_family_t *family, const flash_config_t *config,
                              const flash_params_t *params, int64_t n_rows) {
    if (cpu_decodes_keys(config->dtype, params->v_dtype))
        return CPU_WAY_BLOCKS;
    if (family->single_row_step_bytes > 0 && config->dtype == FLASH_DTYPE_FP32 && n_rows == 1)
        return CPU_WAY_SINGLE_ROWS;
    return wants_steps(family, config, params) ? CPU_WAY_STEPS : CPU_WAY_BLOCKS;
}

static int32_t few_rows(const cpu_family_t *family, const flash_config_t *config, cpu_keys_t keys) {
    if (keys != CPU_KEYS_SPLIT)
        return family->few_rows;
    return config->dtype == FLASH_DTYPE_FP32 ? family->few_rows_split_fp32 : family->few_rows_split;
}

/* Says whether decoding with tiles is possible and pays. It always pays for rows that would be
 * packed otherwise, because a decoding task may have several heads. */
static bool decodes(const cpu_family_t *family, const flash_config_t *config,
                    const flash_params_t *params, cpu_keys_t keys, int64_t n_rows, int64_t n_keys) {
    return keys != CPU_KEYS_PACKED && family->decodes != NULL &&
           family->decodes(config, params, n_rows) &&
           (n_rows > few_rows(family, config, keys) || n_keys >= AMX_DECODE_MIN_KEYS);
}

cpu_way_t cpu_way(const cpu_family_t *family, const flash_config_t *config,
                  const flash_params_t *params, cpu_keys_t keys, int64_t n_rows, int64_t n_keys) {
    if (!family->packs)
        return CPU_WAY_ROW_BY_ROW;
    if (decodes(family, config, params, keys, n_rows, n_keys))
        return CPU_WAY_DECODE;
    if (n_rows <= few_rows(family, config, keys))
        return way_in_place(family, config, params, n_rows);
    return keys == CPU_KEYS_PACKED ? CPU_WAY_SHARED : CPU_WAY_PRIVATE;
}

bool cpu_way_is_in_place(cpu_way_t way) {
    return way == CPU_WAY_BLOCKS || way == CPU_WAY_DECODE || cpu_way_has_steps(way);
}

bool cpu_way_has_steps(cpu_way_t way) {
    return way == CPU_WAY_STEPS || way == CPU_WAY_SINGLE_ROWS;
}
