/*
 * A thread has floating-point modes (rounding; denormals by FTZ and DAZ; traps) and flags. The
 * library computes in the modes of a program's start: to nearest, denormals kept, no traps.
 */
#ifndef FLASH_FLOAT_MODES_H
#define FLASH_FLOAT_MODES_H

#if defined(__x86_64__)

#include <xmmintrin.h>

/* The modes are in MXCSR (Intel SDM volume 1, 10.2.3). The x87 unit is not used. */
typedef struct float_modes {
    unsigned int mxcsr;
} float_modes_t;

/* Sets the library's modes and returns the previous ones. */
static inline float_modes_t float_modes_enter(void) {
    enum { MXCSR_AT_START = 0x1f80 }; /* all exceptions masked */
    const float_modes_t before = {_mm_getcsr()};
    _mm_setcsr(MXCSR_AT_START);
    return before;
}

/* Restores the modes and flags that float_modes_enter() returned. */
static inline void float_modes_leave(const float_modes_t *before) {
    _mm_setcsr(before->mxcsr);
}

#elif defined(__aarch64__)

#include <stdint.h>

/* The modes are in FPCR, the flags in FPSR (Arm ARM, C5.2.8 and C5.2.10). */
typedef struct float_modes {
    uint64_t fpcr;
    uint64_t fpsr;
} float_modes_t;

static inline float_modes_t float_modes_enter(void) {
    float_modes_t before;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, xzr"
                     : "=r"(before.fpcr), "=r"(before.fpsr)
                     :
                     : "memory");
    return before;
}

static inline void float_modes_leave(const float_modes_t *before) {
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1"
                     :
                     : "r"(before->fpcr), "r"(before->fpsr)
                     : "memory");
}

#else

#include <fenv.h>

typedef struct float_modes {
    fenv_t environment;
} float_modes_t;

static inline float_modes_t float_modes_enter(void) {
    float_modes_t before;
    fegetenv(&before.environment);
    fesetenv(FE_DFL_ENV);
    return before;
}

static inline void float_modes_leave(const float_modes_t *before) {
    fesetenv(&before->environment);
}

#endif

#endif
