/*
 * Callers may be built against an older or a newer header: "Growth" in flashattn.h.
 */
#include "support.h"

enum { TAIL = 64 }; /* bytes that a newer header added */

/* A caller's struct as a newer header would have it, with unknown fields behind the known ones. */
typedef struct newer_args {
    flash_forward_args_t known;
    unsigned char unknown[TAIL];
} newer_args_t;

typedef struct newer_config {
    flash_config_t known;
    unsigned char unknown[TAIL];
} newer_config_t;

static newer_args_t newer(const flash_forward_args_t *args) {
    newer_args_t result;
    memset(&result, 0, sizeof result);
    result.known = *args;
    result.known.struct_size = sizeof result;
    return result;
}

TEST(a_larger_struct_with_a_zero_tail_is_served) {
    test_problem_t p;
    problem_create(&p, SMALL, 2);
    const newer_args_t args = newer(&p.args);
    assert_success(flash_forward(&args.known, NULL, NULL));
    problem_check_result(&p);
    problem_destroy(&p);
}

TEST(a_larger_struct_with_an_unknown_field_is_refused) {
    test_problem_t p;
    problem_create(&p, SMALL, 2);
    for (int i = 0; i < TAIL; i += TAIL - 1) { /* the first and the last byte */
        newer_args_t args = newer(&p.args);
        args.unknown[i] = 1;
        assert_refused(flash_forward(&args.known, NULL, NULL), FLASH_ERROR_UNSUPPORTED,
                       "flash_forward_args_t");
    }
    assert_true(problem_is_untouched(&p));
    problem_destroy(&p);
}

/* An older header ends before softmax_scale. What it lacks reads as zero, and memory behind the
 * struct is not read. */
TEST(a_smaller_struct_reads_as_zeros) {
    const uint32_t older_size = offsetof(flash_forward_args_t, softmax_scale);
    test_problem_t p;
    uint64_t size = 0, whole_size = 0;
    void *older = malloc(older_size); /* exactly, so that a sanitizer sees more */
    assert_non_null(older);
    problem_create(&p, SMALL, 2);
    assert_success(flash_workspace_size(&p.args, NULL, &whole_size));
    memcpy(older, &p.args, older_size);
    memcpy(older, &older_size, sizeof older_size);
    assert_success(flash_workspace_size(older, NULL, &size));
    assert_int_equal(size, whole_size);
    assert_refused(flash_forward(older, NULL, NULL), FLASH_ERROR_WORKSPACE_TOO_SMALL,
                   "workspace_size is 0");
    free(older);
    problem_destroy(&p);
}

TEST(fields_beyond_a_smaller_struct_do_not_count) {
    test_problem_t p;
    uint64_t size;
    problem_create(&p, SMALL, 2);
    flash_forward_args_t args = p.args;
    args.softcap = -1; /* refused if it counted */
    assert_refused(flash_workspace_size(&args, NULL, &size), FLASH_ERROR_INVALID_ARGUMENT,
                   "softcap");
    args.struct_size = offsetof(flash_forward_args_t, softmax_scale);
    assert_success(flash_workspace_size(&args, NULL, &size));
    problem_destroy(&p);
}

/* A configuration ends before its last field, and the memory behind it is not read. */
TEST(an_older_configuration_is_looked_up) {
    const uint32_t older_size = offsetof(flash_config_t, d_head_v);
    flash_config_t config = FLASH_CONFIG_INIT;
    void *older = malloc(older_size);
    assert_non_null(older);
    assert_success(flash_kernel_config(flash_kernel_at(0), &config));
    memcpy(older, &config, older_size);
    memcpy(older, &older_size, sizeof older_size);
    assert_ptr_equal(flash_lookup_kernel(older), flash_kernel_at(0));
    assert_success(flash_kernel_config(flash_kernel_at(0), older));
    free(older);
}

