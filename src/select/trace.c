/*
 * The trace of choices.
 */
#include "select/trace.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "core/environment.h"

#include <stdatomic.h>
#include <stdio.h>

/* One bit for each kernel and set of features that was printed. */
enum { TRACED_FEATURES = 16, TRACED_KERNELS = 4096 };
static atomic_uint printed[TRACED_KERNELS];

/* Whether this is the first such choice. */
static bool is_new(const flash_kernel_t *kernel, const problem_t *problem) {
    const ptrdiff_t row = kernel - kernel_table;
    if (row >= TRACED_KERNELS)
        return true;
    const unsigned bit = 1u << (problem->features % TRACED_FEATURES);
    return (atomic_fetch_or(&printed[row], bit) & bit) == 0;
}

void trace_choice(const flash_kernel_t *kernel, const problem_t *problem, const char *reason) {
    const environment_t *environment;
    if (environment_get(&environment) != FLASH_SUCCESS || !environment->trace ||
        !is_new(kernel, problem))
        return;
    char text[FLASH_CONFIG_TEXT_SIZE];
    flash_config_format(&kernel->config, text, sizeof text);
    fprintf(stderr, "flashattn: %s for features 0x%x: %s\n", text, (unsigned)problem->features,
            reason);
}
