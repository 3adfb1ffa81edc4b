/*
 * This is the table of CPU families (cpu_family.h).
 */
#include "cpu/cpu_family.h"

#include "config_facts.h"
#include "cpu/amx/layout.h"
#include "cpu/cpu_scratch.h"
#include "cpu/tuning.h"

#include <stddef.h>

enum { FP32_BYTES = 4, BF16_BYTES = 2 }; /* of an element of packed keys */

/* ---- Sizes ---- */

/* The reference family keeps a row of Q, and sums of O in fp32 and in double. */
static uint64_t reference_scratch_size(const flash_config_t *config, const flash_params_t *params,
                                       int64_t n_rows) {
    const uint64_t o_bytes = (uint64_t)params->d_head_v * (sizeof(float) + sizeof(double));
    const uint64_t row_bytes = (uint64_t)params->d_head * sizeof(float) + o_bytes;
    (void)config, (void)n_rows;
    return (row_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static uint64_t fp32_scratch_size(const flash_config_t *config, const flash_params_t *params,
                                  int64_t n_rows) {
    return tiled_scratch_size(cpu_scratch_rows(config->B_r, n_rows), config->B_c,
                              head_dims_of(params), FP32_BYTES);
}

static uint64_t pairs_scratch_size(const flash_config_t *config, const flash_params_t *params,
                                   int64_t n_rows) {
    return tiled_scratch_size(cpu_scratch_rows(config->B_r, n_rows), config->B_c,
                              head_dims_of(params), BF16_BYTES);
}

/* A task of AMX runs on tile registers, or, if it has few rows, on vectors. */
static uint64_t tiles_scratch_size(const flash_config_t *config, const flash_params_t *params,
                                   int64_t n_rows) {
    const uint64_t vectors =
        tiled_scratch_size(config->B_r, config->B_c, head_dims_of(params), FP32_BYTES);
    const uint64_t attend = amx_scratch_size(config, params, cpu_scratch_rows(config->B_r, n_rows));
    const uint64_t decode = amx_decode_scratch_size(config, head_dims_of(params));
    const uint64_t most = attend > decode ? attend : decode;
    return most > vectors ? most : vectors;
}

static uint64_t fp32_block_size(const flash_config_t *config, const flash_params_t *params) {
    return tiled_block_size(config->B_c, head_dims_of(params), FP32_BYTES);
}

static uint64_t pairs_block_size(const flash_config_t *config, const flash_params_t *params) {
    return tiled_block_size(config->B_c, head_dims_of(params), BF16_BYTES);
}

static uint64_t tiles_block_size(const flash_config_t *config, const flash_params_t *params) {
    return amx_block_size(config, head_dims_of(params));
}

/* ---- The families ---- */

static const cpu_family_t reference = {.row_unit = 1,
                                       .rows_max = VECTOR_ROWS_MAX,
                                       .task_blocks = 1,
                                       .split_blocks = 1,
                                       .scratch_size = reference_scratch_size};

#define VECTOR_FAMILY                                                                              \
    .row_unit = VECTOR_ROW_UNIT, .rows_max = VECTOR_ROWS_MAX, .task_blocks = 1,                    \
    .split_blocks = SPLIT_BLOCKS, .few_rows = FEW_ROWS, .few_rows_split = FEW_ROWS_SPLIT,          \
    .few_rows_split_fp32 = FEW_ROWS_SPLIT_FP32, .packs = true

#define FP32_FAMILY                                                                                \
    VECTOR_FAMILY, .packed_element_size = FP32_BYTES, .scratch_size = fp32_scratch_size,           \
                   .block_size = fp32_block_size

#define PAIRS_FAMILY                                                                               \
    VECTOR_FAMILY, .packed_element_size = BF16_BYTES, .scratch_size = pairs_scratch_size,          \
                   .block_size = pairs_block_size

static const cpu_family_t avx2 = {FP32_FAMILY, .vector_elements = 8, .step_bytes = AVX2_STEP_BYTES};

static const cpu_family_t avx512 = {FP32_FAMILY, .vector_elements = 16,
                                    .step_bytes = AVX512_STEP_BYTES,
                                    .single_row_step_bytes = AVX512_SINGLE_ROW_STEP_BYTES};

static const cpu_family_t avx512_bf16 = {PAIRS_FAMILY, .vector_elements = 32,
                                         .step_bytes = AVX512_BF16_STEP_BYTES};

static const cpu_family_t neon = {FP32_FAMILY, .vector_elements = 4, .step_bytes = NEON_STEP_BYTES};

static const cpu_family_t neon_bf16 = {PAIRS_FAMILY, .vector_elements = 8,
                                       .step_bytes = NEON_STEP_BYTES};

/* AMX has the vector code of AVX-512. */
static const cpu_family_t amx = {.row_unit = AMX_SQUARE,
                                 .rows_max = AMX_ROWS_MAX,
                                 .task_blocks = AMX_TASK_BLOCKS,
                                 .split_blocks = SPLIT_BLOCKS,
                                 .few_rows = AMX_VECTOR_ROWS,
                                 .few_rows_split = AMX_VECTOR_ROWS,
                                 .few_rows_split_fp32 = AMX_VECTOR_ROWS,
                                 .packs = true,
                                 .shares_from_rows = AMX_VECTOR_ROWS,
                                 .packed_element_size = FP32_BYTES,
                                 .vector_elements = 16,
                                 .step_bytes = AVX512_STEP_BYTES,
                                 .scratch_size = tiles_scratch_size,
                                 .block_size = tiles_block_size,
                                 .decodes = amx_decodes};

/* The list is the generator's, so that a family without an entry above does not compile. */
const cpu_family_t *cpu_family(int32_t arch) {
    switch (arch) {
#define FAMILY_CASE(NAME, name)                                                                    \
    case FLASH_ARCH_##NAME:                                                                        \
        return &name;
        FLASH_CONFIG_CPU_ARCHS(FAMILY_CASE)
#undef FAMILY_CASE
    default:
        return NULL;
    }
}
