/*
 * Legality of configurations: the rules of docs/configurations.md, as in codegen/legality.py.
 */
#include "config.h"

#include "config_facts.h"
#include "cpu/cpu_kernel.h"
#include "sm90/sm90_kernel.h"
#include "status.h"

enum {
    FRAGMENT = 8, /* columns along the contraction that one fragment covers */
    MMA_ROWS = 16,
    SM90_LOADING_WARPS = 4,
    ALL_FEATURES =
        FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW | FLASH_FEATURE_SOFTCAP | FLASH_FEATURE_VARLEN
};

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

/* What is another family's alone. */
static flash_status_t check_no_sm80_fields(const flash_config_t *config) {
#define CHECK_ZERO(field)                                                                          \
    FLASH_TRY(check_zero(#field, config->field, config_arch_name(config->arch)));
    FLASH_CONFIG_SM80_FIELDS(CHECK_ZERO)
    return FLASH_SUCCESS;
}

static flash_status_t check_no_sm90_fields(const flash_config_t *config) {
    FLASH_CONFIG_SM90_FIELDS(CHECK_ZERO)
#undef CHECK_ZERO
    return FLASH_SUCCESS;
}

static flash_status_t check_multiple(const char *field, int32_t value, int32_t of) {
    FLASH_REQUIRE(value % of == 0, FLASH_ERROR_INVALID_CONFIG, "%s is %d: not a multiple of %d",
                  field, value, of);
    return FLASH_SUCCESS;
}

static flash_status_t check_cpu(const flash_config_t *config) {
    const bool amx = config->arch == FLASH_ARCH_AMX;
    if (amx)
        CHECK_CHOICE(config, dtype, FLASH_DTYPE_FP16, FLASH_DTYPE_BF16);
    else if (cpu_multiplies_pairs(config->arch))
        CHECK_CHOICE(config, dtype, FLASH_DTYPE_BF16);
    else
        CHECK_CHOICE(config, dtype, FLASH_DTYPE_FP16, FLASH_DTYPE_BF16, FLASH_DTYPE_FP32);
    FLASH_TRY(check_range("d_head", config->d_head, 0, INT32_MAX));
    FLASH_TRY(check_range("B_r", config->B_r, 1, 1024));
    FLASH_TRY(check_range("B_c", config->B_c, 1, 4096));
    FLASH_TRY(check_multiple("B_r", config->B_r, amx ? AMX_SQUARE : 1));
    FLASH_TRY(check_multiple("B_c", config->B_c, amx ? AMX_SQUARE : 1));
    FLASH_TRY(check_zero("n_warps", config->n_warps, config_arch_name(config->arch)));
    FLASH_TRY(check_no_sm80_fields(config));
    FLASH_TRY(check_no_sm90_fields(config));
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
    FLASH_TRY(check_no_sm90_fields(config));
    return check_features(config);
}

static flash_status_t check_sm90_shape(const flash_config_t *config) {
    CHECK_CHOICE(config, dtype, FLASH_DTYPE_FP16, FLASH_DTYPE_BF16);
    CHECK_CHOICE(config, d_head, 64, 96, 128, 192, 256);
    CHECK_CHOICE(config, B_r, 64, 128, 192);
    FLASH_TRY(check_range("B_c", config->B_c, MMA_ROWS, 256));
    FLASH_REQUIRE(config->B_c % MMA_ROWS == 0, FLASH_ERROR_INVALID_CONFIG,
                  "B_c is %d: not a multiple of %d", config->B_c, MMA_ROWS);
    const int32_t n_warps = SM90_LOADING_WARPS + config->B_r / MMA_ROWS;
    FLASH_REQUIRE(config->n_warps == n_warps, FLASH_ERROR_INVALID_CONFIG,
                  "n_warps is %d: %d with B_r %d, %d and one for each %d rows", config->n_warps,
                  n_warps, config->B_r, SM90_LOADING_WARPS, MMA_ROWS);
    return FLASH_SUCCESS;
}

static flash_status_t check_needs(const char *field, int32_t value, const char *needed,
                                  int32_t needed_value) {
    FLASH_REQUIRE(!value || needed_value, FLASH_ERROR_INVALID_CONFIG,
                  "%s is 1: it needs %s, which is 0", field, needed);
    return FLASH_SUCCESS;
}

static flash_status_t check_sm90_strategies(const flash_config_t *config) {
    FLASH_TRY(check_range("n_stages", config->n_stages, 2, 4));
#define CHECK_SWITCH(field, word) FLASH_TRY(check_range(#field, config->field, 0, 1));
    FLASH_CONFIG_SM90_STRATEGIES(CHECK_SWITCH)
#undef CHECK_SWITCH
#define CHECK_NEEDS(field, needed)                                                                 \
    FLASH_TRY(check_needs(#field, config->field, #needed, config->needed))
    CHECK_NEEDS(ping_pong, overlap);
    CHECK_NEEDS(longest_first, persistent);
#undef CHECK_NEEDS
    FLASH_REQUIRE(!config->ping_pong || config->B_r >= 2 * SM90_WARPGROUP_ROWS,
                  FLASH_ERROR_INVALID_CONFIG,
                  "ping_pong is 1: it needs a B_r of %d or more, which is %d",
                  2 * SM90_WARPGROUP_ROWS, config->B_r);
    return FLASH_SUCCESS;
}

static flash_status_t check_sm90_features(const flash_config_t *config) {
    FLASH_TRY(check_features(config));
    FLASH_REQUIRE(!sm90_has_varlen(config) || config->longest_first, FLASH_ERROR_INVALID_CONFIG,
                  "features has varlen: it needs longest_first, which is 0");
    return FLASH_SUCCESS;
}

static flash_status_t check_sm90(const flash_config_t *config) {
    FLASH_TRY(check_sm90_shape(config));
    FLASH_TRY(check_no_sm80_fields(config));
    FLASH_TRY(check_sm90_strategies(config));
    FLASH_TRY(check_sm90_features(config));
    FLASH_REQUIRE(
        sm90_shared_bytes(config) <= SM90_SHARED_BYTES_MAX, FLASH_ERROR_INVALID_CONFIG,
        "d_head %d, B_r %d, B_c %d and n_stages %d take %d bytes of shared memory: at most %d",
        config->d_head, config->B_r, config->B_c, config->n_stages, sm90_shared_bytes(config),
        SM90_SHARED_BYTES_MAX);
    return FLASH_SUCCESS;
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
