/*
 * This file describes the SM90 family's kernels of gradients to the host.
 */
#include "cuda/sm90/sm90_backward.h"

#include "config/rules.h"
#include "cuda/backward/plan_backward.h"
#include "cuda/family.h"
#include "cuda/tma/tma_tensor.h"
#include "kernels/sm90/backward_kernel.h"

#include <stddef.h>

DEFINE_CHECK_NAMED(check_dq, SM90_BWD_DQ_RULES)
DEFINE_CHECK_NAMED(check_dkv, SM90_BWD_DKV_RULES)

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){.threads = sm90_backward_threads(config),
                          .shared_bytes = sm90_backward_shared_bytes(config)};
}

static cuda_block_t dq_of_ds_block(const flash_config_t *config) {
    const flash_config_t of_ds = sm90_dq_of_ds(config);
    return block(&of_ds);
}

static cuda_ds_tile_t ds_tile(const flash_config_t *config) {
    return (cuda_ds_tile_t){.queries = SM90_DS_ROWS,
                            .keys = SM90_DS_ROWS,
                            .has_own_places = (config->features & FLASH_FEATURE_VARLEN) != 0};
}

static const cuda_family_t cuda = {.block = block,
                                   .tiles = sm90_backward_tiles,
                                   .ds_tile = ds_tile,
                                   .dq_of_ds_block = dq_of_ds_block};

/* ---- Obstacles ---- */

static int32_t whole_chunks(int32_t columns) {
    enum { ELEMENTS = SM90_CHUNK_BYTES / 2 };
    return (columns + ELEMENTS - 1) / ELEMENTS * ELEMENTS;
}

flash_params_t sm90_backward_inputs(const problem_t *problem) {
    flash_params_t p = problem->params;
    p.o = (void *)(uintptr_t)problem->gradients.d_o;
    p.o_stride = problem->gradients.d_o_stride;
    p.d_head = whole_chunks(p.d_head);
    p.d_head_v = whole_chunks(p.d_head_v);
    return p;
}

/* Returns the same before the call has begun: of the copies that it will make, without addresses.
 */
static flash_params_t planned_inputs(const problem_t *problem) {
    const backward_plan_t plan = plan_backward(problem);
    const backward_copy_t *copies = plan.copies;
    flash_params_t p = sm90_backward_inputs(problem);
    p.q = copies[BACKWARD_Q].to.data;
    p.q_stride = copies[BACKWARD_Q].to.stride;
    p.k = copies[BACKWARD_K].to.data;
    p.k_stride = copies[BACKWARD_K].to.stride;
    p.v = copies[BACKWARD_V].to.data;
    p.v_stride = copies[BACKWARD_V].to.stride;
    p.o = (void *)(uintptr_t)copies[BACKWARD_D_O].to.data;
    p.o_stride = copies[BACKWARD_D_O].to.stride;
    return p;
}

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t p = planned_inputs(problem);
    const tma_tensor_t tensors[] = {tma_tensor_q(config, &p), tma_tensor_k(config, &p),
                                    tma_tensor_v(config, &p), tma_tensor_o(config, &p)};
    const char *found = cuda_launch_obstacle(&cuda, config, problem, device);
    for (int i = 0; i < 4 && found == NULL; i++)
        found = tma_tensor_obstacle(&tensors[i]);
    return found;
}

/* ---- The schedule ---- */

/* Measured on an H100, 16,384 tokens, d_head 128, 4,096 keys: all 64 heads as one section are 3 to
 * 10 % slower, in two runs. Whether more heads than fit pay at 16,384 keys is open: launches of the
 * same section differed by 11 % there. */
enum { SECTION_MAX_BYTES = 24 << 20, SECTION_MIN_COLUMNS = 2048 };

int32_t sm90_backward_section(const flash_config_t *config, const flash_params_t *p,
                              const flash_section_t *launched) {
    const int64_t heads =
        (int64_t)sm90_backward_heads(config, p, launched->n_heads) * launched->n_batch;
    const int64_t rows = sm90_writes_dq(config) ? p->seqlen_k : (int64_t)p->seqlen_q * p->group;
    const int64_t bytes = rows * (p->d_head + p->d_head_v) * sm90_element_bytes(config);
    const int64_t fitting = SECTION_MAX_BYTES / (bytes > 0 ? bytes : 1);
    const int64_t enough = SECTION_MIN_COLUMNS / config->d_head;
    const int64_t most = fitting > enough ? fitting : enough;
    const int64_t wanted = sm90_reads_ds(config) ? heads : most;
    return (int32_t)(wanted < heads ? wanted : heads > 0 ? heads : 1);
}

/* ---- Selection ---- */

static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    (void)config;
    (void)problem;
    (void)device;
    return (family_rank_t){.preference = 0};
}

const family_op_t sm90_backward_dq = {.check = check_dq,
                                      .obstacle = obstacle,
                                      .rank = rank,
                                      .cuda = &cuda,
                                      .calls = &sm90_backward_calls};
const family_op_t sm90_backward_dkv = {.check = check_dkv,
                                       .obstacle = obstacle,
                                       .rank = rank,
                                       .cuda = &cuda,
                                       .calls = &sm90_backward_calls};
