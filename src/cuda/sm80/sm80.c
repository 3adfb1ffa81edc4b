/*
 * This file describes the SM80 family to the host: the rules between its fields, what it needs of a
 * device, and how its rows compare, by the strategies that always pay and then by estimated time.
 */
#include "core/status.h"
#include "cuda/family.h"
#include "cuda/tuning.h"
#include "kernels/sm80/sm80_kernel.h"

#include <stddef.h>

enum {
    FRAGMENT = 8, /* columns along the contraction that one fragment covers */
    MMA_ROWS = 16
};

/* ---- Rules, as in codegen/legality.py ---- */

/* The fragments that are held at a time are 0, or a power of two from 2 to all of the contraction,
 * or to half of it when the next ones are loaded meanwhile. */
static flash_status_t check_fragments(const char *field, int32_t count, const char *axis,
                                      int32_t contraction, bool double_buffered) {
    const int32_t most = contraction / FRAGMENT / (double_buffered ? 2 : 1);
    FLASH_REQUIRE(count >= 0 && count != 1 && (count & (count - 1)) == 0,
                  FLASH_ERROR_INVALID_CONFIG, "%s is %d: not 0 or a power of two from 2 on", field,
                  count);
    FLASH_REQUIRE(count <= most, FLASH_ERROR_INVALID_CONFIG, "%s is %d: at most %d with %s %d%s",
                  field, count, most, axis, contraction,
                  double_buffered ? " and double buffering" : "");
    return FLASH_SUCCESS;
}

static flash_status_t check_all_fragments(const flash_config_t *config) {
    const bool buffered = config->mma_double_buffer_loads != 0;
    FLASH_TRY(check_fragments("Q_mma_load_K_fragments", config->Q_mma_load_K_fragments, "d_head",
                              config->d_head, buffered));
    FLASH_TRY(check_fragments("K_mma_load_K_fragments", config->K_mma_load_K_fragments, "d_head",
                              config->d_head, buffered));
    FLASH_TRY(check_fragments("V_mma_load_K_fragments", config->V_mma_load_K_fragments, "B_c",
                              config->B_c, buffered));
    FLASH_REQUIRE(config->Q_mma_load_K_fragments == 0 ||
                      config->Q_mma_load_K_fragments == config->K_mma_load_K_fragments,
                  FLASH_ERROR_INVALID_CONFIG,
                  "Q_mma_load_K_fragments is %d: neither 0 nor K_mma_load_K_fragments, %d",
                  config->Q_mma_load_K_fragments, config->K_mma_load_K_fragments);
    return FLASH_SUCCESS;
}

/* Rows of e4m3 convert K and V in registers, which asynchronous copies bypass. */
static flash_status_t check_conversion(const flash_config_t *config) {
    FLASH_REQUIRE(!config->async_copy, FLASH_ERROR_INVALID_CONFIG,
                  "async_copy is 1: with this dtype it is 0");
    return FLASH_SUCCESS;
}

static flash_status_t check(const flash_config_t *config) {
    FLASH_REQUIRE(config->B_r % (MMA_ROWS * config->n_warps) == 0, FLASH_ERROR_INVALID_CONFIG,
                  "n_warps is %d: B_r %d does not divide into rows of %d for each", config->n_warps,
                  config->B_r, MMA_ROWS);
    FLASH_TRY(check_all_fragments(config));
    FLASH_REQUIRE(!sm80_has_pages(config) || (config->features & FLASH_FEATURE_VARLEN) != 0,
                  FLASH_ERROR_INVALID_CONFIG,
                  "features has paged: it needs varlen, which is not there");
    FLASH_REQUIRE((config->features & FLASH_FEATURE_BIAS) == 0 || config->optimized_softmax,
                  FLASH_ERROR_INVALID_CONFIG,
                  "features has bias: it needs optimized_softmax, which is 0");
    if (flash_converts(config))
        return check_conversion(config);
    FLASH_REQUIRE(!sm80_has_pages(config) || config->async_copy, FLASH_ERROR_INVALID_CONFIG,
                  "features has paged: with this dtype it needs async_copy, which is 0");
    return FLASH_SUCCESS;
}

/* ---- Devices and problems ---- */

static const char *lacks(const device_t *device) {
    return device->compute_capability >= 80 ? NULL
                                            : "SM80 kernels need compute capability 8.0 or newer";
}

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){sm80_block_threads(config), sm80_shared_bytes(config),
                          SM80_STATIC_SHARED_BYTES};
}

static const cuda_family_t cuda = {.block = block, .tiles = sm80_grid_blocks};

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    if (sm80_has_pages(config) && problem->params.pages.page_size == 0)
        return "SM80 kernels with paged read K and V only in pages";
    const char *of_launch = cuda_launch_obstacle(&cuda, config, problem, device);
    if (of_launch != NULL)
        return of_launch;
    return sm80_serves_alignment(config, &problem->params)
               ? NULL
               : "kernels with async_copy need 16-byte aligned rows of Q, K and V";
}

/* ---- Selection ---- */

/* Estimates the time of the multiprocessor that works longest, in rows of Q. */
static int64_t estimated_time(const flash_config_t *config, const problem_t *problem,
                              const device_t *device) {
    const int64_t n = device->n_multiprocessors;
    const int64_t blocks = sm80_grid_blocks(config, &problem->params);
    return (blocks + n - 1) / n * (config->B_r + SM80_STEP_ROWS);
}

/* Short sequences want few steps, long ones short steps. */
static int32_t step_preference(const flash_config_t *config, const problem_t *problem) {
    const bool is_short =
        !problem->batch_invariant && problem_mean_keys(&problem->params) < SM80_LONG_KEYS;
    return is_short ? -config->B_c : config->B_c;
}

static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    const int32_t strategies = config->async_copy + config->eager_load_blocks + config->swizzled +
                               config->optimized_softmax;
    return (family_rank_t){
        .without_strategies = -strategies,
        .time = problem->batch_invariant ? 0 : estimated_time(config, problem, device),
        .preference = step_preference(config, problem)};
}

static const family_op_t forward = {.check = check,
                                    .obstacle = obstacle,
                                    .rank = rank,
                                    .part = FAMILY_FORWARD_PART,
                                    .cuda = &cuda,
                                    .calls = &sm80_forward_calls};

const family_t family_sm80 = {
    .facts = &family_facts_sm80, .lacks = lacks, .ops = {[FLASH_OP_FORWARD] = &forward}};
