/*
 * Order and legality of configurations. The fields and names come from the generator's one list
 * (config_facts.h); the rules are those of docs/configurations.md, as in codegen/legality.py.
 */
#include "config.h"

#include "config_facts.h"
#include "status.h"
#include "struct_size.h"

enum {
    FRAGMENT = 8, /* columns along the contraction that one fragment covers */
    MMA_ROWS = 16,
    ALL_FEATURES =
        FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW | FLASH_FEATURE_SOFTCAP | FLASH_FEATURE_VARLEN
};

int config_compare(const flash_config_t *a, const flash_config_t *b) {
#define COMPARE_FIELD(field)                                                                       \
    if (a->field != b->field)                                                                      \
        return a->field < b->field ? -1 : 1;
    FLASH_CONFIG_FIELDS(COMPARE_FIELD)
#undef COMPARE_FIELD
    return 0;
}

flash_status_t config_read(flash_config_t *ours, const flash_config_t *theirs) {
    return struct_read(ours, sizeof *ours, theirs, "flash_config_t");
}

flash_status_t config_write(const flash_config_t *ours, flash_config_t *theirs) {
    return struct_write(ours, sizeof *ours, theirs, "flash_config_t");
}

const char *config_arch_name(int32_t arch) {
    switch (arch) {
#define ARCH_NAME(name, layout)                                                                    \
    case FLASH_ARCH_##name:                                                                        \
        return #name;
        FLASH_CONFIG_ARCHS(ARCH_NAME)
#undef ARCH_NAME
    default:
        return "unknown";
    }
}

const char *config_dtype_name(int32_t dtype) {
    switch (dtype) {
#define DTYPE_NAME(name)                                                                           \
    case FLASH_DTYPE_##name:                                                                       \
        return #name;
        FLASH_CONFIG_DTYPES(DTYPE_NAME)
#undef DTYPE_NAME
    default:
        return "unknown";
    }
}

int64_t dtype_size(int32_t dtype) {
    switch (dtype) {
    case FLASH_DTYPE_FP16:
    case FLASH_DTYPE_BF16:
        return 2;
    case FLASH_DTYPE_FP32:
        return 4;
    default:
        return 0;
    }
}

static flash_status_t check_range(const char *field, int32_t value, int32_t low, int32_t high) {
    FLASH_REQUIRE(value >= low && value <= high, FLASH_ERROR_INVALID_CONFIG,
                  "%s is %d: not within %d ... %d", field, value, low, high);
    return FLASH_SUCCESS;
}

static flash_status_t check_zero(const char *field, int32_t value, const char *family) {
    FLASH_REQUIRE(value == 0, FLASH_ERROR_INVALID_CONFIG,
                  "%s is %d: it means nothing to the %s family and must be 0", field, value,
                  family);
    return FLASH_SUCCESS;
}

/* value must be one of the n allowed ones. */
static flash_status_t check_choice(const char *field, int32_t value, const int32_t *allowed,
                                   int n) {
    for (int i = 0; i < n; i++)
        if (value == allowed[i])
            return FLASH_SUCCESS;
    return status_fail(FLASH_ERROR_INVALID_CONFIG, "%s is %d: the family has no such value", field,
                       value);
}

#define CHECK_CHOICE(config, field, ...)                                                           \
    FLASH_TRY(check_choice(#field, (config)->field, (const int32_t[]){__VA_ARGS__},                \
                           (int)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))))

static flash_status_t check_features(const flash_config_t *config) {
    FLASH_REQUIRE((config->features & ~ALL_FEATURES) == 0, FLASH_ERROR_INVALID_CONFIG,
                  "features is 0x%x: unknown bits 0x%x", (unsigned)config->features,
                  (unsigned)(config->features & ~ALL_FEATURES));
    return FLASH_SUCCESS;
}

static flash_status_t check_cpu(const flash_config_t *config) {
    const char *family = config_arch_name(config->arch);
    CHECK_CHOICE(config, dtype, FLASH_DTYPE_FP16, FLASH_DTYPE_BF16, FLASH_DTYPE_FP32);
    FLASH_TRY(check_range("d_head", config->d_head, 0, INT32_MAX));
    FLASH_TRY(check_range("B_r", config->B_r, 1, 1024));
    FLASH_TRY(check_range("B_c", config->B_c, 1, 4096));
    FLASH_TRY(check_zero("n_warps", config->n_warps, family));
#define CHECK_ZERO(field, word) FLASH_TRY(check_zero(#field, config->field, family));
    FLASH_CONFIG_STRATEGIES(CHECK_ZERO)
    FLASH_CONFIG_STRATEGIES_AFTER_LOAD(CHECK_ZERO)
#undef CHECK_ZERO
    FLASH_TRY(check_zero("Q_mma_load_K_fragments", config->Q_mma_load_K_fragments, family));
    FLASH_TRY(check_zero("K_mma_load_K_fragments", config->K_mma_load_K_fragments, family));
    FLASH_TRY(check_zero("V_mma_load_K_fragments", config->V_mma_load_K_fragments, family));
    return check_features(config);
}

