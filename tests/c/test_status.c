/*
 * Statuses, the last error, versions.
 */
#include "support.h"

#include <pthread.h>

TEST(each_status_has_its_name) {
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
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        assert_string_equal(flash_status_string(statuses[i].status), statuses[i].name);
}

TEST(an_unknown_status_has_a_name_too) {
    assert_non_null(flash_status_string(-1));
    assert_non_null(flash_status_string(INT32_MAX));
    assert_string_not_equal(flash_status_string(12345), "FLASH_SUCCESS");
}

TEST(versions_are_those_of_the_header) {
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", FLASH_VERSION_MAJOR, FLASH_VERSION_MINOR,
             FLASH_VERSION_PATCH);
    assert_string_equal(flash_version(), version);
    assert_int_equal(flash_version_number(), FLASH_VERSION_NUMBER);
    assert_int_equal(flash_abi_version(), FLASH_ABI_VERSION);
}

static void fail_once(void) {
    assert_int_equal(flash_set_num_threads(-7), FLASH_ERROR_INVALID_ARGUMENT);
}

TEST(a_success_leaves_the_last_error) {
    fail_once();
    assert_non_null(strstr(flash_last_error(), "-7"));
    assert_success(flash_set_num_threads(0));
    assert_non_null(strstr(flash_last_error(), "-7"));
}

static void *read_last_error(void *result) {
    *(bool *)result = strcmp(flash_last_error(), "") == 0;
    return NULL;
}

TEST(each_thread_has_its_own_last_error) {
    pthread_t thread;
    bool empty = false;
    fail_once();
    assert_int_equal(pthread_create(&thread, NULL, read_last_error, &empty), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(empty);
    assert_non_null(strstr(flash_last_error(), "-7"));
}
