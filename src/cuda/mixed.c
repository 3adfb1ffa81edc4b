/*
 * The MIXED family is for ragged batches in which some sequences have few queries (decode) and
 * others many (chunks of prompts). Its rows have no kernel of their own. A launch enqueues a
 * forward row and a decode row of the table, each for one part of the sequences, which the device
 * tells apart by their lengths (flash_computes_length()). Both write to the same O and LSE, for
 * different sequences.
 *
 * The forward kernel comes first: the keys of a chunk were written just before the call, and stay
 * in L2 until decode reads all of its caches.
 *
 * This file calls no CUDA function; the operations of the two rows do.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/family.h"
#include "cuda/tuning.h"
#include "kernels/common/sequence.h"
#include "select/select.h"

#include <stddef.h>
#include <stdio.h>

/* The two parts of a batch, as problems of their own, and the rows that compute them. */
typedef struct parts {
    problem_t few; /* sequences of few queries */
    problem_t many;
    const flash_kernel_t *decode; /* NULL: no row serves the part */
    const flash_kernel_t *forward;
} parts_t;

/* ---- Parts ---- */

/* Returns how many queries a decoded sequence may have: a K/V head then has at most B_r rows. */
static int32_t most_decoded(const flash_config_t *config, const flash_params_t *p) {
    return config->B_r / p->group;
}

/* Makes the problem of the decoded sequences, whatever the batch's longest sequence is. */
static problem_t few_queries(const problem_t *problem, int32_t most) {
    problem_t part = *problem;
    part.params.seqlen_q = part.params.most_queries = most;
    part.params.least_queries = 0;
    return part;
}

static problem_t many_queries(const problem_t *problem, int32_t least) {
    problem_t part = *problem;
    part.params.least_queries = least;
    part.params.most_queries = INT32_MAX;
    return part;
}

/* Says whether the problem keeps the rows that compute its parts for this row. */
static bool keeps_rows(const flash_config_t *config, const problem_t *problem) {
    return problem->mixed_rows != NULL && problem->mixed_rows->B_r == config->B_r;
}

static void find_rows(const flash_config_t *config, const problem_t *problem,
                      const device_t *device, parts_t *parts) {
    parts->decode = select_part(&parts->few, device, FAMILY_DECODE_PART);
    parts->forward = select_part(&parts->many, device, FAMILY_FORWARD_PART);
    if (problem->mixed_rows != NULL)
        *problem->mixed_rows = (mixed_rows_t){config->B_r, parts->decode, parts->forward};
}

/* The caller has made sure that most_decoded() is not 0. */
static parts_t find_parts(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    const int32_t most = most_decoded(config, &problem->params);
    parts_t parts = {.few = few_queries(problem, most), .many = many_queries(problem, most + 1)};
    if (keeps_rows(config, problem)) {
        parts.decode = problem->mixed_rows->decode;
        parts.forward = problem->mixed_rows->forward;
    } else {
        find_rows(config, problem, device, &parts);
    }
    return parts;
}

/* ---- Problems ---- */

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t *p = &problem->params;
    if (p->cu_seqlens_q == NULL)
        return "MIXED rows serve ragged queries (cu_seqlens_q) alone";
    if ((config->features & FLASH_FEATURE_PAGED) != 0 && p->pages.page_size == 0)
        return "MIXED rows with paged read K and V only in pages";
    if (most_decoded(config, p) == 0)
        return "a query has more rows (query heads of a K/V head) than B_r, so that no sequence "
               "would be decoded";
    const parts_t parts = find_parts(config, problem, device);
    if (parts.decode == NULL)
        return "no decode kernel here serves the sequences of few queries";
    if (parts.forward == NULL)
        return "no forward kernel here serves the sequences of many queries";
    return NULL;
}

/* ---- Selection ---- */

/* Returns how many rows a decoded sequence may have, unless the caller says otherwise: one tile of
 * decode kernels, or two where a single query has more. */
static int32_t preferred_rows(const flash_params_t *p) {
    return p->group <= MIXED_TILE_ROWS ? MIXED_TILE_ROWS : 2 * MIXED_TILE_ROWS;
}

/* Says whether there is probably nothing to decode: the batch has one sequence, which belongs to
 * one part; or its keys are packed like its queries (those of a cache are not), and sequences of
 * few queries have few keys too; or every query head has a K/V head of its own, and the forward
 * kernel reads its packed keys as fast unless they are many. */
