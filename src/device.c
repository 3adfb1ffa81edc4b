/*
 * The devices of this machine.
 */
#include "device.h"

#include "call_scope.h"
#include "cpu_features.h"
#include "cuda_device.h"
#include "status.h"
#include "struct_size.h"
#include "thread_pool.h"

#include <pthread.h>
#include <stdio.h>

static uint32_t processor_isa;
static bool processor_amx_refused;
static bool processor_dots_pay;
static pthread_once_t processor_once = PTHREAD_ONCE_INIT;

static void read_processor(void) {
    cpu_features_limit_t limit;
    if (cpu_features_limit(&limit) != FLASH_SUCCESS)
        return;
    processor_isa = cpu_features_isa() & limit.isa;
    processor_dots_pay = cpu_features_dots_pay() || limit.wants_dots;
    if ((processor_isa & FLASH_ISA_AMX) && !cpu_features_permit_amx()) {
        processor_isa &= ~(uint32_t)FLASH_ISA_AMX;
        processor_amx_refused = true;
    }
}

flash_status_t device_describe(int32_t number, device_t *device) {
    cpu_features_limit_t limit;
    FLASH_REQUIRE(number >= 0, FLASH_ERROR_INVALID_ARGUMENT, "device is %d: no such number",
                  number);
    if (number != FLASH_DEVICE_CPU)
        return cuda_device_describe(number, device);
    FLASH_TRY(cpu_features_limit(&limit));
    pthread_once(&processor_once, read_processor);
    *device = (device_t){.number = number,
                         .isa = processor_isa,
                         .amx_refused = processor_amx_refused,
                         .dots_pay = processor_dots_pay};
    return FLASH_SUCCESS;
}

bool device_is_cpu(const device_t *device) {
    return device->number == FLASH_DEVICE_CPU;
}

static const char *lacks_amx(const device_t *device) {
    if (device->isa & FLASH_ISA_AMX)
        return NULL;
    return device->amx_refused
               ? "the system refused this process the tile registers that AMX kernels need "
                 "(arch_prctl, ARCH_REQ_XCOMP_PERM)"
               : "AMX kernels need a processor with AMX-TILE, AMX-BF16 and AVX512_BF16 that "
                 "FLASH_CPU_ISA does not hide";
}

const char *device_lacks(const device_t *device, int32_t arch) {
    const bool for_cpu = arch < FLASH_ARCH_SM80;
    if (device_is_cpu(device) != for_cpu)
        return for_cpu ? "the kernel runs on the CPU device only"
                       : "the kernel runs on CUDA devices only";
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
    case FLASH_ARCH_AVX512_BF16:
        return device->isa & FLASH_ISA_AVX512_BF16
                   ? NULL
                   : "AVX512_BF16 kernels need a processor with AVX-512 F, BW, DQ, VL and "
                     "AVX512_BF16 that FLASH_CPU_ISA does not hide";
    case FLASH_ARCH_AMX:
        return lacks_amx(device);
    case FLASH_ARCH_NEON:
        return device->isa & FLASH_ISA_NEON
                   ? NULL
                   : "NEON kernels need an AArch64 processor, and FLASH_CPU_ISA not to hide it";
    case FLASH_ARCH_NEON_BF16:
        return device->isa & FLASH_ISA_NEON_BF16
                   ? NULL
                   : "NEON_BF16 kernels need an AArch64 processor with FEAT_BF16 that "
                     "FLASH_CPU_ISA does not hide";
    case FLASH_ARCH_SM80:
        return device->compute_capability >= 80
                   ? NULL
                   : "SM80 kernels need compute capability 8.0 or newer";
    case FLASH_ARCH_SM90:
        return device->compute_capability == 90
                   ? NULL
                   : "SM90 kernels need compute capability 9.0, no other";
    default:
        return "no such kernel family";
    }
}

flash_status_t flash_device_info(int32_t number, flash_device_info_t *info) {
    FLASH_CALL_SCOPE();
    device_t device = {0};
    FLASH_TRY(device_describe(number, &device));
    flash_device_info_t own = FLASH_DEVICE_INFO_INIT;
    own.device = device.number;
    own.compute_capability = device.compute_capability;
    own.n_multiprocessors = device.n_multiprocessors;
    own.shared_memory_per_block = device.shared_memory_per_block;
    if (device_is_cpu(&device)) {
        own.isa = device.isa;
        own.n_threads = flash_num_threads();
        cpu_features_name(own.name);
    } else {
        cuda_device_name(&device, own.name);
    }
    return struct_write(&own, sizeof own, info, "flash_device_info_t");
}
