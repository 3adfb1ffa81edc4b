/*
 * The exported calls of the kernel table.
 */
#include "call_scope.h"
#include "config.h"
#include "device.h"
#include "flashattn.h"
#include "kernel_table.h"
#include "launch.h"
#include "status.h"
#include "struct_size.h"

static flash_status_t look_up(const flash_config_t *config, const flash_kernel_t **kernel) {
    flash_config_t own;
    device_t device = {0};
    FLASH_TRY(config_read(&own, config));
    FLASH_TRY(kernel_table_require(&own, kernel));
    FLASH_TRY(device_describe(config_is_cpu(&own) ? FLASH_DEVICE_CPU : FLASH_DEVICE_CUDA_CURRENT,
                              &device));
    const char *lack = device_lacks(&device, own.arch);
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
        status_fail(FLASH_ERROR_INVALID_ARGUMENT, "index is %d: the table has %d kernels", index,
                    kernel_table_count);
        return NULL;
    }
    return &kernel_table[index];
}

flash_status_t flash_kernel_config(const flash_kernel_t *kernel, flash_config_t *config) {
    FLASH_REQUIRE(kernel != NULL, FLASH_ERROR_INVALID_ARGUMENT, "kernel is NULL");
    return config_write(&kernel->config, config);
}

const char *flash_kernel_name(const flash_kernel_t *kernel) {
    if (kernel == NULL) {
        status_fail(FLASH_ERROR_INVALID_ARGUMENT, "kernel is NULL");
        return NULL;
    }
    return kernel->name;
}

/* ---- flash_kernel_resources ---- */

static flash_status_t check_cuda_kernel(const flash_kernel_t *kernel, const device_t *device) {
    const char *lack = device_lacks(device, kernel->config.arch);
    FLASH_REQUIRE(!device_is_cpu(device), FLASH_ERROR_UNSUPPORTED,
                  "device is 0, the CPU: its kernels have no such resources");
    FLASH_REQUIRE(lack == NULL, FLASH_ERROR_UNSUPPORTED, "%s cannot run on device %d: %s",
                  kernel->name, device->number, lack);
    return FLASH_SUCCESS;
}

flash_status_t flash_kernel_resources(const flash_kernel_t *kernel, int32_t device,
                                      flash_kernel_resources_t *resources) {
    FLASH_CALL_SCOPE();
    flash_kernel_resources_t own = FLASH_KERNEL_RESOURCES_INIT;
    device_t where = {0};
    FLASH_REQUIRE(kernel != NULL, FLASH_ERROR_INVALID_ARGUMENT, "kernel is NULL");
    FLASH_TRY(device_describe(device, &where));
    FLASH_TRY(check_cuda_kernel(kernel, &where));
    FLASH_TRY(launch_cuda_resources(kernel, &where, &own));
    return struct_write(&own, sizeof own, resources, "flash_kernel_resources_t");
}
