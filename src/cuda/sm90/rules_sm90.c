#include "cuda/sm90/rules_sm90.h"

#include "core/status.h"
#include "kernels/sm90/sm90_kernel.h"

enum { MMA_ROWS = 16, LOADING_WARPS = 4, CONVERTING_WARPS = 4 };

static flash_status_t check_warps(const flash_config_t *config) {
    const int32_t others = LOADING_WARPS + (flash_converts(config) ? CONVERTING_WARPS : 0);
    const int32_t n_warps = others + config->B_r / MMA_ROWS;
    FLASH_REQUIRE(config->n_warps == n_warps, FLASH_ERROR_INVALID_CONFIG,
                  "n_warps is %d: %d with B_r %d and this dtype, %d and one for each %d rows",
                  config->n_warps, n_warps, config->B_r, others, MMA_ROWS);
    return FLASH_SUCCESS;
}

/* Checks the shapes for which the warps that convert K and V are written. */
static flash_status_t check_conversion(const flash_config_t *config) {
    const int32_t d_head = config->d_head;
    if (!flash_converts(config))
        return FLASH_SUCCESS;
    FLASH_REQUIRE(d_head == 64 || d_head == 128 || d_head == 256, FLASH_ERROR_INVALID_CONFIG,
                  "d_head is %d: with this dtype it is 64, 128 or 256", d_head);
    FLASH_REQUIRE(config->B_c % SM90_CONVERTED_KEYS == 0, FLASH_ERROR_INVALID_CONFIG,
                  "B_c is %d: with this dtype it is a multiple of %d", config->B_c,
                  (int)SM90_CONVERTED_KEYS);
    return FLASH_SUCCESS;
}

flash_status_t rules_sm90_tile(const flash_config_t *config) {
    FLASH_TRY(check_warps(config));
    FLASH_TRY(check_conversion(config));
    FLASH_REQUIRE(!config->ping_pong || config->B_r >= 2 * SM90_WARPGROUP_ROWS,
                  FLASH_ERROR_INVALID_CONFIG,
                  "ping_pong is 1: it needs a B_r of %d or more, which is %d",
                  2 * SM90_WARPGROUP_ROWS, config->B_r);
    return FLASH_SUCCESS;
}

flash_status_t rules_sm90_memory(const flash_config_t *config) {
    FLASH_REQUIRE(
        sm90_shared_bytes(config) <= SM90_SHARED_BYTES_MAX, FLASH_ERROR_INVALID_CONFIG,
        "d_head %d, d_head_v %d, B_r %d, B_c %d and n_stages %d take %d bytes of shared memory: at "
        "most %d",
        config->d_head, sm90_d_head_v(config), config->B_r, config->B_c, config->n_stages,
        sm90_shared_bytes(config), SM90_SHARED_BYTES_MAX);
    return FLASH_SUCCESS;
}