/* Half of a pointer would be read as a whole one. */
TEST(a_struct_that_ends_within_a_pointer_is_refused) {
    test_problem_t p;
    problem_create(&p, SMALL, 2);
    flash_backward_args_t args = FLASH_BACKWARD_ARGS_INIT;
    args.forward = &p.args;
    args.struct_size = offsetof(flash_backward_args_t, forward) + 4;
    assert_refused(flash_backward(&args, NULL), FLASH_ERROR_INVALID_ARGUMENT,
                   "flash_backward_args_t.struct_size is 12: not a multiple of 8 up to 4096");
    problem_destroy(&p);
}

TEST(the_smallest_struct_is_missing_everything) {
    uint32_t only_size = sizeof only_size;
    assert_refused(
        flash_forward((const flash_forward_args_t *)(const void *)&only_size, NULL, NULL),
        FLASH_ERROR_INVALID_ARGUMENT, "");
}

TEST(combine_grows_the_same_way) {
    flash_combine_args_t args = FLASH_COMBINE_ARGS_INIT;
    args.struct_size = 0;
    assert_refused(flash_combine(&args, NULL), FLASH_ERROR_INVALID_ARGUMENT, "struct_size is 0");
    args.struct_size = 7;
    assert_refused(flash_combine(&args, NULL), FLASH_ERROR_INVALID_ARGUMENT, "struct_size is 7");
}

/* ---- Appending: the call's struct and that of its rotary embedding ---- */

typedef struct newer_append {
    flash_kv_append_args_t known;
    unsigned char unknown[TAIL];
} newer_append_t;

typedef struct newer_rotary {
    flash_rotary_t known;
    unsigned char unknown[TAIL];
} newer_rotary_t;

/* A call that has nothing to do but check its arguments. */
static flash_kv_append_args_t append_args(const flash_rotary_t *rotary) {
    flash_kv_append_args_t args = FLASH_KV_APPEND_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.n_heads_kv = args.d_head = 2;
    args.rotary = rotary;
    return args;
}

static newer_rotary_t newer_rotary_embedding(void) {
    static const float table[1] = {1};
    newer_rotary_t rotary;
    memset(&rotary, 0, sizeof rotary);
    rotary.known.struct_size = sizeof rotary;
    rotary.known.cos = rotary.known.sin = table;
    rotary.known.n_positions = 1;
    rotary.known.rotary_dim = 2;
    return rotary;
}

TEST(a_newer_append_is_served_as_far_as_it_is_known) {
    newer_append_t args;
    newer_rotary_t rotary = newer_rotary_embedding();
    memset(&args, 0, sizeof args);
    args.known = append_args(&rotary.known);
    args.known.struct_size = sizeof args;
    assert_success(flash_kv_append(&args.known, NULL));
    rotary.unknown[TAIL - 1] = 1;
    assert_refused(flash_kv_append(&args.known, NULL), FLASH_ERROR_UNSUPPORTED, "flash_rotary_t");
    rotary.unknown[TAIL - 1] = 0;
    args.unknown[0] = 1;
    assert_refused(flash_kv_append(&args.known, NULL), FLASH_ERROR_UNSUPPORTED,
                   "flash_kv_append_args_t");
}

/* Members behind the end of a struct do not count, and are not read. */
TEST(an_older_append_reads_as_zeros) {
    const uint32_t older_size = offsetof(flash_kv_append_args_t, rotary);
    const flash_rotary_t refused = FLASH_ROTARY_INIT;
    const flash_kv_append_args_t args = append_args(&refused);
    void *older = malloc(older_size);
    assert_non_null(older);
    memcpy(older, &args, older_size);
    memcpy(older, &older_size, sizeof older_size);
    assert_refused(flash_kv_append(&args, NULL), FLASH_ERROR_INVALID_ARGUMENT, "rotary.");
    assert_success(flash_kv_append(older, NULL));
    free(older);
}

TEST(an_older_rotary_embedding_reads_as_zeros) {
    const uint32_t older_size = offsetof(flash_rotary_t, positions);
    const newer_rotary_t rotary = newer_rotary_embedding();
    void *older = malloc(older_size);
    assert_non_null(older);
    memcpy(older, &rotary, older_size);
    memcpy(older, &older_size, sizeof older_size);
    const flash_kv_append_args_t args = append_args(older);
    assert_success(flash_kv_append(&args, NULL));
    free(older);
}

