/*
 * The rules among the fields of a kernel family's configurations are a list in the header on which
 * host and device code of the family agree: FAMILY_FWD_RULES(X, c), whose entries are
 *
 *     X(condition, "message about %d", value...)
 *
 * with c the const flash_config_t *. Each entry may rely on those before it, and all on the rules
 * of single fields (codegen/facts.py). The host checks what callers pass (src/config/rules.h),
 * device code asserts what it is compiled for, and the generator reads the list to refuse rows
 * (codegen/kernel_rules.py): it knows expressions of integers, enumerators that are given a value,
 * and functions of the same headers that compute an int32_t of a configuration by expressions.
 */
#ifndef FLASH_KERNELS_COMMON_RULES_H
#define FLASH_KERNELS_COMMON_RULES_H

#ifdef __CUDACC__
#define ASSERT_RULE(condition, message, ...) static_assert(condition, message);
#endif

#endif
