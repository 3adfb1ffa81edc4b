/*
 * Statuses, the last error, versions.
 */
#include "support.h"

#include <pthread.h>

static void each_status_has_its_name(void **state) {
    static const struct {
        flash_status_t status;
        const char *name;
    } statuses[] = {
        {FLASH_SUCCESS, "FLASH_SUCCESS"},
        {FLASH_ERROR_INVALID_ARGUMENT, "FLASH_ERROR_INVALID_ARGUMENT"},
        {FLASH_ERROR_INVALID_CONFIG, "FLASH_ERROR_INVALID_CONFIG"},
        {FLASH_ERROR_WORKSPACE_TOO_SMALL, "FLASH_ERROR_WORKSPACE_TOO_SMALL"},
        {FLASH_ERROR_BUFFER_TOO_SMALL, "FLASH_ERROR_BUFFER_TOO_SMALL"},
        {FLASH_ERROR_UNSUPPORTED, "FLASH_ERROR_UNSUPPORTED"},
        {FLASH_ERROR_NOT_BUILT, "FLASH_ERROR_NOT_BUILT"},
        {FLASH_ERROR_OUT_OF_MEMORY, "FLASH_ERROR_OUT_OF_MEMORY"},
        {FLASH_ERROR_NO_DEVICE, "FLASH_ERROR_NO_DEVICE"},
        {FLASH_ERROR_INTERNAL, "FLASH_ERROR_INTERNAL"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        assert_string_equal(flash_status_string(statuses[i].status), statuses[i].name);
}

static void an_unknown_status_has_a_name_too(void **state) {
    (void)state;
    assert_non_null(flash_status_string(-1));
    assert_non_null(flash_status_string(INT32_MAX));
    assert_string_not_equal(flash_status_string(12345), "FLASH_SUCCESS");
}

static void versions_are_those_of_the_header(void **state) {
    char version[32];
    (void)state;
    snprintf(version, sizeof version, "%d.%d.%d", FLASH_VERSION_MAJOR, FLASH_VERSION_MINOR,
             FLASH_VERSION_PATCH);
    assert_string_equal(flash_version(), version);
    assert_int_equal(flash_version_number(), FLASH_VERSION_NUMBER);
    assert_int_equal(flash_abi_version(), FLASH_ABI_VERSION);
}

static void fail_once(void) {
    assert_int_equal(flash_set_num_threads(-7), FLASH_ERROR_INVALID_ARGUMENT);
}

static void a_success_leaves_the_last_error(void **state) {
    (void)state;
    fail_once();
    assert_non_null(strstr(flash_last_error(), "-7"));
    assert_success(flash_set_num_threads(0));
    assert_non_null(strstr(flash_last_error(), "-7"));
}

static void *read_last_error(void *result) {
    *(bool *)result = strcmp(flash_last_error(), "") == 0;
    return NULL;
}

static void each_thread_has_its_own_last_error(void **state) {
    pthread_t thread;
    bool empty = false;
    (void)state;
    fail_once();
    assert_int_equal(pthread_create(&thread, NULL, read_last_error, &empty), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(empty);
    assert_non_null(strstr(flash_last_error(), "-7"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_status_has_its_name),
        cmocka_unit_test(an_unknown_status_has_a_name_too),
        cmocka_unit_test(versions_are_those_of_the_header),
        cmocka_unit_test(a_success_leaves_the_last_error),
        cmocka_unit_test(each_thread_has_its_own_last_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
