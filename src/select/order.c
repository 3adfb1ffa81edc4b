#include "select/order.h"

#include <stddef.h>

static bool dots_pay(const device_t *device) {
    return device->dots_pay;
}

const family_place_t family_order[] = {
    /* ---- CUDA devices: families for some problems come before SM90 and SM80, for all ---- */
    {.family = &family_sm80_decode}, /* reads K and V fastest */
    {.family = &family_sm90_decode}, /* cuts longer sequences too, which MIXED leaves to SM90 */
    {.family = &family_mixed},
    {.family = &family_sm90_mla},
    {.family = &family_sm80_mla},
    {.family = &family_sm90_wide},
    {.family = &family_sm80_wide},
    {.family = &family_sm90},
    {.family = &family_sm80},
    /* ---- AArch64 ---- */
    {.family = &family_neon_bf16},
    {.family = &family_neon},
    /* ---- x86-64 ---- */
    {.family = &family_amx},
    {.family = &family_avx512_bf16, .applies = dots_pay},
    {.family = &family_avx512},
    {.family = &family_avx512_bf16}, /* products of bf16 pairs take longer than of fp32 */
    {.family = &family_avx2},
    /* ---- Any processor ---- */
    {.family = &family_reference},
};

const int32_t family_order_count = (int32_t)(sizeof family_order / sizeof family_order[0]);
