/*
 * The exported calls of attention and of the kernel table: each a few steps, one file a step.
 */
#include "arguments.h"
#include "config.h"
#include "device.h"
#include "flashattn.h"
#include "kernel_table.h"
#include "launch.h"
#include "resolve.h"
#include "status.h"
#include "struct_size.h"
#include "trace.h"

#define STRINGIFY_(x) #x
#define STRINGIFY(x)  STRINGIFY_(x)

const char *flash_version(void) {
    return STRINGIFY(FLASH_VERSION_MAJOR) "." STRINGIFY(FLASH_VERSION_MINOR) "." STRINGIFY(
        FLASH_VERSION_PATCH);
}

int32_t flash_abi_version(void) {
    return FLASH_ABI_VERSION;
}

/* ---- The kernel table ---- */

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
    flash_kernel_resources_t own = FLASH_KERNEL_RESOURCES_INIT;
    device_t where = {0};
    FLASH_REQUIRE(kernel != NULL, FLASH_ERROR_INVALID_ARGUMENT, "kernel is NULL");
    FLASH_TRY(device_describe(device, &where));
    FLASH_TRY(check_cuda_kernel(kernel, &where));
    FLASH_TRY(launch_cuda_resources(kernel, &where, &own));
    return struct_write(&own, sizeof own, resources, "flash_kernel_resources_t");
}

/* ---- Attention ---- */

flash_status_t flash_forward(const flash_forward_args_t *args, const flash_config_t *config,
                             flash_stream_t stream) {
    resolved_t r = {0};
    FLASH_TRY(resolve(args, config, &r));
    FLASH_TRY(arguments_check_data(&r.args, device_is_cpu(&r.device), &r.problem));
    if (!r.problem.has_output)
        return FLASH_SUCCESS;
    trace_choice(r.kernel, &r.problem, r.reason);
    return launch_forward(r.kernel, &r.problem, &r.device, stream);
}

flash_status_t flash_workspace_size(const flash_forward_args_t *args, const flash_config_t *config,
                                    uint64_t *size) {
    resolved_t r = {0};
    FLASH_REQUIRE(size != NULL, FLASH_ERROR_INVALID_ARGUMENT, "size is NULL");
    FLASH_TRY(resolve(args, config, &r));
    return launch_workspace(r.kernel, &r.problem, &r.device, size);
}

flash_status_t flash_prepare(const flash_forward_args_t *args, const flash_config_t *config) {
    resolved_t r = {0};
    FLASH_TRY(resolve(args, config, &r));
    return launch_prepare(r.kernel, &r.problem, &r.device);
}

flash_status_t flash_select_config(const flash_forward_args_t *args, flash_config_t *config,
                                   char *reason, size_t reason_size) {
    resolved_t r = {0};
    FLASH_TRY(resolve(args, NULL, &r));
    FLASH_TRY(config_write(&r.kernel->config, config));
    status_copy_text(r.reason, reason, reason_size);
    return FLASH_SUCCESS;
}

flash_status_t flash_query_support(const flash_forward_args_t *args, const flash_config_t *config,
                                   char *reason, size_t reason_size) {
    resolved_t r = {0};
    const flash_status_t status = resolve(args, config, &r);
    status_copy_text(status == FLASH_SUCCESS ? r.reason : status_message(), reason, reason_size);
    return status;
}

flash_status_t flash_combine(const flash_combine_args_t *args, flash_stream_t stream) {
    flash_combine_args_t own;
    device_t device = {0};
    FLASH_TRY(arguments_read_combine(args, &own));
    FLASH_TRY(device_describe(own.device, &device));
    return launch_combine(&own, &device, stream);
}
