/*
 * Selection takes the first family of this order that has a row for the problem. So two families
 * that serve the same call never tie.
 */
#ifndef FLASH_SELECT_ORDER_H
#define FLASH_SELECT_ORDER_H

#include "config/family.h"

typedef struct family_place {
    const family_t *family;
    bool (*applies)(const device_t *device); /* NULL: on every device */
} family_place_t;

extern const family_place_t family_order[];
extern const int32_t family_order_count;

#endif
