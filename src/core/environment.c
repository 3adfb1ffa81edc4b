/*
 * Reading the FLASH_* environment variables, once.
 */
#include "core/environment.h"

#include "core/status.h"
#include "cpu/thread_pool.h"
#include "select/tuning/file.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static environment_t environment = {.isa = UINT32_MAX};
static flash_status_t environment_status;
static char environment_message[512];
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

/* The variable's value; NULL when it is not set or empty. */
static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

static flash_status_t read_num_threads(void) {
    const char *value = variable("FLASH_NUM_THREADS");
    if (value == NULL)
        return FLASH_SUCCESS;
    char *end;
    errno = 0;
    const long n = strtol(value, &end, 10);
    FLASH_REQUIRE(errno == 0 && *end == '\0' && n >= 1 && n <= THREAD_POOL_MAX,
                  FLASH_ERROR_INVALID_ARGUMENT, "FLASH_NUM_THREADS is \"%.64s\": not 1 ... %d",
                  value, THREAD_POOL_MAX);
    environment.n_threads = (int32_t)n;
    return FLASH_SUCCESS;
}

static flash_status_t read_cpu_isa(void) {
    static const struct {
        const char *name;
        uint32_t isa; /* what comes with this one */
    } isas[] = {{"reference", 0},
                {"avx2", FLASH_ISA_AVX2},
                {"avx512", FLASH_ISA_AVX512},
                {"avx512_bf16", FLASH_ISA_AVX512_BF16},
                {"amx", FLASH_ISA_AMX},
                {"neon", FLASH_ISA_NEON},
                {"neon_bf16", FLASH_ISA_NEON_BF16}};
    const char *value = variable("FLASH_CPU_ISA");
    uint32_t isa = 0;
    if (value == NULL)
        return FLASH_SUCCESS;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        isa |= isas[i].isa;
        if (strcmp(value, isas[i].name) == 0) {
            environment.isa = isa;
            environment.isa_name = isas[i].name;
            return FLASH_SUCCESS;
        }
    }
    return status_fail(FLASH_ERROR_INVALID_ARGUMENT,
                       "FLASH_CPU_ISA is \"%.64s\": not reference, avx2, avx512, avx512_bf16, "
                       "amx, neon or neon_bf16",
                       value);
}

static flash_status_t read_config(void) {
    const char *value = variable("FLASH_CONFIG");
    if (value == NULL)
        return FLASH_SUCCESS;
    flash_config_t config = FLASH_CONFIG_INIT;
    if (flash_config_parse(value, &config) != FLASH_SUCCESS) {
        char why[256];
        status_copy_text(status_message(), why, sizeof why);
        return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "FLASH_CONFIG: %s", why);
    }
    environment.config = config;
    environment.has_config = true;
    return FLASH_SUCCESS;
}

static flash_status_t read_trace(void) {
    const char *value = variable("FLASH_TRACE");
    FLASH_REQUIRE(value == NULL || strcmp(value, "0") == 0 || strcmp(value, "1") == 0,
                  FLASH_ERROR_INVALID_ARGUMENT, "FLASH_TRACE is \"%.64s\": not 0 or 1", value);
    environment.trace = value != NULL && *value == '1';
    return FLASH_SUCCESS;
}

static flash_status_t read_tuning(void) {
    const char *value = variable("FLASH_TUNING");
    tuning_results_t *results = NULL;
    if (value == NULL)
        return FLASH_SUCCESS;
    if (tuning_read(value, environment.trace, &results) != FLASH_SUCCESS) {
        char why[448];
        status_copy_text(status_message(), why, sizeof why);
        return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "FLASH_TUNING: %s", why);
    }
    environment.tuning = results;
    return FLASH_SUCCESS;
}

static flash_status_t read_all(void) {
    FLASH_TRY(read_num_threads());
    FLASH_TRY(read_cpu_isa());
    FLASH_TRY(read_config());
    FLASH_TRY(read_trace());
    return read_tuning(); /* tells the trace what it passes over */
}

static void read_once(void) {
    environment_status = read_all();
    if (environment_status != FLASH_SUCCESS)
        status_copy_text(status_message(), environment_message, sizeof environment_message);
}

flash_status_t environment_get(const environment_t **result) {
    pthread_once(&environment_once, read_once);
    *result = &environment;
    FLASH_REQUIRE(environment_status == FLASH_SUCCESS, environment_status, "%s",
                  environment_message);
    return FLASH_SUCCESS;
}
