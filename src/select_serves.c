/*
 * Whether a kernel serves a problem on a device, and if not, why.
 */
#include "select.h"

#include "config.h"
#include "cpu_plan.h"
#include "cuda_block.h"
#include "kernel_table.h"
#include "status.h"
#include "tma_tensor.h"

#include <stddef.h>

/* Why the kernel cannot serve the problem; NULL: it can. */
static const char *mismatch(const flash_config_t *config, const problem_t *problem) {
    const int32_t d_head = problem->params.d_head;
    if (config->dtype != problem->dtype)
        return "dtype";
    if (config_is_cpu(config) && config->d_head != 0 && config->d_head != d_head)
        return "d_head";
    if (!config_is_cpu(config) && config->d_head < d_head)
        return "d_head";
    if ((problem->features & ~config->features) != 0)
        return "features";
    return NULL;
}

/* Why a kernel of the family that fits otherwise cannot load the problem; NULL: it can. */
static const char *sm80_obstacle(const flash_config_t *config, const flash_params_t *params) {
    return sm80_serves_alignment(config, params)
               ? NULL
               : "kernels with async_copy need 16-byte aligned rows of Q, K and V";
}

static const char *sm90_obstacle(const flash_config_t *config, const flash_params_t *params) {
    const bool ragged = sm90_has_varlen(config);
    const tma_tensor_t tensors[] = {tma_tensor_q(params, ragged), tma_tensor_k(params, ragged),
                                    tma_tensor_v(params, ragged), tma_tensor_o(params, ragged)};
    for (int i = 0; i < 4; i++) {
        const char *obstacle = tma_tensor_obstacle(&tensors[i]);
        if (obstacle != NULL)
            return obstacle;
    }
    return NULL;
}

/* Why a kernel of a CUDA family that fits otherwise cannot be launched; NULL: it can. */
static const char *cuda_obstacle(const flash_config_t *config, const problem_t *problem,
                                 const device_t *device) {
    const flash_params_t *params = &problem->params;
    const cuda_block_t block = cuda_block(config);
    if (block.shared_bytes + block.static_shared_bytes > device->shared_memory_per_block)
        return "a block needs more shared memory than the device has";
    if (cuda_tiles(config, params) > INT32_MAX)
        return "the problem has more tiles than a launch can take";
    return config->arch == FLASH_ARCH_SM90 ? sm90_obstacle(config, params)
                                           : sm80_obstacle(config, params);
}

/* Why the device cannot run the kernel, or not for this problem; NULL: it can. */
static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const char *lack = device_lacks(device, config->arch);
    if (lack != NULL)
        return lack;
    return config_is_cpu(config) ? cpu_plan_obstacle(config, &problem->params)
                                 : cuda_obstacle(config, problem, device);
}

bool select_serves(const flash_kernel_t *kernel, const problem_t *problem, const device_t *device) {
    return mismatch(&kernel->config, problem) == NULL &&
           obstacle(&kernel->config, problem, device) == NULL;
}

flash_status_t select_check(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device) {
    const flash_config_t *c = &kernel->config;
    const char *field = mismatch(c, problem);
    const char *why_not = obstacle(c, problem, device);
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
