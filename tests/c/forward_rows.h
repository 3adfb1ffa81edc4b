/*
 * The table has rows of every operation, and flash_forward() runs those of one. A walk over rows
 * that calls it with each of them leaves out the others by this.
 */
#ifndef FLASH_TESTS_FORWARD_ROWS_H
#define FLASH_TESTS_FORWARD_ROWS_H

#include "flashattn.h"

#include <stdbool.h>

static inline bool is_forward_row(const flash_kernel_t *kernel) {
    flash_config_t config = FLASH_CONFIG_INIT;
    return flash_kernel_config(kernel, &config) == FLASH_SUCCESS && config.op == FLASH_OP_FORWARD;
}

#endif
