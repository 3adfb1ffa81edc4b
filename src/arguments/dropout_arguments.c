/*
 * This file reads and checks the dropout of a call.
 */
#include "arguments/dropout_arguments.h"

#include "arguments/checks.h"
#include "core/status.h"
#include "core/struct_size.h"

#include <inttypes.h>
#include <math.h>

static const char SEED[] = "dropout.seed_ptr", OFFSET[] = "dropout.offset_ptr";

/* Calls that train have neither pages nor codes, and no kernel drops weights over them. */
static flash_status_t check_beside(const flash_forward_args_t *a) {
    FLASH_TRY(argument_check_numbers("k.dtype", a->k.dtype, "K and V with dropout"));
    FLASH_TRY(argument_check_numbers("v.dtype", a->v.dtype, "K and V with dropout"));
    FLASH_REQUIRE(a->k.dtype == a->v.dtype, FLASH_ERROR_UNSUPPORTED,
                  "k.dtype is %" PRId32 " and v.dtype %" PRId32
                  ": K and V of two types have no dropout",
                  a->k.dtype, a->v.dtype);
    FLASH_REQUIRE(a->paging == NULL, FLASH_ERROR_UNSUPPORTED,
                  "paging is given: K and V in pages have no dropout");
    return FLASH_SUCCESS;
}

/* Heads of the batch are numbered in 32 bits. */
static flash_status_t check_dropout(const flash_forward_args_t *a, const flash_dropout_t *dropout) {
    FLASH_REQUIRE(dropout->p >= 0 && dropout->p < 1, FLASH_ERROR_INVALID_ARGUMENT,
                  "dropout.p is %g: not within 0 ... 1, 1 left out", (double)dropout->p);
    FLASH_REQUIRE(a->batch * a->n_heads <= (int64_t)1 << 32, FLASH_ERROR_INVALID_ARGUMENT,
                  "batch is %" PRId64 " and n_heads %" PRId64
                  ": with dropout their product is at most 2^32",
                  a->batch, a->n_heads);
    return FLASH_SUCCESS;
}

flash_status_t arguments_read_dropout(const flash_forward_args_t *checked, flash_params_t *params) {
    flash_dropout_t dropout;
    params->dropout.scale = 1;
    if (checked->dropout == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(STRUCT_READ(flash_dropout_t, &dropout, checked->dropout));
    FLASH_TRY(check_dropout(checked, &dropout));
    const uint32_t threshold = (uint32_t)lround(65536 * (double)dropout.p);
    if (threshold == 0)
        return FLASH_SUCCESS;
    FLASH_TRY(check_beside(checked));
    params->dropout = (flash_dropout_params_t){.seed_ptr = dropout.seed_ptr,
                                               .offset_ptr = dropout.offset_ptr,
                                               .seed = dropout.seed,
                                               .offset = dropout.offset,
                                               .threshold = threshold,
                                               .scale = 1 / (1 - dropout.p)};
    return FLASH_SUCCESS;
}

void arguments_add_dropout(const flash_params_t *params, regions_t *regions) {
    regions_add_array(regions, SEED, params->dropout.seed_ptr, 1, sizeof(uint64_t));
    regions_add_array(regions, OFFSET, params->dropout.offset_ptr, 1, sizeof(uint64_t));
}

flash_status_t arguments_check_dropout_alignments(const flash_params_t *params) {
    FLASH_TRY(argument_check_alignment(SEED, params->dropout.seed_ptr, sizeof(uint64_t)));
    return argument_check_alignment(OFFSET, params->dropout.offset_ptr, sizeof(uint64_t));
}