/* ---- Structs that the library fills ---- */

TEST(a_filled_struct_keeps_its_own_size) {
    newer_config_t config;
    flash_config_t ours = FLASH_CONFIG_INIT;
    memset(&config, 0xa5, sizeof config);
    config.known.struct_size = sizeof config;
    assert_success(flash_kernel_config(flash_kernel_at(0), &config.known));
    assert_success(flash_kernel_config(flash_kernel_at(0), &ours));
    assert_int_equal(config.known.struct_size, sizeof config);
    assert_memory_equal(&config.known.arch, &ours.arch, sizeof ours - sizeof ours.struct_size);
    for (int i = 0; i < TAIL; i++) /* fields that this library does not know are absent: 0 */
        assert_int_equal(config.unknown[i], 0);
}

TEST(a_smaller_struct_is_filled_to_its_size) {
    flash_config_t config;
    memset(&config, 0xa5, sizeof config);
    assert_success(
        flash_config_parse("REFERENCE (FP32, any, 16, 1)", &(flash_config_t)FLASH_CONFIG_INIT));
    config.struct_size = offsetof(flash_config_t, n_warps);
    assert_success(flash_config_parse("REFERENCE (FP32, any, 16, 1)", &config));
    assert_int_equal(config.struct_size, offsetof(flash_config_t, n_warps));
    assert_int_equal(config.B_c, 1);
    assert_int_equal(config.n_warps, (int32_t)0xa5a5a5a5);
    assert_int_equal(config.features, (int32_t)0xa5a5a5a5);
}

TEST(a_field_that_does_not_fit_is_refused) {
    flash_config_t config = FLASH_CONFIG_INIT, before;
    config.struct_size = offsetof(flash_config_t, features);
    before = config;
    assert_refused(flash_config_parse("REFERENCE (FP32, any, 16, 1): causal", &config),
                   FLASH_ERROR_UNSUPPORTED, "flash_config_t.struct_size");
    assert_refused(flash_kernel_config(flash_kernel_at(0), &config), FLASH_ERROR_UNSUPPORTED,
                   "flash_config_t.struct_size");
    assert_memory_equal(&config, &before, sizeof config);
}

TEST(an_older_device_info_is_filled) {
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT, whole = FLASH_DEVICE_INFO_INIT;
    assert_success(flash_device_info(FLASH_DEVICE_CPU, &whole));
    assert_int_equal(whole.n_threads, flash_num_threads());
    assert_true(whole.name[0] != '\0');
    assert_non_null(memchr(whole.name, '\0', sizeof whole.name));

    /* It has no n_threads, which is not 0, nor what follows. */
    memset(&info, 0xa5, sizeof info);
    info.struct_size = offsetof(flash_device_info_t, n_threads);
    assert_success(flash_device_info(FLASH_DEVICE_CPU, &info));
    assert_int_equal(info.struct_size, offsetof(flash_device_info_t, n_threads));
    assert_int_equal(info.device, whole.device);
    assert_string_equal(info.name, whole.name);
    assert_int_equal(info.isa, whole.isa);
    assert_int_equal(info.n_threads, (int32_t)0xa5a5a5a5);
}

/* Facts that a newer header has, and this library not, are 0. */
TEST(a_newer_device_info_is_filled) {
    struct {
        flash_device_info_t known;
        unsigned char unknown[TAIL];
    } info;
    memset(&info, 0xa5, sizeof info);
    info.known.struct_size = sizeof info;
    assert_success(flash_device_info(FLASH_DEVICE_CPU, &info.known));
    assert_int_equal(info.known.struct_size, sizeof info);
    assert_int_equal(info.known.n_threads, flash_num_threads());
    for (int i = 0; i < TAIL; i++)
        assert_int_equal(info.unknown[i], 0);
}
