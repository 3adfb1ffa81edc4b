/*
 * The short form of configurations is written and read.
 */
#include "support.h"

#include <errno.h>

/* Offsets of fields, counted behind struct_size. */
enum {
    N_WARPS = 6,
    FEATURES = 15,
    N_STAGES = 16,
    N_FIELDS = sizeof(flash_config_t) / sizeof(int32_t) - 1
};

static int32_t *fields(flash_config_t *config) {
    return &config->arch;
}

static void check_round_trip(const flash_config_t *config) {
    char text[FLASH_CONFIG_TEXT_SIZE];
    flash_config_t parsed = FLASH_CONFIG_INIT;
    assert_success(flash_config_format(config, text, sizeof text));
    assert_success(flash_config_parse(text, &parsed));
    if (memcmp(&parsed, config, sizeof parsed) != 0)
        fail_msg("\"%s\" reads as another configuration", text);
}

static void check_text(const char *text) {
    char again[FLASH_CONFIG_TEXT_SIZE];
    flash_config_t config = FLASH_CONFIG_INIT;
    assert_success(flash_config_parse(text, &config));
    assert_success(flash_config_format(&config, again, sizeof again));
    assert_string_equal(again, text);
}

static flash_config_t parsed(const char *text) {
    flash_config_t config = FLASH_CONFIG_INIT;
    assert_success(flash_config_parse(text, &config));
    return config;
}

TEST(texts_round_trip) {
    check_text("(FP16, 128, 64, 64, 4): "
               "async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax");
    check_text("(BF16, 64, 128, 32, 8): load_0_0_0_tiles");
    check_text("(BF16, 64, 128, 32, 8): async+load_8_8_4_tiles+causal+window+softcap+varlen");
    check_text("SM90 (BF16, 128, 128, 176, 12): stages_2+overlap+ping_pong+persistent+"
               "longest_first+fixed_reference+causal");
    check_text("SM90 (FP16, 64, 64, 32, 8): stages_4");
    check_text("SM90 (BF16, 192/128, 128, 112, 12): stages_2+overlap+causal");
    check_text("SM80_DECODE (FP16, 128, 16, 16, 4): stages_3+causal+window+softcap+varlen+paged");
    check_text("SM80_DECODE (BF16, 64, 8, 32, 8): stages_2");
    check_text("MIXED (E4M3, 256, 16): causal+window+softcap+varlen+paged");
    check_text("AVX512 (BF16, any, 64, 128): causal+window+softcap+varlen");
    check_text("AVX2 (FP16, 40, 64, 64): softcap");
    check_text("REFERENCE (FP32, any, 16, 1)");
}

TEST(fields_of_a_text) {
    const flash_config_t c =
        parsed("(BF16, 128, 64, 32, 4): async+swizzled+load_2_4_8_tiles+buffer+window");
    assert_int_equal(c.struct_size, sizeof c);
    assert_int_equal(c.arch, FLASH_ARCH_SM80);
    assert_int_equal(c.dtype, FLASH_DTYPE_BF16);
    assert_int_equal(c.d_head, 128);
    assert_int_equal(c.B_r, 64);
    assert_int_equal(c.B_c, 32);
    assert_int_equal(c.n_warps, 4);
    assert_int_equal(c.async_copy, 1);
    assert_int_equal(c.eager_load_blocks, 0);
    assert_int_equal(c.swizzled, 1);
    assert_int_equal(c.Q_mma_load_K_fragments, 2);
    assert_int_equal(c.K_mma_load_K_fragments, 4);
    assert_int_equal(c.V_mma_load_K_fragments, 8);
    assert_int_equal(c.mma_double_buffer_loads, 1);
    assert_int_equal(c.optimized_softmax, 0);
    assert_int_equal(c.features, FLASH_FEATURE_WINDOW);
}

TEST(fields_of_a_text_of_sm90) {
    const flash_config_t c =
        parsed("SM90 (FP16, 64, 192, 128, 16): stages_3+overlap+persistent+fixed_reference+causal");
    flash_config_t expected = FLASH_CONFIG_INIT;
    expected.arch = FLASH_ARCH_SM90;
    expected.dtype = FLASH_DTYPE_FP16;
    expected.d_head = 64;
    expected.B_r = 192;
    expected.B_c = 128;
    expected.n_warps = 16;
    expected.features = FLASH_FEATURE_CAUSAL;
    expected.n_stages = 3;
    expected.overlap = expected.persistent = expected.fixed_reference = 1;
    assert_memory_equal(&c, &expected, sizeof c);
}

