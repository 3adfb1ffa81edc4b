/*
 * This file says what the compilers must do with code that works on vector registers: inline it;
 * unroll loops over arrays of vectors completely, so that the arrays become registers; and compile
 * a micro-kernel apart from its caller, whose variables would take its registers.
 */
#ifndef FLASH_KERNELS_CPU_VECTOR_H
#define FLASH_KERNELS_CPU_VECTOR_H

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define NEVER_INLINE  static __attribute__((noinline, unused))
#define LIKELY(x)     __builtin_expect((x), 1)

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
