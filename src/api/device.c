/*
 * This file has flash_device_info(), and describes devices for other calls.
 */
#include "api/device.h"

#include "core/call_scope.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "cpu/features.h"
#include "cpu/thread_pool.h"
#include "cuda/runtime/cuda_device.h"

#include <pthread.h>
#include <stdio.h>

static uint32_t processor_isa;
static bool processor_amx_refused;
static bool processor_isa_absent;
static bool processor_dots_pay;
static pthread_once_t processor_once = PTHREAD_ONCE_INIT;

static void read_processor(void) {
    cpu_features_limit_t limit;
    if (cpu_features_limit(&limit) != FLASH_SUCCESS)
        return;
    processor_isa = cpu_features_isa() & limit.isa;
    processor_isa_absent = (limit.named & ~processor_isa) != 0;
    processor_dots_pay = cpu_features_dots_pay() || limit.wants_dots;
    if ((processor_isa & FLASH_ISA_AMX) && !cpu_features_permit_amx()) {
        processor_isa &= ~(uint32_t)FLASH_ISA_AMX;
        processor_amx_refused = true;
    }
}

flash_status_t device_describe(int32_t number, device_t *device) {
    cpu_features_limit_t limit;
    if (device_kind(number) == device_kind(FLASH_DEVICE_CUDA))
        return cuda_device_describe(number, device);
    FLASH_REQUIRE(number == FLASH_DEVICE_CPU, FLASH_ERROR_INVALID_ARGUMENT,
                  "device is 0x%x: neither FLASH_DEVICE_CPU nor FLASH_DEVICE_CUDA + n",
                  (unsigned)number);
    FLASH_TRY(cpu_features_limit(&limit));
    pthread_once(&processor_once, read_processor);
    *device = (device_t){.number = number,
                         .isa = processor_isa,
                         .amx_refused = processor_amx_refused,
                         .isa_absent = processor_isa_absent,
                         .dots_pay = processor_dots_pay};
    return FLASH_SUCCESS;
}

flash_status_t device_describe_for(const flash_forward_args_t *args, device_t *device) {
    FLASH_TRY(device_describe(args->device, device));
    device_limit(device, args->n_multiprocessors);
    return FLASH_SUCCESS;
}

flash_status_t device_check_stream(const device_t *device, flash_stream_t stream) {
    FLASH_REQUIRE(stream == NULL || !device_is_cpu(device), FLASH_ERROR_INVALID_ARGUMENT,
                  "stream is %p, and device is the CPU, which has no streams: it must be NULL",
                  stream);
    return FLASH_SUCCESS;
}

flash_status_t flash_device_info(int32_t number, flash_device_info_t *info) {
    FLASH_CALL_SCOPE();
    device_t device = {0};
    FLASH_TRY(device_describe(number, &device));
    flash_device_info_t ours = FLASH_DEVICE_INFO_INIT;
    ours.device = device.number;
    ours.compute_capability = device.compute_capability;
    ours.n_multiprocessors = device.n_multiprocessors;
    ours.shared_memory_per_block = device.shared_memory_per_block;
    if (device_is_cpu(&device)) {
        ours.isa = device.isa;
        ours.n_threads = flash_num_threads();
        cpu_features_name(ours.name);
    } else {
        cuda_device_name(&device, ours.name);
    }
    return struct_write_facts(&ours, sizeof ours, info, "flash_device_info_t");
}