TEST(fields_of_a_text_with_d_head_v) {
    const flash_config_t c = parsed("SM90 (BF16, 192 / 128, 128, 112, 12): stages_2");
    assert_int_equal(c.d_head, 192);
    assert_int_equal(c.d_head_v, 128);
    assert_int_equal(c.B_r, 128);
    assert_int_equal(c.B_c, 112);
}

TEST(fields_of_a_text_with_operand_dtype) {
    const flash_config_t c = parsed("SM90 (E4M3 / FP16, 128, 128, 112, 12): stages_2");
    assert_int_equal(c.dtype, FLASH_DTYPE_E4M3);
    assert_int_equal(c.operand_dtype, FLASH_DTYPE_FP16);
    assert_int_equal(c.d_head, 128);
}

TEST(blanks_order_and_the_tiles_suffix_are_free) {
    const flash_config_t c = parsed("(FP16, 128, 64, 64, 4): async+load_0_2_2_tiles+causal+varlen");
    const flash_config_t d = parsed("  ( FP16,128 ,64,\t64,4 ):varlen + load_0_2_2+causal+async ");
    assert_memory_equal(&c, &d, sizeof c);
    const flash_config_t e = parsed("SM90 (BF16, 64, 64, 32, 8): stages_2+overlap+causal");
    const flash_config_t f = parsed("SM90(BF16,64, 64,32 , 8):causal+ overlap +stages_2");
    assert_memory_equal(&e, &f, sizeof e);
}

/* Tries every switch and feature bit, alone and together, legal or not. */
TEST(every_sm80_combination_round_trips) {
    for (int32_t bits = 0; bits < 512; bits++) {
        flash_config_t c = parsed("(FP16, 128, 64, 64, 4): load_0_2_4_tiles");
        c.async_copy = bits & 1;
        c.eager_load_blocks = bits >> 1 & 1;
        c.swizzled = bits >> 2 & 1;
        c.mma_double_buffer_loads = bits >> 3 & 1;
        c.optimized_softmax = bits >> 4 & 1;
        c.features = bits >> 5;
        check_round_trip(&c);
    }
}

TEST(every_sm90_combination_round_trips) {
    for (int32_t bits = 0; bits < 512; bits++) {
        flash_config_t c = parsed("SM90 (BF16, 128, 128, 176, 12): stages_2");
        c.overlap = bits & 1;
        c.ping_pong = bits >> 1 & 1;
        c.persistent = bits >> 2 & 1;
        c.longest_first = bits >> 3 & 1;
        c.fixed_reference = bits >> 4 & 1;
        c.features = bits >> 5;
        check_round_trip(&c);
    }
}

TEST(the_largest_numbers_fit) {
    flash_config_t c =
        parsed("(FP16, 1, 1, 1, 1): async+eager+swizzled+load_0_0_0_tiles+buffer+opt_softmax+"
               "causal+window+softcap+varlen");
    c.d_head = c.B_r = c.B_c = c.n_warps = INT32_MIN;
    c.Q_mma_load_K_fragments = c.K_mma_load_K_fragments = c.V_mma_load_K_fragments = INT32_MIN;
    check_round_trip(&c);
    c = parsed("SM90 (FP16, 1, 1, 1, 1): stages_1+overlap+ping_pong+persistent+longest_first+"
               "fixed_reference+causal+window+softcap+varlen");
    c.d_head = c.d_head_v = c.B_r = c.B_c = c.n_warps = c.n_stages = INT32_MIN;
    c.dtype = c.operand_dtype = FLASH_DTYPE_LATENT_E4M3;
    check_round_trip(&c);
}

static void check_format_refused(flash_config_t config, const char *words) {
    char text[FLASH_CONFIG_TEXT_SIZE] = "untouched";
    assert_refused(flash_config_format(&config, text, sizeof text), FLASH_ERROR_INVALID_ARGUMENT,
                   words);
    assert_string_equal(text, "untouched");
}

