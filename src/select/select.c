/*
 * The choice of a kernel: each kind of family has a heuristic of its own.
 */
#include "select/select.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "core/status.h"

#include <stddef.h>

flash_status_t select_kernel(const problem_t *problem, const device_t *device,
                             const flash_kernel_t **kernel, char reason[SELECT_REASON_SIZE]) {
    *kernel = device_is_cpu(device) ? select_cpu(problem, device, reason)
                                    : select_cuda(problem, device, reason);
    FLASH_REQUIRE(*kernel != NULL, FLASH_ERROR_UNSUPPORTED,
                  "no kernel in this library serves dtype %s, d_head %d, features 0x%x on device "
                  "%d (%d kernels in the table)",
                  config_dtype_name(problem->dtype), problem->params.d_head,
                  (unsigned)problem->features, device->number, kernel_table_count);
    return FLASH_SUCCESS;
}
