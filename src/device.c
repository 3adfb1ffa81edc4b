/*
 * The devices of this machine.
 */
#include "device.h"

#include "cpu_features.h"
#include "environment.h"
#include "status.h"
#include "struct_size.h"
#include "thread_pool.h"

#include <pthread.h>
#include <stdio.h>

static uint32_t processor_isa;
static pthread_once_t processor_once = PTHREAD_ONCE_INIT;

static void read_processor(void) {
    processor_isa = cpu_features_isa();
}

static uint32_t isa_up_to(int32_t highest_arch) {
    uint32_t isa = 0;
    if (highest_arch >= FLASH_ARCH_AVX2)
        isa |= FLASH_ISA_AVX2;
    if (highest_arch >= FLASH_ARCH_AVX512)
        isa |= FLASH_ISA_AVX512;
    return isa;
}

flash_status_t device_describe(int32_t number, device_t *device) {
    const environment_t *environment;
    FLASH_REQUIRE(number >= 0, FLASH_ERROR_INVALID_ARGUMENT, "device is %d: no such number",
                  number);
    FLASH_REQUIRE(number == FLASH_DEVICE_CPU, FLASH_ERROR_UNSUPPORTED,
                  "device is %d, a CUDA device, and this library has no CUDA kernels", number);
    FLASH_TRY(environment_get(&environment));
    pthread_once(&processor_once, read_processor);
    *device = (device_t){number, processor_isa & isa_up_to(environment->highest_arch)};
    return FLASH_SUCCESS;
}

const char *device_lacks(const device_t *device, int32_t arch) {
    switch (arch) {
    case FLASH_ARCH_REFERENCE:
        return NULL;
    case FLASH_ARCH_AVX2:
        return device->isa & FLASH_ISA_AVX2
                   ? NULL
                   : "AVX2 kernels need a processor with AVX2, FMA and F16C that FLASH_CPU_ISA "
                     "does not hide";
    case FLASH_ARCH_AVX512:
        return device->isa & FLASH_ISA_AVX512
                   ? NULL
                   : "AVX512 kernels need a processor with AVX-512 F, BW, DQ and VL that "
                     "FLASH_CPU_ISA does not hide";
    default:
        return "the kernel runs on CUDA devices only";
    }
}

flash_status_t flash_device_info(int32_t number, flash_device_info_t *info) {
    device_t device = {0};
    FLASH_TRY(device_describe(number, &device));
    flash_device_info_t own = FLASH_DEVICE_INFO_INIT;
    own.device = number;
    own.isa = device.isa;
    own.n_threads = flash_num_threads();
    cpu_features_name(own.name);
    return struct_write(&own, sizeof own, info, "flash_device_info_t");
}