TEST(format_refuses_what_has_no_word) {
    const flash_config_t sm80 = parsed("(FP16, 128, 64, 64, 4): load_0_2_2_tiles");
    const flash_config_t sm90 = parsed("SM90 (FP16, 128, 64, 64, 8): stages_2");
    const flash_config_t decode = parsed("SM80_DECODE (FP16, 128, 16, 16, 4): stages_3");
    const flash_config_t cpu = parsed("AVX2 (FP16, any, 64, 64)");
    flash_config_t c;
    c = sm80, c.arch = 0, check_format_refused(c, "arch is 0");
    c = sm80, c.arch = 84, check_format_refused(c, "arch is 84");
    c = sm80, c.op = 1000, check_format_refused(c, "op is 1000");
    c = sm80, c.dtype = 0, check_format_refused(c, "dtype is 0");
    c = sm80, c.dtype = 8, check_format_refused(c, "dtype is 8");
    c = sm90, c.operand_dtype = 8, check_format_refused(c, "operand_dtype is 8");
    c = sm80, c.features = 128, check_format_refused(c, "features");
    c = sm80, c.features = -1, check_format_refused(c, "features");
    c = sm80, c.async_copy = 2, check_format_refused(c, "async_copy");
    c = sm80, c.optimized_softmax = -1, check_format_refused(c, "optimized_softmax");
    c = sm90, c.fixed_reference = 2, check_format_refused(c, "fixed_reference");
    for (int i = N_WARPS; i < N_FIELDS; i++) {
        if (i == FEATURES)
            continue;
        c = cpu, fields(&c)[i] = 1, check_format_refused(c, "AVX2");
        if (i > N_WARPS && i != N_STAGES)
            c = decode, fields(&c)[i] = 1, check_format_refused(c, "SM80_DECODE");
        if (i > FEATURES)
            c = sm80, fields(&c)[i] = 1, check_format_refused(c, "SM80");
        else if (i > N_WARPS)
            c = sm90, fields(&c)[i] = 1, check_format_refused(c, "SM90");
    }
}

TEST(format_refuses_pointers_and_buffers) {
    const flash_config_t c = parsed("REFERENCE (FP32, any, 16, 1)");
    char text[FLASH_CONFIG_TEXT_SIZE] = "untouched";
    const size_t length = strlen("REFERENCE (FP32, any, 16, 1)");
    assert_refused(flash_config_format(NULL, text, sizeof text), FLASH_ERROR_INVALID_ARGUMENT,
                   "NULL");
    assert_refused(flash_config_format(&c, NULL, 10), FLASH_ERROR_INVALID_ARGUMENT, "NULL");
    assert_refused(flash_config_format(&c, text, 0), FLASH_ERROR_BUFFER_TOO_SMALL, "29");
    assert_refused(flash_config_format(&c, text, length), FLASH_ERROR_BUFFER_TOO_SMALL, "29");
    assert_string_equal(text, "untouched");
    assert_success(flash_config_format(&c, text, length + 1));
}

TEST(parse_refuses) {
    static const char *const texts[] = {
        "",
        "(",
        "AVX",
        "AVX5122 (BF16, any, 64, 128)",
        "SM90 (BF16, 128, 64, 64, 4): load_0_0_0_tiles",
        "SM90 (BF16, 128, 64, 64, 8)",
        "SM90 (BF16, 128, 64, 64, 8): overlap",
        "SM90 (BF16, 128, 64, 64, 8): stages",
        "SM90 (BF16, 128, 64, 64, 8): stages_",
        "SM90 (BF16, 128, 64, 64, 8): stages_2_3",
        "SM90 (BF16, 128, 64, 64, 8): stages_99999999999",
        "SM90 (BF16, 128, 64, 64, 8): stages_2+stages_2",
        "SM90 (BF16, 128, 64, 64, 8): stages_2+async",
        "SM90 (BF16, any, 64, 64, 8): stages_2",
        "SM90 (BF16, 192/, 64, 64, 8): stages_2",
        "SM90 (BF16, 192/128/64, 64, 64, 8): stages_2",
        "(FP16, 192/128, 64, 64, 4): load_0_0_0_tiles",
        "AVX512 (BF16, any/128, 64, 128)",
        "SM120 (BF16, 128, 64, 64, 8): stages_2",
        "(FP16, 128, 64, 64, 4): load_0_0_0_tiles+overlap",
        "(FP16, 128, 64, 64, 4): stages_2",
        "AVX512",
        "AVX512 BF16, any, 64, 128",
        "AVX512 (FP8, any, 64, 128)",
        "AVX512 (BF16 any, 64, 128)",
        "AVX512 (BF16, all, 64, 128)",
        "AVX512 (BF16, any, 64)",
        "AVX512 (BF16, any, 64, 128",
        "AVX512 (BF16, any, 64, 128, 4)",
        "AVX512 (BF16, any, 64, 128):",
        "AVX512 (BF16, any, 64, 128): ",
        "AVX512 (BF16, any, 64, 128): causal+",
        "AVX512 (BF16, any, 64, 128): causal+causal",
        "AVX512 (BF16, any, 64, 128): causal window",
        "AVX512 (BF16, any, 64, 128): async",
        "AVX512 (BF16, any, 64, 128) causal",
        "AVX512 (BF16, any, 64, 128): causal!",
        "AVX512 (BF16, any, 64, 99999999999)",
        "(FP16, any, 64, 64, 4): load_0_0_0_tiles",
        "(FP16, 128, 64, 64): load_0_0_0_tiles",
        "(FP16, 128, 64, 64, 4)",
        "(FP16, 128, 64, 64, 4): async",
        "(FP16, 128, 64, 64, 4): load_0_0_tiles",
        "(FP16, 128, 64, 64, 4): load_0_0_0_tile",
        "(FP16, 128, 64, 64, 4): load_0_0_0_tiles+load_0_0_0_tiles",
        "(FP16, 128, 64, 64, 4): load_0_0_0_tiles+async+async",
        "(FP16, 128, 64, 64, 4): load_0_0_0_tiles+asynchronous",
        "(FP16, 128, 64, 64, 4): load_0_0_0_tiles) ",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        flash_config_t config = FLASH_CONFIG_INIT, before;
        memset(&config.arch, 0x5a, sizeof config - offsetof(flash_config_t, arch));
        before = config;
        if (flash_config_parse(texts[i], &config) != FLASH_ERROR_INVALID_ARGUMENT)
            fail_msg("\"%s\" was not refused", texts[i]);
        assert_non_null(strstr(flash_last_error(), "position"));
        assert_memory_equal(&config, &before, sizeof config);
    }
}

