/*
 * What the processor and the operating system offer.
 */
#ifndef FLASH_CPU_FEATURES_H
#define FLASH_CPU_FEATURES_H

#include "flashattn.h"

#include <stdbool.h>
#include <stdint.h>

/* What the user allows: FLASH_CPU_ISA. */
typedef struct cpu_features_limit {
    uint32_t isa; /* FLASH_ISA_... bits */
    uint32_t
        named; /* that of the family in FLASH_CPU_ISA; 0: the variable is not set, or "reference" */
    bool wants_dots; /* AVX512_BF16 is named, paying or not */
} cpu_features_limit_t;

/* Returns INVALID_ARGUMENT when the variable could not be understood. */
flash_status_t cpu_features_limit(cpu_features_limit_t *limit);

/* Returns the FLASH_ISA_... bits that the processor has and the system saves the registers of. */
uint32_t cpu_features_isa(void);

/* Asks the system for the tile registers of AMX, which a process must before it uses them; false:
 * refused. Asking again changes nothing. */
bool cpu_features_permit_amx(void);

/* Says whether a product of bf16 pairs (AVX512_BF16) takes no longer than a multiply-add of fp32.
 */
bool cpu_features_dots_pay(void);

/* The processor's own name, NUL-terminated, cut to fit. */
void cpu_features_name(char name[64]);

#endif
