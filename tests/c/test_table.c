/*
 * The kernel table: its order, the look-up of every row, and of rows with one field changed.
 */
#include "support.h"

#include "config_facts.h"

enum { N_FIELDS = sizeof(flash_config_t) / sizeof(int32_t) - 1 };

enum { OP_FIELD = 1 }; /* of FIELD_NAMES */

enum {
#define OP_INDEX(name, word) OP_INDEX_##name,
    FLASH_CONFIG_OPS(OP_INDEX)
#undef OP_INDEX
        N_OPS
};

static const char *const FIELD_NAMES[N_FIELDS] = {
#define FIELD_NAME(field) #field,
    FLASH_CONFIG_FIELDS(FIELD_NAME)
#undef FIELD_NAME
};

static int32_t *fields(flash_config_t *config) {
    return &config->arch;
}

static flash_config_t config_at(int32_t index) {
    flash_config_t config = FLASH_CONFIG_INIT;
    const flash_kernel_t *kernel = flash_kernel_at(index);
    assert_non_null(kernel);
    assert_success(flash_kernel_config(kernel, &config));
    return config;
}

static int compare(const flash_config_t *a, const flash_config_t *b) {
    const int32_t *x = &a->arch, *y = &b->arch;
    for (int i = 0; i < N_FIELDS; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static bool table_has(const flash_config_t *config) {
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        const flash_config_t row = config_at(i);
        if (compare(&row, config) == 0)
            return true;
    }
    return false;
}

static bool is_cuda(int32_t arch) {
    switch (arch) {
#define CPU_CASE(NAME, name) case FLASH_ARCH_##NAME:
        FLASH_CONFIG_CPU_ARCHS(CPU_CASE)
#undef CPU_CASE
        return false;
    default:
        return true;
    }
}

static bool is_family(int32_t arch) {
    switch (arch) {
#define ARCH_CASE(NAME, name) case FLASH_ARCH_##NAME:
        FLASH_CONFIG_ARCHS(ARCH_CASE)
#undef ARCH_CASE
        return true;
    default:
        return false;
    }
}

static bool has_cuda_device(void) {
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
    return flash_device_info(FLASH_DEVICE_CUDA_CURRENT, &info) == FLASH_SUCCESS;
}

static int32_t compute_capability(void) {
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
    return has_cuda_device() && flash_device_info(FLASH_DEVICE_CUDA_CURRENT, &info) == FLASH_SUCCESS
               ? info.compute_capability
               : 0;
}

/* Every family is named, because what another family needs would have to be guessed. */
static bool machine_runs(int32_t arch) {
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
    assert_success(flash_device_info(FLASH_DEVICE_CPU, &info));
    switch (arch) {
    case FLASH_ARCH_REFERENCE:
        return true;
    case FLASH_ARCH_SM80:
    case FLASH_ARCH_SM80_DECODE:
    case FLASH_ARCH_SM80_MLA:
    case FLASH_ARCH_SM80_WIDE:
    case FLASH_ARCH_MIXED:
        return compute_capability() >= 80;
    case FLASH_ARCH_SM90:
    case FLASH_ARCH_SM90_DECODE:
    case FLASH_ARCH_SM90_MLA:
    case FLASH_ARCH_SM90_WIDE:
        return compute_capability() == 90;
    case FLASH_ARCH_AVX2:
        return (info.isa & FLASH_ISA_AVX2) != 0;
    case FLASH_ARCH_AVX512:
        return (info.isa & FLASH_ISA_AVX512) != 0;
    case FLASH_ARCH_AVX512_BF16:
        return (info.isa & FLASH_ISA_AVX512_BF16) != 0;
    case FLASH_ARCH_AMX:
        return (info.isa & FLASH_ISA_AMX) != 0;
    case FLASH_ARCH_NEON_BF16:
        return (info.isa & FLASH_ISA_NEON_BF16) != 0;
    case FLASH_ARCH_NEON:
        return (info.isa & FLASH_ISA_NEON) != 0;
    default:
        fail_msg("arch %d: this test does not know what it needs of a machine", arch);
        return false;
    }
}

enum { ALL_FEATURES = 127 };

TEST(the_table_has_every_type_for_any_machine) {
    bool reference[FLASH_DTYPE_Q4_0 + 1] = {false};
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        const flash_config_t c = config_at(i);
        if (c.arch == FLASH_ARCH_REFERENCE && c.d_head == 0 &&
            c.features == (ALL_FEATURES & ~FLASH_FEATURE_DROPOUT))
            reference[c.dtype] = true;
    }
    assert_true(reference[FLASH_DTYPE_FP16]);
    assert_true(reference[FLASH_DTYPE_BF16]);
    assert_true(reference[FLASH_DTYPE_FP32]);
    assert_true(reference[FLASH_DTYPE_E4M3]);
    assert_true(reference[FLASH_DTYPE_LATENT_E4M3]);
    assert_true(reference[FLASH_DTYPE_Q8_0]);
    assert_true(reference[FLASH_DTYPE_Q4_0]);
}

