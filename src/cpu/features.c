/*
 * Feature bits come from cpuid and xgetbv (Intel SDM volume 2), not from the model number.
 */
#define _GNU_SOURCE
#include "cpu/features.h"

#include "core/environment.h"
#include "core/status.h"
#include "flashattn.h"

#include <strings.h>

/* ---- FLASHATTN_CPU_ISA ---- */

static environment_variable_t variable = ENVIRONMENT_VARIABLE_INIT;
static cpu_features_limit_t limit_in_force = {.isa = UINT32_MAX};

static flash_status_t parse(const char *value) {
    static const struct {
        const char *name; /* in any letter case */
        uint32_t isa;     /* what this name allows beyond the names before it */
    } isas[] = {{"reference", 0},
                {"avx2", FLASH_ISA_AVX2},
                {"avx512", FLASH_ISA_AVX512},
                {"avx512_bf16", FLASH_ISA_AVX512_BF16},
                {"amx", FLASH_ISA_AMX},
                {"neon", FLASH_ISA_NEON},
                {"neon_bf16", FLASH_ISA_NEON_BF16}};
    uint32_t isa = 0;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        isa |= isas[i].isa;
        if (strcasecmp(value, isas[i].name) == 0) {
            limit_in_force.isa = isa;
            limit_in_force.named = isas[i].isa;
            limit_in_force.wants_dots = isas[i].isa == FLASH_ISA_AVX512_BF16;
            return FLASH_SUCCESS;
        }
    }
    return status_fail(FLASH_ERROR_INVALID_ARGUMENT,
                       "FLASHATTN_CPU_ISA is \"%.64s\": not reference, avx2, avx512, avx512_bf16, "
                       "amx, neon or neon_bf16",
                       value);
}

static void read_variable(void) {
    environment_parse(&variable, "FLASHATTN_CPU_ISA", parse);
}

flash_status_t cpu_features_limit(cpu_features_limit_t *limit) {
    FLASH_TRY(environment_read(&variable, read_variable));
    *limit = limit_in_force;
    return FLASH_SUCCESS;
}

/* ---- The processor ---- */

#if defined(__x86_64__)

#include <cpuid.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* CPUID leaf 1, ECX */
#define LEAF1_FMA     (1u << 12)
#define LEAF1_OSXSAVE (1u << 27)
#define LEAF1_AVX     (1u << 28)
#define LEAF1_F16C    (1u << 29)
/* CPUID leaf 7, EBX */
#define LEAF7_AVX2     (1u << 5)
#define LEAF7_AVX512F  (1u << 16)
#define LEAF7_AVX512DQ (1u << 17)
#define LEAF7_AVX512BW (1u << 30)
#define LEAF7_AVX512VL (1u << 31)
/* CPUID leaf 7, EDX */
#define LEAF7_AMX_BF16 (1u << 22)
#define LEAF7_AMX_TILE (1u << 24)
/* CPUID leaf 7, subleaf 1, EAX */
#define LEAF7_1_AVX512_BF16 (1u << 5)
/* XCR0: the state that the system saves */
#define XCR0_AVX    0x06u    /* xmm, ymm */
#define XCR0_AVX512 0xe6u    /* and masks, zmm */
#define XCR0_AMX    0x600e6u /* and tile configuration, tiles */
/* Linux: arch_prctl() asks for state that a process does not have from its start */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILE_DATA  18

static bool has_all(uint32_t value, uint32_t bits) {
    return (value & bits) == bits;
}

static uint32_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Returns the bf16 instruction sets of a processor with AVX-512. */
static uint32_t bf16_isa(uint32_t xcr0, uint32_t leaf7_edx) {
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !has_all(eax, LEAF7_1_AVX512_BF16))
        return 0;
    const bool amx = has_all(xcr0, XCR0_AMX) && has_all(leaf7_edx, LEAF7_AMX_BF16 | LEAF7_AMX_TILE);
    return FLASH_ISA_AVX512_BF16 | (amx ? (uint32_t)FLASH_ISA_AMX : 0);
}

bool cpu_features_permit_amx(void) {
    const int errno_before = errno;
    const bool is_permitted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
    errno = errno_before;
    return is_permitted;
}

uint32_t cpu_features_isa(void) {
    uint32_t eax, ebx, ecx, edx, leaf7;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) ||
        !has_all(ecx, LEAF1_FMA | LEAF1_OSXSAVE | LEAF1_AVX | LEAF1_F16C))
        return 0;
    if (!__get_cpuid_count(7, 0, &eax, &leaf7, &ecx, &edx))
        return 0;
    const uint32_t xcr0 = read_xcr0();
    if (!has_all(xcr0, XCR0_AVX) || !has_all(leaf7, LEAF7_AVX2))
        return 0;
    if (!has_all(xcr0, XCR0_AVX512) ||
        !has_all(leaf7, LEAF7_AVX512F | LEAF7_AVX512DQ | LEAF7_AVX512BW | LEAF7_AVX512VL))
        return FLASH_ISA_AVX2;
    return FLASH_ISA_AVX2 | FLASH_ISA_AVX512 | bf16_isa(xcr0, edx);
}

/* AMD's processors do twice as many operations in such products as in multiply-adds (measured on
 * Zen 5), Intel's half as many (measured on Sapphire Rapids). */
bool cpu_features_dots_pay(void) {
    uint32_t eax, name[3];
    return __get_cpuid(0, &eax, &name[0], &name[2], &name[1]) &&
           memcmp(name, "AuthenticAMD", sizeof name) == 0;
}

void cpu_features_name(char name[64]) {
    char brand[3 * 16 + 1] = {0};
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t registers[4];
        if (!__get_cpuid(0x80000002u + i, &registers[0], &registers[1], &registers[2],
                         &registers[3])) {
            status_copy_text("x86-64 CPU", name, 64);
            return;
        }
        memcpy(brand + (size_t)i * sizeof registers, registers, sizeof registers);
    }
    status_copy_text(brand + strspn(brand, " "), name, 64);
}

#else

#if defined(__aarch64__)
#include <sys/auxv.h>

/* Linux, AT_HWCAP2: the processor has FEAT_BF16 */
#define HWCAP2_FEAT_BF16 (1u << 14)
#endif

uint32_t cpu_features_isa(void) {
#if defined(__aarch64__)
    const bool bf16 = (getauxval(AT_HWCAP2) & HWCAP2_FEAT_BF16) != 0;
    return FLASH_ISA_NEON | (bf16 ? (uint32_t)FLASH_ISA_NEON_BF16 : 0); /* all have NEON */
#else
    return 0;
#endif
}

bool cpu_features_permit_amx(void) {
    return false;
}

bool cpu_features_dots_pay(void) {
    return false;
}

void cpu_features_name(char name[64]) {
#if defined(__aarch64__)
    status_copy_text("AArch64 CPU", name, 64);
#else
    status_copy_text("CPU", name, 64);
#endif
}

#endif
