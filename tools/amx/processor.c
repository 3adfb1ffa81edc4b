/*
 * These functions replace the library's own by the linker's option --wrap, so that AMX is there
 * wherever the rest of its kernels can run. A system that does not know AMX fails the request for
 * permission with another error than EPERM, which is a refusal.
 */
#include "processor.h"

#include "cpu/features.h"
#include "flashattn.h"

#include <errno.h>

uint32_t __real_cpu_features_isa(void);
uint32_t __wrap_cpu_features_isa(void);
bool __real_cpu_features_permit_amx(void);
bool __wrap_cpu_features_permit_amx(void);

bool processor_has_amx(void) {
    return (__real_cpu_features_isa() & FLASH_ISA_AMX) && __real_cpu_features_permit_amx();
}

uint32_t __wrap_cpu_features_isa(void) {
    const uint32_t isa = __real_cpu_features_isa();
    return isa | (isa & FLASH_ISA_AVX512_BF16 ? (uint32_t)FLASH_ISA_AMX : 0);
}

bool __wrap_cpu_features_permit_amx(void) {
    return __real_cpu_features_permit_amx() || errno != EPERM;
}