TEST(rows_ascend_strictly) {
    for (int32_t i = 1; i < flash_kernel_count(); i++) {
        const flash_config_t a = config_at(i - 1), b = config_at(i);
        assert_true(compare(&a, &b) < 0);
    }
}

TEST(every_row_is_found) {
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        const flash_config_t config = config_at(i);
        const flash_kernel_t *found = flash_lookup_kernel(&config);
        if (machine_runs(config.arch)) {
            assert_ptr_equal(found, flash_kernel_at(i));
        } else {
            assert_null(found);
            assert_non_null(strstr(flash_last_error(), is_cuda(config.arch) && !has_cuda_device()
                                                           ? "no usable CUDA device"
                                                           : "need"));
        }
    }
}

TEST(names_are_symbols_and_differ) {
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        const char *name = flash_kernel_name(flash_kernel_at(i));
        assert_non_null(name);
        assert_memory_equal(name, "flash_", strlen("flash_"));
        assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_"), strlen(name));
        for (int32_t j = 0; j < i; j++)
            assert_string_not_equal(name, flash_kernel_name(flash_kernel_at(j)));
    }
}

TEST(short_forms_round_trip) {
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        char text[FLASH_CONFIG_TEXT_SIZE];
        const flash_config_t config = config_at(i);
        flash_config_t parsed = FLASH_CONFIG_INIT;
        assert_success(flash_config_format(&config, text, sizeof text));
        assert_success(flash_config_parse(text, &parsed));
        assert_memory_equal(&parsed, &config, sizeof config);
    }
}

/* Repeats the types of the CPU families (docs/configurations.md). A family that is not here has
 * none, and its rows are near misses that the library answers otherwise than this says. */
static bool cpu_has_type(int32_t arch, int32_t dtype) {
    switch (arch) {
    case FLASH_ARCH_REFERENCE:
    case FLASH_ARCH_AVX2:
    case FLASH_ARCH_AVX512:
    case FLASH_ARCH_NEON:
        return dtype >= FLASH_DTYPE_FP16 && dtype <= FLASH_DTYPE_Q4_0;
    case FLASH_ARCH_AMX:
        return dtype == FLASH_DTYPE_FP16 || dtype == FLASH_DTYPE_BF16;
    case FLASH_ARCH_AVX512_BF16:
    case FLASH_ARCH_NEON_BF16:
        return dtype == FLASH_DTYPE_BF16;
    default:
        return false;
    }
}

/* Families without gradients have no dropout either. */
static int32_t cpu_features(int32_t arch) {
    return arch == FLASH_ARCH_AMX ? ALL_FEATURES & ~FLASH_FEATURE_DROPOUT : ALL_FEATURES;
}

/* Repeats the rules of the CPU families. */
static bool cpu_legal(const flash_config_t *c) {
    for (const int32_t *field = &c->n_warps; field <= &c->operand_dtype; field++)
        if (field != &c->features && *field != 0)
            return false;
    if (c->arch == FLASH_ARCH_AMX && (c->B_r % 32 != 0 || c->B_c % 32 != 0))
        return false;
    return cpu_has_type(c->arch, c->dtype) && c->op == FLASH_OP_FORWARD && c->d_head >= 0 &&
           c->B_r >= 1 && c->B_r <= 1024 && c->B_c >= 1 && c->B_c <= 4096 && c->features >= 0 &&
           (c->features & ~cpu_features(c->arch)) == 0;
}

/* Says whether the configuration has rules that this test does not repeat: those of another CUDA
 * family, or of another operation, than the row has whose field is changed. */
static bool has_other_rules(const flash_config_t *config, int field) {
    const bool is_op = config->op >= 0 && config->op < N_OPS;
    const bool other_op = is_op && (field == OP_FIELD || config->op != FLASH_OP_FORWARD);
    return is_family(config->arch) && ((field == 0 && is_cuda(config->arch)) || other_op);
}