static bool has_no_decode(const flash_params_t *p) {
    const bool is_packed =
        p->cu_seqlens_k != NULL && p->seqused_k == NULL && p->pages.page_size == 0;
    return p->batch < 2 || (is_packed && (p->seqlen_k <= p->seqlen_q ||
                                          (p->group == 1 && p->seqlen_k <= MIXED_PACKED_KEYS)));
}

/* Batch-invariant calls compute a sequence as in any batch. */
static bool declines(const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    (void)device;
    return p->cu_seqlens_q == NULL || (has_no_decode(p) && !problem->batch_invariant);
}

static bool row_declines(const flash_config_t *config, const problem_t *problem,
                         const device_t *device) {
    (void)device;
    return config->B_r != preferred_rows(&problem->params);
}

/* Rows differ in B_r alone, and row_declines() leaves only one of them. */
static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    (void)config;
    (void)problem;
    (void)device;
    return (family_rank_t){0};
}

static int write_shape(char *text, size_t size, const char *words, const flash_kernel_t *kernel) {
    const flash_config_t *c = &kernel->config;
    return snprintf(text, size, "%s %s (%d, %d, %d)", words, kernel->family->facts->name, c->d_head,
                    c->B_r, c->B_c);
}

static void name_parts(const flash_config_t *config, const problem_t *problem,
                       const device_t *device, char text[FAMILY_PARTS_SIZE]) {
    const parts_t parts = find_parts(config, problem, device);
    char decoded[48];
    snprintf(decoded, sizeof decoded, "; queries <= %d by", parts.few.params.most_queries);
    const int length = write_shape(text, FAMILY_PARTS_SIZE, decoded, parts.decode);
    if (length < FAMILY_PARTS_SIZE)
        write_shape(text + length, (size_t)(FAMILY_PARTS_SIZE - length), ", more by",
                    parts.forward);
}

/* ---- Operations, composed of those of the two parts ---- */

static flash_status_t workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                const device_t *device, uint64_t *size) {
    const parts_t parts = find_parts(&kernel->config, problem, device);
    uint64_t of_forward, of_decode;
    FLASH_TRY(
        kernel_calls(parts.forward)->workspace(parts.forward, &parts.many, device, &of_forward));
    FLASH_TRY(kernel_calls(parts.decode)->workspace(parts.decode, &parts.few, device, &of_decode));
    *size = of_forward > of_decode ? of_forward : of_decode;
    return FLASH_SUCCESS;
}

static flash_status_t check_workspaces(const parts_t *parts, const device_t *device) {
    FLASH_TRY(kernel_calls(parts->forward)->check_workspace(parts->forward, &parts->many, device));
    return kernel_calls(parts->decode)->check_workspace(parts->decode, &parts->few, device);
}

static flash_status_t check_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device) {
    const parts_t parts = find_parts(&kernel->config, problem, device);
    return check_workspaces(&parts, device);
}

static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    const parts_t parts = find_parts(&kernel->config, problem, device);
    FLASH_TRY(kernel_calls(parts.forward)->prepare(parts.forward, &parts.many, device));
    return kernel_calls(parts.decode)->prepare(parts.decode, &parts.few, device);
}

/* If even the longest sequence is short enough for decode, the forward kernel has nothing to do. */
static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    const parts_t parts = find_parts(&kernel->config, problem, device);
    FLASH_TRY(check_workspaces(&parts, device));
    if (parts.many.params.least_queries <= problem->params.seqlen_q)
        FLASH_TRY(kernel_calls(parts.forward)->launch(parts.forward, &parts.many, device, stream));
    return kernel_calls(parts.decode)->launch(parts.decode, &parts.few, device, stream);
}

static const family_calls_t calls = {.workspace = workspace,
                                     .prepare = prepare,
                                     .check_workspace = check_workspace,
                                     .launch = launch};

static const family_op_t forward = {.obstacle = obstacle,
                                    .rank = rank,
                                    .declines = declines,
                                    .row_declines = row_declines,
                                    .name_parts = name_parts,
                                    .calls = &calls};

const family_t family_mixed = {.facts = &family_facts_mixed,
                               .ops = {[FLASH_OP_FORWARD] = &forward}};
