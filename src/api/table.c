/*
 * This file has the exported calls of the kernel table.
 */
#include "api/device.h"
#include "config/config.h"
#include "config/kernel_table.h"
#include "core/call_scope.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "cuda/runtime/launch.h"
#include "flashattn.h"

static flash_status_t look_up(const flash_config_t *config, const flash_kernel_t **kernel) {
    flash_config_t known;
    device_t device = {0};
    FLASH_TRY(config_read(&known, config));
    FLASH_TRY(kernel_table_require(&known, kernel));
    const family_t *family = (*kernel)->family;
    const bool on_cpu = family->facts->on_cpu;
    FLASH_TRY(device_describe(on_cpu ? FLASH_DEVICE_CPU : FLASH_DEVICE_CUDA_CURRENT, &device));
    const char *lack = family_lack(family, &device);
    FLASH_REQUIRE(lack == NULL, FLASH_ERROR_UNSUPPORTED, "%s cannot run here: %s", (*kernel)->name,
                  lack);
    return FLASH_SUCCESS;
}

const flash_kernel_t *flash_lookup_kernel(const flash_config_t *config) {
    FLASH_CALL_SCOPE();
    const flash_kernel_t *kernel;
    return look_up(config, &kernel) == FLASH_SUCCESS ? kernel : NULL;
}

int32_t flash_kernel_count(void) {
    return kernel_table_count;
}

const flash_kernel_t *flash_kernel_at(int32_t index) {
    if (index < 0 || index >= kernel_table_count) {
        status_fail(FLASH_ERROR_INVALID_ARGUMENT, "index is %d: the table ends at %d", index,
                    kernel_table_count - 1);
        return NULL;
    }
    return &kernel_table[index];
}

flash_status_t flash_kernel_config(const flash_kernel_t *kernel, flash_config_t *config) {
    FLASH_TRY(kernel_table_check(kernel));
    return config_write(&kernel->config, config);
}

const char *flash_kernel_name(const flash_kernel_t *kernel) {
    return kernel_table_check(kernel) == FLASH_SUCCESS ? kernel->name : NULL;
}

/* ---- flash_kernel_resources ---- */

static flash_status_t check_cuda_kernel(const flash_kernel_t *kernel, const device_t *device) {
    const char *lack = family_lack(kernel->family, device);
    char where[DEVICE_NAME_SIZE];
    device_name(device, where);
    FLASH_REQUIRE(kernel->function != NULL, FLASH_ERROR_UNSUPPORTED,
                  "%s has no kernel of its own: rows of other families compute what it serves",
                  kernel->name);
    FLASH_REQUIRE(!device_is_cpu(device), FLASH_ERROR_UNSUPPORTED,
                  "device is the CPU: its kernels have no such resources");
    FLASH_REQUIRE(lack == NULL, FLASH_ERROR_UNSUPPORTED, "%s cannot run on %s: %s", kernel->name,
                  where, lack);
    return FLASH_SUCCESS;
}

flash_status_t flash_kernel_resources(const flash_kernel_t *kernel, int32_t device,
                                      flash_kernel_resources_t *resources) {
    FLASH_CALL_SCOPE();
    flash_kernel_resources_t ours = FLASH_KERNEL_RESOURCES_INIT;
    device_t where = {0};
    FLASH_TRY(kernel_table_check(kernel));
    FLASH_TRY(device_describe(device, &where));
    FLASH_TRY(check_cuda_kernel(kernel, &where));
    FLASH_TRY(cuda_resources(kernel, &where, &ours));
    return struct_write_facts(&ours, sizeof ours, resources, "flash_kernel_resources_t");
}