/* Checks such a configuration by its status alone. */
static void check_other_rows(const flash_config_t *config) {
    assert_null(flash_lookup_kernel(config));
    assert_null(strstr(flash_last_error(), "no such kernel family"));
    assert_true(flash_last_status() == FLASH_ERROR_INVALID_CONFIG ||
                flash_last_status() == FLASH_ERROR_NOT_BUILT);
}

static void check_near_miss(const flash_config_t *config, int field) {
    const bool other_type = !is_cuda(config->arch) && !cpu_has_type(config->arch, config->dtype);
    const bool other_features =
        !is_cuda(config->arch) && (config->features & ~cpu_features(config->arch)) != 0;
    const char *wrong = field != 0       ? FIELD_NAMES[field]
                        : other_type     ? "dtype"
                        : other_features ? "features"
                                         : FIELD_NAMES[field];
    if (table_has(config))
        return;
    if (has_other_rules(config, field)) {
        check_other_rows(config);
        return;
    }
    assert_null(flash_lookup_kernel(config));
    const bool cuda = field > 0 && is_cuda(config->arch);
    if (cuda ? flash_last_status() == FLASH_ERROR_NOT_BUILT : cpu_legal(config)) {
        assert_non_null(strstr(flash_last_error(), "without a kernel in this library"));
        assert_int_equal(flash_last_status(), FLASH_ERROR_NOT_BUILT);
    } else {
        const bool may_be_of_operands =
            field == 0 || strcmp(wrong, "dtype") == 0 || strcmp(wrong, "features") == 0;
        const bool of_operands = may_be_of_operands && config->operand_dtype != 0 &&
                                 strstr(flash_last_error(), "operand_dtype is ") != NULL;
        assert_true(of_operands || strstr(flash_last_error(), wrong) != NULL);
        assert_int_equal(flash_last_status(), FLASH_ERROR_INVALID_CONFIG);
    }
}

/* A library without CUDA says so of a configuration that other builds have. */
TEST(cuda_rows_are_missed_by_their_reason) {
    flash_config_t config = FLASH_CONFIG_INIT, row = FLASH_CONFIG_INIT;
    bool has_cuda = false;
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        assert_success(flash_kernel_config(flash_kernel_at(i), &row));
        has_cuda = has_cuda || is_cuda(row.arch);
    }
    assert_success(flash_config_parse("(FP16, 128, 64, 64, 4): load_0_0_0_tiles", &config));
    assert_null(flash_lookup_kernel(&config));
    const bool says_so = strstr(flash_last_error(), "which was built without CUDA (") != NULL;
    assert_int_equal(says_so, !has_cuda);
    assert_success(flash_config_parse("REFERENCE (FP32, any, 17, 1)", &config));
    assert_null(flash_lookup_kernel(&config));
    assert_null(strstr(flash_last_error(), "CUDA"));
}

TEST(every_near_miss_is_answered) {
    static const int32_t changes[] = {-1, 1, 2, 16, 64, 1 << 20};
    for (int32_t i = 0; i < flash_kernel_count(); i++)
        for (int field = 0; field < N_FIELDS; field++)
            for (size_t j = 0; j < sizeof changes / sizeof changes[0]; j++) {
                flash_config_t config = config_at(i);
                fields(&config)[field] += changes[j];
                check_near_miss(&config, field);
            }
}

