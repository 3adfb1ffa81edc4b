/*
 * This file finds families, and what a device lacks for them.
 */
#include "config/family.h"

#include "core/status.h"

#include <inttypes.h>

#define ASSERT_OP(name, word)                                                                      \
    _Static_assert((int)CONFIG_OP_##name == (int)FLASH_OP_##name,                                  \
                   "operations are counted from 0, without gaps");
FLASH_CONFIG_OPS(ASSERT_OP)
#undef ASSERT_OP

const family_t *const family_list[] = {
#define LIST_FAMILY(NAME, name) &family_##name,
    FLASH_CONFIG_ARCHS(LIST_FAMILY)
#undef LIST_FAMILY
};

const int32_t family_list_count = (int32_t)(sizeof family_list / sizeof family_list[0]);

flash_status_t family_require(int32_t arch, flash_status_t refusal, const family_t **family) {
    for (int32_t i = 0; i < family_list_count; i++)
        if (family_list[i]->facts->arch == arch) {
            *family = family_list[i];
            return FLASH_SUCCESS;
        }
    return status_fail(refusal, "arch is %" PRId32 ": no such kernel family", arch);
}

const char *family_lack(const family_t *family, const device_t *device) {
    const family_facts_t *facts = family->facts;
    const bool on_cpu = facts->on_cpu;
    if (device_is_cpu(device) != on_cpu)
        return on_cpu ? "the kernel runs on the CPU device only"
                      : "the kernel runs on CUDA devices only";
    if (on_cpu)
        return family->lacks(device);
    const int32_t capability = device->compute_capability;
    return capability >= facts->least_capability && capability <= facts->most_capability
               ? NULL
               : facts->lack;
}