TEST(parse_refuses_null) {
    flash_config_t config = FLASH_CONFIG_INIT;
    assert_refused(flash_config_parse(NULL, &config), FLASH_ERROR_INVALID_ARGUMENT, "NULL");
    assert_refused(flash_config_parse("REFERENCE (FP32, any, 16, 1)", NULL),
                   FLASH_ERROR_INVALID_ARGUMENT, "NULL");
}

TEST(parse_says_where) {
    flash_config_t config = FLASH_CONFIG_INIT;
    assert_refused(flash_config_parse("AVX2 (FP99, any, 64, 64)", &config),
                   FLASH_ERROR_INVALID_ARGUMENT, "position 6");
}

/* Of the family that the text names, where it does; the example itself can be read. */
TEST(parse_shows_a_configuration) {
    static const struct {
        const char *text, *example;
    } texts[] = {{"REFERENCE", "looks like \"REFERENCE ("},
                 {"AVX2", "looks like \""},
                 {"fast", "looks like \"REFERENCE ("},
                 {"REFERENCE (FP32, any, 16, 1): fast", "looks like \"REFERENCE ("}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        flash_config_t config = FLASH_CONFIG_INIT;
        char example[FLASH_CONFIG_TEXT_SIZE] = "";
        assert_refused(flash_config_parse(texts[i].text, &config), FLASH_ERROR_INVALID_ARGUMENT,
                       texts[i].example);
        const char *begin = strstr(flash_last_error(), "looks like \"");
        assert_int_equal(sscanf(begin, "looks like \"%127[^\"]", example), 1);
        assert_int_equal(flash_config_parse(example, &config), FLASH_SUCCESS);
    }
}

/* Numbers are read by a function that reports by errno. */
TEST(parse_leaves_errno) {
    static const char *const texts[] = {"REFERENCE (FP32, any, 16, 1)",
                                        "REFERENCE (FP32, any, 99999999999999999999, 1)",
                                        "REFERENCE (FP32, any, 3000000000, 1)", "fast"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        flash_config_t config = FLASH_CONFIG_INIT;
        errno = EDOM;
        assert_int_equal(flash_config_parse(texts[i], &config),
                         i == 0 ? FLASH_SUCCESS : FLASH_ERROR_INVALID_ARGUMENT);
        assert_int_equal(errno, EDOM);
    }
}

TEST(set_tuning_leaves_errno) {
    static const char result[] =
        FLASH_TUNING_HEADER "\ncc=90 sms=132 dtype=BF16 d_head=8 features=none q=1 k=1 heads=1 "
                            "ns=99999999999999999999: REFERENCE (BF16, any, 16, 1)";
    errno = EDOM;
    assert_refused(flash_set_tuning(result), FLASH_ERROR_INVALID_ARGUMENT, "too large");
    assert_int_equal(errno, EDOM);
    assert_success(flash_set_tuning(FLASH_TUNING_HEADER));
    assert_success(flash_set_tuning(NULL));
    assert_int_equal(errno, EDOM);
}