/* Each configuration breaks one rule of its family, which the message names. */
TEST(cuda_rules) {
    static const struct {
        const char *text;
        const char *field;
    } illegal[] = {
        {"(FP32, 128, 64, 64, 4): load_0_0_0_tiles", "dtype"},
        {"(FP16, 80, 64, 64, 4): load_0_0_0_tiles", "d_head"},
        {"(FP16, 128, 32, 64, 4): load_0_0_0_tiles", "B_r"},
        {"(FP16, 128, 64, 16, 4): load_0_0_0_tiles", "B_c"},
        {"(FP16, 128, 64, 64, 2): load_0_0_0_tiles", "n_warps"},
        {"(FP16, 128, 64, 64, 8): load_0_0_0_tiles", "n_warps"},
        {"(FP16, 128, 64, 64, 4): eager+load_0_0_0_tiles", "eager_load_blocks"},
        {"(FP16, 128, 64, 64, 4): load_0_1_0_tiles", "K_mma_load_K_fragments"},
        {"(FP16, 128, 64, 64, 4): load_0_3_0_tiles", "K_mma_load_K_fragments"},
        {"(FP16, 128, 64, 64, 4): load_0_0_-2_tiles", "V_mma_load_K_fragments"},
        {"(FP16, 128, 64, 64, 4): load_2_4_2_tiles", "Q_mma_load_K_fragments"},
        {"(FP16, 128, 64, 64, 4): load_0_32_2_tiles", "K_mma_load_K_fragments"},
        {"(FP16, 128, 64, 64, 4): load_0_2_16_tiles", "V_mma_load_K_fragments"},
        {"(FP16, 128, 64, 64, 4): load_0_16_2_tiles+buffer", "K_mma_load_K_fragments"},
        {"SM80_DECODE (FP32, 128, 16, 16, 4): stages_3", "dtype"},
        {"SM80_DECODE (FP16, 96, 16, 16, 4): stages_3", "d_head"},
        {"SM80_DECODE (FP16, 128, 32, 16, 4): stages_3", "B_r"},
        {"SM80_DECODE (FP16, 128, 16, 64, 4): stages_3", "B_c"},
        {"SM80_DECODE (FP16, 128, 16, 16, 2): stages_3", "n_warps"},
        {"SM80_DECODE (FP16, 128, 16, 16, 4): stages_1", "n_stages is 1: not within 2 ... 8"},
        {"SM80_DECODE (FP16, 128, 16, 16, 4): stages_9", "n_stages is 9: not within 2 ... 8"},
        {"SM80_DECODE (FP16, 256, 8, 32, 4): stages_2",
         "take 262144 bytes of shared memory: at most 231424"},
        {"SM80_WIDE (FP32, 512, 64, 32, 8): stages_2", "dtype"},
        {"SM80_WIDE (BF16, 256, 64, 32, 8): stages_2", "d_head"},
        {"SM80_WIDE (BF16, 512, 128, 32, 8): stages_2", "B_r"},
        {"SM80_WIDE (BF16, 512, 64, 64, 8): stages_2", "B_c"},
        {"SM80_WIDE (BF16, 512, 64, 32, 16): stages_2", "n_warps"},
        {"SM80_WIDE (BF16, 512, 64, 32, 4): stages_2", "n_warps is 4: two or four"},
        {"SM80_WIDE (BF16, 512, 64, 32, 8): stages_1", "n_stages"},
        {"SM80_WIDE (BF16, 512, 64, 32, 8): stages_4", "bytes of shared memory: at most"},
        {"SM80_MLA (FP32, 576/512, 64, 32, 8): stages_3", "dtype"},
        {"SM80_MLA (BF16, 512/512, 64, 32, 8): stages_3", "d_head"},
        {"SM80_MLA (BF16, 576/256, 64, 32, 8): stages_3", "d_head_v"},
        {"SM80_MLA (BF16, 576, 64, 32, 8): stages_3", "d_head_v"},
        {"SM80_MLA (BF16, 576/512, 128, 32, 8): stages_3", "B_r"},
        {"SM80_MLA (BF16, 576/512, 64, 64, 8): stages_3", "B_c"},
        {"SM80_MLA (BF16, 576/512, 64, 32, 16): stages_3", "n_warps"},
        {"SM80_MLA (BF16, 576/512, 64, 32, 4): stages_3",
         "n_warps is 4: two or four for each 16 rows of B_r, which is 64"},
        {"SM80_MLA (BF16, 576/512, 16, 32, 8): stages_3", "n_warps is 8: two or four"},
        {"SM80_MLA (BF16, 576/512, 64, 32, 8): stages_2", "n_stages"},
        {"SM80_MLA (E4M3, 576/512, 64, 32, 8): stages_2", "n_stages"},
        {"SM80_MLA (BF16, 576/512, 64, 32, 8): stages_6",
         "take 247552 bytes of shared memory: at most 231424"},
        {"MIXED (FP32, 256, 16): varlen", "dtype"},
        {"MIXED (FP16, 128, 16): varlen", "d_head"},
        {"MIXED (FP16, 256, 64): varlen", "B_r"},
        {"MIXED (FP16, 256, 16): causal", "no varlen"},
        {"SM90 (FP32, 128, 128, 128, 12): stages_2", "dtype"},
        {"SM90 (BF16, 32, 128, 128, 12): stages_2", "d_head"},
        {"SM90 (BF16, 128, 96, 128, 10): stages_2", "B_r"},
        {"SM90 (BF16, 128, 128, 272, 12): stages_2", "B_c is 272: not within 16 ... 256"},
        {"SM90 (BF16, 128, 128, 104, 12): stages_2", "B_c is 104: not a multiple of 16"},
        {"SM90 (BF16, 128, 128, 128, 8): stages_2", "n_warps is 8: 12"},
        {"SM90 (BF16, 128, 128, 128, 12): stages_1", "n_stages"},
        {"SM90 (BF16, 128, 128, 128, 12): stages_5", "n_stages"},
        {"SM90 (BF16, 128, 128, 128, 12): stages_2+ping_pong", "overlap"},
        {"SM90 (BF16, 128, 64, 128, 8): stages_2+overlap+ping_pong", "B_r of 128 or more"},
        {"SM90 (BF16, 128, 128, 128, 12): stages_2+longest_first", "persistent"},
        {"SM90 (BF16, 128, 128, 128, 12): stages_2+varlen", "needs longest_first"},
        {"SM90 (BF16, 256, 128, 96, 12): stages_2", "bytes of shared memory: at most 232448"},
        {"SM90_DECODE (FP32, 128, 128, 128, 12): stages_2+varlen", "dtype"},
        {"SM90_DECODE (E4M3, 128, 128, 128, 12): stages_2+varlen", "n_warps is 12: 16"},
        {"SM90_DECODE (E4M3, 128, 128, 128, 16): stages_2+varlen+bias", "features has bias"},
        {"SM90_DECODE (BF16, 96, 128, 128, 12): stages_2+varlen", "d_head"},
        {"SM90_DECODE (BF16, 128, 192, 128, 16): stages_2+varlen", "B_r"},
        {"SM90_DECODE (BF16, 128, 128, 96, 12): stages_2+varlen", "B_c"},
        {"SM90_DECODE (BF16, 128, 128, 128, 8): stages_2+varlen", "n_warps is 8: 12"},
        {"SM90_DECODE (BF16, 128, 128, 128, 12): stages_5+varlen", "n_stages"},
        {"SM90_DECODE (BF16, 128, 64, 128, 8): stages_2+ping_pong+varlen", "B_r of 128 or more"},
        {"SM90_DECODE (BF16, 128, 128, 128, 12): stages_2+causal", "has no varlen"},
        {"SM90_DECODE (BF16, 128, 128, 128, 12): stages_4+varlen", "297856 bytes"},
        {"SM90_MLA (E4M3, 576/512, 64, 64, 12): stages_2+varlen", "dtype"},
        {"SM90_MLA (BF16, 512/512, 64, 64, 12): stages_2+varlen", "d_head"},
        {"SM90_MLA (BF16, 576/256, 64, 64, 12): stages_2+varlen", "d_head_v"},
        {"SM90_MLA (BF16, 576, 64, 64, 12): stages_2+varlen", "d_head_v"},
        {"SM90_MLA (BF16, 576/512, 128, 64, 12): stages_2+varlen", "B_r"},
        {"SM90_MLA (BF16, 576/512, 64, 128, 12): stages_2+varlen", "B_c"},
        {"SM90_MLA (BF16, 576/512, 64, 64, 16): stages_2+varlen", "n_warps"},
        {"SM90_MLA (BF16, 576/512, 64, 64, 12): stages_3+varlen", "n_stages"},
        {"SM90_MLA (BF16, 576/512, 64, 64, 12): stages_2+causal", "has no varlen"},
        {"SM90_MLA (BF16, 576/512, 64, 64, 12): stages_2+persistent+varlen+bias",
         "features has bias, which persistent SM90_MLA kernels"},
        {"SM90_WIDE (LATENT_E4M3, 512, 64, 64, 16): stages_1+varlen", "dtype"},
        {"SM90_WIDE (BF16, 320, 64, 64, 12): stages_1+varlen", "d_head"},
        {"SM90_WIDE (BF16, 512, 128, 64, 12): stages_1+varlen", "B_r"},
        {"SM90_WIDE (BF16, 512, 64, 32, 12): stages_1+varlen", "B_c"},
        {"SM90_WIDE (BF16, 512, 64, 64, 16): stages_1+varlen", "n_warps is 16: 12"},
        {"SM90_WIDE (BF16, 512, 64, 64, 12): stages_2+varlen", "n_stages"},
        {"SM90_WIDE (BF16, 512, 64, 64, 12): stages_1+causal", "has no varlen"},
        {"SM90_WIDE (E4M3, 512, 64, 64, 16): stages_1+varlen+bias", "do not add"},
    };
    for (size_t i = 0; i < sizeof illegal / sizeof illegal[0]; i++) {
        flash_config_t config = FLASH_CONFIG_INIT;
        assert_success(flash_config_parse(illegal[i].text, &config));
        assert_null(flash_lookup_kernel(&config));
        check_refusal(flash_last_status(), FLASH_ERROR_INVALID_CONFIG, illegal[i].field);
    }
}
