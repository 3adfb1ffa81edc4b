/*
 * See serves.h.
 */
#include "select/serves.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "core/status.h"

#include <stddef.h>

/* A d_head of 0 serves every head dimension where the family has such rows; of the others, rows of
 * a family without them pad smaller heads. */
static bool serves_d_head(const flash_kernel_t *kernel, int32_t d_head) {
    const int32_t own = kernel->config.d_head;
    if (kernel->family->facts->layout->any_d_head)
        return own == 0 || own == d_head;
    return own >= d_head;
}

/* Returns the field by which the kernel does not fit the problem; NULL: it fits. */
static const char *mismatch(const flash_kernel_t *kernel, const problem_t *problem) {
    if (kernel->config.op != FLASH_OP_FORWARD)
        return "op";
    if (kernel->config.dtype != problem->dtype)
        return "dtype";
    if (!serves_d_head(kernel, problem->params.d_head))
        return "d_head";
    if ((problem->features & ~kernel->config.features) != 0)
        return "features";
    return NULL;
}

/* Returns why the device cannot run the kernel, or not for this problem; NULL: it can. */
static const char *obstacle(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device) {
    const char *lack = family_lack(kernel->family, device);
    if (lack != NULL || kernel->family->obstacle == NULL)
        return lack;
    return kernel->family->obstacle(&kernel->config, problem, device);
}

bool select_serves(const flash_kernel_t *kernel, const problem_t *problem, const device_t *device) {
    return mismatch(kernel, problem) == NULL && obstacle(kernel, problem, device) == NULL;
}

flash_status_t select_check(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device) {
    const flash_config_t *c = &kernel->config;
    const char *field = mismatch(kernel, problem);
    const char *why_not = obstacle(kernel, problem, device);
    FLASH_REQUIRE(
        field == NULL, FLASH_ERROR_UNSUPPORTED,
        "%s does not serve this problem: %s. The kernel has dtype %s, d_head %d, features "
        "0x%x; the problem dtype %s, d_head %d, features 0x%x",
        kernel->name, field, config_dtype_name(c->dtype), c->d_head, (unsigned)c->features,
        config_dtype_name(problem->dtype), problem->params.d_head, (unsigned)problem->features);
    FLASH_REQUIRE(why_not == NULL, FLASH_ERROR_UNSUPPORTED, "%s cannot run on device %d: %s",
                  kernel->name, device->number, why_not);
    return FLASH_SUCCESS;
}
