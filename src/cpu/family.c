/*
 * The CPU families are described here: which instruction set each needs.
 */
#include "config/family.h"

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/launch.h"
#include "cpu/plan.h"

#include <stddef.h>

/* ---- All CPU families ---- */

static const char *forward_obstacle(const flash_config_t *config, const problem_t *problem,
                                    const device_t *device) {
    (void)device;
    return cpu_plan_obstacle(config, &problem->params);
}

/* Large tiles come first where a build holds several rows of a family. */
static family_rank_t rank_by_tile(const flash_config_t *config, const problem_t *problem,
                                  const device_t *device) {
    (void)problem;
    (void)device;
    return (family_rank_t){.preference = -(int64_t)config->B_r * config->B_c};
}

static const char *remark_on_processor(const problem_t *problem, const device_t *device) {
    (void)problem;
    if (device->isa_absent)
        return "; the processor lacks the family that FLASHATTN_CPU_ISA names";
    return device->amx_refused ? "; the system refused AMX's tile registers" : "";
}

static const family_op_t forward = {
    .obstacle = forward_obstacle, .rank = rank_by_tile, .calls = &cpu_calls, .cpu = &cpu_forward};

static const family_op_t backward_dq = {
    .rank = rank_by_tile, .calls = &cpu_calls, .cpu = &cpu_backward_dq};
static const family_op_t backward_dkv = {
    .rank = rank_by_tile, .calls = &cpu_calls, .cpu = &cpu_backward_dkv};

/* The operations of families with gradients. */
#define WITH_GRADIENTS                                                                             \
    [FLASH_OP_FORWARD] = &forward, [FLASH_OP_BACKWARD_DQ] = &backward_dq,                          \
    [FLASH_OP_BACKWARD_DKV] = &backward_dkv

#define CPU_FAMILY(name, lacks_, remark_, ...)                                                     \
    const family_t family_##name = {.facts = &family_facts_##name,                                 \
                                    .lacks = (lacks_),                                             \
                                    .remark = (remark_),                                           \
                                    .ops = {__VA_ARGS__}}

/* Defines what a family lacks without its instruction sets. */
#define DEFINE_LACKS(name, isa_, words)                                                            \
    static const char *lacks_##name(const device_t *device) {                                      \
        return device->isa & (isa_) ? NULL : words;                                                \
    }

/* ---- Any processor ---- */

static const char *lacks_nothing(const device_t *device) {
    (void)device;
    return NULL;
}
CPU_FAMILY(reference, lacks_nothing, remark_on_processor, WITH_GRADIENTS);

/* ---- x86-64 ---- */

DEFINE_LACKS(avx2, FLASH_ISA_AVX2,
             "AVX2 kernels need a processor with AVX2, FMA and F16C that FLASHATTN_CPU_ISA does "
             "not hide")
CPU_FAMILY(avx2, lacks_avx2, remark_on_processor, WITH_GRADIENTS);

/* Says why AVX512_BF16 was not taken instead. */
static const char *remark_on_pairs(const problem_t *problem, const device_t *device) {
    const bool slow_pairs = (device->isa & FLASH_ISA_AVX512_BF16) && !device->dots_pay;
    const bool says_more = device->amx_refused || device->isa_absent;
    const bool has_pairs =
        problem->dtype == FLASH_DTYPE_BF16 && problem->params.q_dtype == FLASH_DTYPE_BF16;
    if (!says_more && slow_pairs && has_pairs)
        return "; products of bf16 pairs are slow on it";
    return remark_on_processor(problem, device);
}
DEFINE_LACKS(avx512, FLASH_ISA_AVX512,
             "AVX512 kernels need a processor with AVX-512 F, BW, DQ and VL that FLASHATTN_CPU_ISA "
             "does not hide")
CPU_FAMILY(avx512, lacks_avx512, remark_on_pairs, WITH_GRADIENTS);

DEFINE_LACKS(avx512_bf16, FLASH_ISA_AVX512_BF16,
             "AVX512_BF16 kernels need a processor with AVX-512 F, BW, DQ, VL and AVX512_BF16 that "
             "FLASHATTN_CPU_ISA does not hide")
CPU_FAMILY(avx512_bf16, lacks_avx512_bf16, remark_on_processor, WITH_GRADIENTS);

static const char *lacks_amx(const device_t *device) {
    if (device->isa & FLASH_ISA_AMX)
        return NULL;
    return device->amx_refused
               ? "the system refused this process the tile registers that AMX kernels need "
                 "(arch_prctl, ARCH_REQ_XCOMP_PERM)"
               : "AMX kernels need a processor with AMX-TILE, AMX-BF16 and AVX512_BF16 that "
                 "FLASHATTN_CPU_ISA does not hide";
}
CPU_FAMILY(amx, lacks_amx, remark_on_processor, WITH_GRADIENTS);

/* ---- AArch64 ---- */

DEFINE_LACKS(neon, FLASH_ISA_NEON,
             "NEON kernels need an AArch64 processor, and FLASHATTN_CPU_ISA not to hide it")
CPU_FAMILY(neon, lacks_neon, remark_on_processor, WITH_GRADIENTS);

DEFINE_LACKS(
    neon_bf16, FLASH_ISA_NEON_BF16,
    "NEON_BF16 kernels need an AArch64 processor with FEAT_BF16 that FLASHATTN_CPU_ISA does "
    "not hide")
CPU_FAMILY(neon_bf16, lacks_neon_bf16, remark_on_processor, WITH_GRADIENTS);
