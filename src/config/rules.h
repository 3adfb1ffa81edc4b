/*
 * This function says whether a configuration is legal.
 */
#ifndef FLASH_CONFIG_RULES_H
#define FLASH_CONFIG_RULES_H

#include "flashattn.h"

/* Returns INVALID_CONFIG with the first rule of its family that the configuration breaks. */
flash_status_t config_check(const flash_config_t *config);

#endif
