/*
 * These functions tell the features of the processor, as far as the operating system permits them.
 */
#ifndef FLASH_CPU_FEATURES_H
#define FLASH_CPU_FEATURES_H

#include "flashattn.h"

#include <stdbool.h>
#include <stdint.h>

/* The limit that the user sets by FLASHATTN_CPU_ISA. */
typedef struct cpu_features_limit {
    uint32_t isa;    /* FLASH_ISA_... bits that may be used */
    uint32_t named;  /* the bit of the family that it names; 0: it is not set, or "reference" */
    bool wants_dots; /* AVX512_BF16 is named: use it whether or not it pays */
} cpu_features_limit_t;

/* Returns INVALID_ARGUMENT when FLASHATTN_CPU_ISA cannot be understood. */
flash_status_t cpu_features_limit(cpu_features_limit_t *limit);

/* Returns the FLASH_ISA_... bits that the processor has, if the system saves their registers. */
uint32_t cpu_features_isa(void);

/* Asks the system for the tile registers of AMX, as a process must before it uses them. Returns
 * false when they are refused. It may be called again. */
bool cpu_features_permit_amx(void);

/* Says whether a product of bf16 pairs (AVX512_BF16) takes no longer than an fp32 multiply-add. */
bool cpu_features_dots_pay(void);

/* Writes the processor's own name, NUL-terminated and cut to fit. */
void cpu_features_name(char name[64]);

#endif