/* Fragments held at a time: 0, or a power of two from 2 up to what the contraction has, half of
 * that when the next ones load meanwhile. */
static flash_status_t check_fragments(const char *field, int32_t count, const char *axis,
                                      int32_t contraction, bool double_buffered) {
    const int32_t most = contraction / FRAGMENT / (double_buffered ? 2 : 1);
    FLASH_REQUIRE(count >= 0 && count != 1 && (count & (count - 1)) == 0,
                  FLASH_ERROR_INVALID_CONFIG, "%s is %d: not 0 or a power of two from 2 on", field,
                  count);
    FLASH_REQUIRE(count <= most, FLASH_ERROR_INVALID_CONFIG, "%s is %d: at most %d with %s %d%s",
                  field, count, most, axis, contraction,
                  double_buffered ? " and double buffering" : "");
    return FLASH_SUCCESS;
}

static flash_status_t check_sm80_fragments(const flash_config_t *config) {
    const bool buffered = config->mma_double_buffer_loads != 0;
    FLASH_TRY(check_fragments("Q_mma_load_K_fragments", config->Q_mma_load_K_fragments, "d_head",
                              config->d_head, buffered));
    FLASH_TRY(check_fragments("K_mma_load_K_fragments", config->K_mma_load_K_fragments, "d_head",
                              config->d_head, buffered));
    FLASH_TRY(check_fragments("V_mma_load_K_fragments", config->V_mma_load_K_fragments, "B_c",
                              config->B_c, buffered));
    FLASH_REQUIRE(config->Q_mma_load_K_fragments == 0 ||
                      config->Q_mma_load_K_fragments == config->K_mma_load_K_fragments,
                  FLASH_ERROR_INVALID_CONFIG,
                  "Q_mma_load_K_fragments is %d: neither 0 nor K_mma_load_K_fragments, %d",
                  config->Q_mma_load_K_fragments, config->K_mma_load_K_fragments);
    return FLASH_SUCCESS;
}

static flash_status_t check_sm80(const flash_config_t *config) {
    CHECK_CHOICE(config, dtype, FLASH_DTYPE_FP16, FLASH_DTYPE_BF16);
    CHECK_CHOICE(config, d_head, 32, 64, 96, 128, 192, 256);
    CHECK_CHOICE(config, B_r, 64, 128);
    CHECK_CHOICE(config, B_c, 32, 64, 128);
    CHECK_CHOICE(config, n_warps, 4, 8);
    FLASH_REQUIRE(config->B_r % (MMA_ROWS * config->n_warps) == 0, FLASH_ERROR_INVALID_CONFIG,
                  "n_warps is %d: B_r %d does not divide into rows of %d for each", config->n_warps,
                  config->B_r, MMA_ROWS);
#define CHECK_SWITCH(field, word) FLASH_TRY(check_range(#field, config->field, 0, 1));
    FLASH_CONFIG_STRATEGIES(CHECK_SWITCH)
    FLASH_CONFIG_STRATEGIES_AFTER_LOAD(CHECK_SWITCH)
#undef CHECK_SWITCH
    FLASH_REQUIRE(config->async_copy || !config->eager_load_blocks, FLASH_ERROR_INVALID_CONFIG,
                  "eager_load_blocks is 1: it needs async_copy, which is 0");
    FLASH_TRY(check_sm80_fragments(config));
    return check_features(config);
}

bool config_is_cpu(const flash_config_t *config) {
    return config->arch < FLASH_ARCH_SM80;
}

flash_status_t config_check(const flash_config_t *config) {
    switch (config->arch) {
#define CHECK_ARCH(name, layout)                                                                   \
    case FLASH_ARCH_##name:                                                                        \
        return check_##layout(config);
        FLASH_CONFIG_ARCHS(CHECK_ARCH)
#undef CHECK_ARCH
    default:
        return status_fail(FLASH_ERROR_INVALID_CONFIG, "arch is %d: no such kernel family",
                           config->arch);
    }
}
