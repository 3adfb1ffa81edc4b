/*
 * Each environment variable is read once per process, so every check has its own child, and this
 * process calls nothing of the library.
 */
#define _GNU_SOURCE
#include "child.h"
#include "support.h"

#include <errno.h>
#include <sched.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

static const sizes_t SIZES = {
    .batch = 1, .seqlen_q = 9, .seqlen_k = 9, .n_heads = 2, .n_heads_kv = 1, .d_head = 8};

static flash_forward_args_t shape(void) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.batch = SIZES.batch;
    args.seqlen_q = SIZES.seqlen_q;
    args.seqlen_k = SIZES.seqlen_k;
    args.n_heads = SIZES.n_heads;
    args.n_heads_kv = SIZES.n_heads_kv;
    args.d_head = SIZES.d_head;
    return args;
}

/* ---- FLASHATTN_NUM_THREADS ---- */

static bool three_threads(void *argument) {
    (void)argument;
    CHECK(setenv("FLASHATTN_NUM_THREADS", "3", 1) == 0);
    CHECK(flash_num_threads() == 3);
    CHECK(setenv("FLASHATTN_NUM_THREADS", "5", 1) == 0); /* too late */
    CHECK(flash_num_threads() == 3);
    CHECK(flash_set_num_threads(2) == FLASH_SUCCESS);
    CHECK(flash_num_threads() == 2);
    CHECK(flash_set_num_threads(0) == FLASH_SUCCESS);
    CHECK(flash_num_threads() == 3);
    return true;
}

static bool there_are_default_threads(void *argument) {
    cpu_set_t one;
    (void)argument;
    CPU_ZERO(&one);
    CHECK(sched_getaffinity(0, sizeof one, &one) == 0);
    errno = EDOM; /* which files that are looked for, and are missing, leave as it is */
    CHECK(flash_num_threads() >= 1 && flash_num_threads() <= CPU_COUNT(&one));
    CHECK(errno == EDOM);
    return true;
}

static bool one_processor_is_one_thread(void *argument) {
    cpu_set_t set;
    int cpu = 0;
    (void)argument;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    while (!CPU_ISSET(cpu, &set))
        cpu++;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
    CHECK(flash_num_threads() == 1);
    return true;
}

TEST(num_threads) {
    check_in_child(three_threads, NULL);
    check_in_child(there_are_default_threads, NULL);
    check_in_child(one_processor_is_one_thread, NULL);
}

/* ---- Values that cannot be understood ---- */

typedef struct variable {
    const char *name;
    const char *value;
} variable_t;

/* Makes a call that needs a variable: on a machine without CUDA devices, none of attention needs
 * measured results. */
static flash_status_t call_that_needs(const char *name) {
    const flash_forward_args_t args = shape();
    uint64_t size;
    return strcmp(name, "FLASHATTN_TUNING") == 0 ? flash_set_tuning(NULL)
                                                 : flash_workspace_size(&args, NULL, &size);
}

static bool value_is_refused(void *argument) {
    const variable_t *variable = argument;
    CHECK(setenv(variable->name, variable->value, 1) == 0);
    errno = EDOM;
    for (int i = 0; i < 2; i++) { /* at every call, not only the first */
        CHECK(call_that_needs(variable->name) == FLASH_ERROR_INVALID_ARGUMENT);
        CHECK(strstr(flash_last_error(), variable->name) != NULL);
    }
    CHECK(errno == EDOM);
    return true;
}

TEST(bad_values) {
    variable_t variables[] = {
        {"FLASHATTN_NUM_THREADS", "0"},    {"FLASHATTN_NUM_THREADS", "-1"},
        {"FLASHATTN_NUM_THREADS", "4097"}, {"FLASHATTN_NUM_THREADS", "two"},
        {"FLASHATTN_NUM_THREADS", "2 "},   {"FLASHATTN_NUM_THREADS", "99999999999999999999"},
        {"FLASHATTN_CPU_ISA", "sse2"},     {"FLASHATTN_CPU_ISA", "avx2 "},
        {"FLASHATTN_CONFIG", "fastest"},   {"FLASHATTN_CONFIG", "AVX2 (FP32, any, 64, 64): fast"},
        {"FLASHATTN_TRACE", "yes"},        {"FLASHATTN_TRACE", "2"},
        {"FLASHATTN_TUNING", "/nowhere"},  {"FLASHATTN_TUNING", "/"},
        {"FLASHATTN_TUNING", "/dev/null"}, {"FLASHATTN_TUNING", "/dev/zero"},
    };
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        check_in_child(value_is_refused, &variables[i]);
}

/* An empty variable counts as not set. */
static bool empty_value_is_default(void *argument) {
    CHECK(setenv(argument, "", 1) == 0);
    CHECK(call_that_needs(argument) == FLASH_SUCCESS);
    return true;
}

TEST(empty_values) {
    check_in_child(empty_value_is_default, "FLASHATTN_NUM_THREADS");
    check_in_child(empty_value_is_default, "FLASHATTN_CPU_ISA");
    check_in_child(empty_value_is_default, "FLASHATTN_CONFIG");
    check_in_child(empty_value_is_default, "FLASHATTN_TRACE");
    check_in_child(empty_value_is_default, "FLASHATTN_TUNING");
}

/* Every call that needs a variable is refused while its former name is set, even beside the name of
 * now. */
static bool former_name_is_refused(void *argument) {
    const variable_t *variable = argument;
    char former[64], message[128];
    snprintf(former, sizeof former, "FLASH_%s", variable->name + strlen("FLASHATTN_"));
    snprintf(message, sizeof message, "%s is set, whose name is %s now", former, variable->name);
    CHECK(setenv(former, variable->value, 1) == 0);
    CHECK(setenv(variable->name, variable->value, 1) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(call_that_needs(variable->name) == FLASH_ERROR_INVALID_ARGUMENT);
        CHECK(strstr(flash_last_error(), message) != NULL);
    }
    if (strcmp(variable->name, "FLASHATTN_NUM_THREADS") == 0)
        CHECK(flash_num_threads() == 0 && strstr(flash_last_error(), message) != NULL);
    return true;
}

static bool empty_former_name_is_not_set(void *argument) {
    const variable_t *variable = argument;
    char former[64];
    snprintf(former, sizeof former, "FLASH_%s", variable->name + strlen("FLASHATTN_"));
    CHECK(setenv(former, "", 1) == 0);
    CHECK(call_that_needs(variable->name) == FLASH_SUCCESS);
    return true;
}

TEST(former_names) {
    variable_t variables[] = {
        {"FLASHATTN_NUM_THREADS", "1"},
        {"FLASHATTN_CPU_ISA", "reference"},
        {"FLASHATTN_CONFIG", "REFERENCE (FP32, any, 16, 1): causal"},
        {"FLASHATTN_TRACE", "0"},
        {"FLASHATTN_TUNING", "none"},
    };
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        check_in_child(former_name_is_refused, &variables[i]);
        check_in_child(empty_former_name_is_not_set, &variables[i]);
    }
}

/* ---- FLASHATTN_CPU_ISA ---- */

/* Finds the configuration that a call would run, and writes the reason to reason[0 ... size). */
static bool select_config(const flash_forward_args_t *args, flash_config_t *config, char *reason,
                          size_t size) {
    const flash_kernel_t *kernel = NULL;
    return flash_select_kernel(args, &kernel, reason, size) == FLASH_SUCCESS &&
           flash_kernel_config(kernel, config) == FLASH_SUCCESS;
}

static bool isa_is_hidden(void *argument) {
    const flash_forward_args_t args = shape();
    flash_config_t config = FLASH_CONFIG_INIT;
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
    const bool avx2 = strcasecmp(argument, "avx2") == 0;
    CHECK(setenv("FLASHATTN_CPU_ISA", argument, 1) == 0);
    CHECK(flash_device_info(FLASH_DEVICE_CPU, &info) == FLASH_SUCCESS);
    CHECK((info.isa & ~(avx2 ? (uint32_t)FLASH_ISA_AVX2 : 0)) == 0);
    CHECK(select_config(&args, &config, NULL, 0));
    CHECK(config.arch <= (avx2 ? FLASH_ARCH_AVX2 : FLASH_ARCH_REFERENCE));
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        CHECK(flash_kernel_config(flash_kernel_at(i), &config) == FLASH_SUCCESS);
        if (config.arch >= FLASH_ARCH_AVX512 && config.arch < FLASH_ARCH_SM80)
            CHECK(flash_lookup_kernel(&config) == NULL);
    }
    return true;
}

#if defined(__x86_64__) && !defined(EMULATED_AMX)
/* Makes the system refuse this process the tile registers of AMX. */
static bool refuse_tiles(void) {
    enum { REQUEST_PERMISSION = 0x1023 }; /* ARCH_REQ_XCOMP_PERM */
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, REQUEST_PERMISSION, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* The next family serves, and look-up says why. */
static bool amx_is_refused(void *argument) {
    flash_forward_args_t args = shape();
    flash_config_t config = FLASH_CONFIG_INIT;
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
    char reason[256] = "";
    (void)argument;
    CHECK(refuse_tiles());
    errno = EDOM;
    CHECK(flash_device_info(FLASH_DEVICE_CPU, &info) == FLASH_SUCCESS);
    CHECK(errno == EDOM);
    CHECK((info.isa & FLASH_ISA_AMX) == 0);
    args.dtype = FLASH_DTYPE_BF16;
    CHECK(select_config(&args, &config, reason, sizeof reason));
    CHECK(config.arch != FLASH_ARCH_AMX && strstr(reason, "refused") != NULL);
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        CHECK(flash_kernel_config(flash_kernel_at(i), &config) == FLASH_SUCCESS);
        if (config.arch == FLASH_ARCH_AMX)
            CHECK(flash_lookup_kernel(&config) == NULL &&
                  strstr(flash_last_error(), "arch_prctl") != NULL);
    }
    return true;
}

static bool has_amx(void *argument) {
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
    CHECK(flash_device_info(FLASH_DEVICE_CPU, &info) == FLASH_SUCCESS);
    *(bool *)argument = (info.isa & FLASH_ISA_AMX) != 0;
    return true;
}

TEST(refused_amx) {
    bool *amx = mmap(NULL, sizeof *amx, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(amx != MAP_FAILED);
    check_in_child(has_amx, amx);
    const bool to_refuse = *amx;
    munmap(amx, sizeof *amx);
    if (!to_refuse)
        skip();
    check_in_child(amx_is_refused, NULL);
}
#endif

TEST(cpu_isa) {
    check_in_child(isa_is_hidden, "reference");
    check_in_child(isa_is_hidden, "avx2");
    check_in_child(isa_is_hidden, "AVX2");
    check_in_child(isa_is_hidden, "Reference");
}

/* ---- FLASHATTN_CONFIG ---- */

/* The first row of the table is a reference kernel, which runs anywhere. */
static bool config_is_forced(void *argument) {
    flash_forward_args_t args = shape();
    flash_config_t first = FLASH_CONFIG_INIT, config = FLASH_CONFIG_INIT;
    char text[FLASH_CONFIG_TEXT_SIZE];
    (void)argument;
    CHECK(flash_kernel_config(flash_kernel_at(0), &first) == FLASH_SUCCESS);
    CHECK(flash_config_format(&first, text, sizeof text) == FLASH_SUCCESS);
    CHECK(setenv("FLASHATTN_CONFIG", text, 1) == 0);
    args.dtype = first.dtype;
    CHECK(select_config(&args, &config, NULL, 0));
    CHECK(memcmp(&config, &first, sizeof config) == 0);
    args.dtype = first.dtype % 3 + 1;
    CHECK(flash_query_support(&args, NULL, NULL, 0) == FLASH_ERROR_UNSUPPORTED);
    CHECK(strstr(flash_last_error(), "FLASHATTN_CONFIG: flash_fwd_") == flash_last_error());
    return true;
}

/* A configuration that no kernel is found for, and the status that says why. */
typedef struct lost_config {
    const char *text;
    flash_status_t status;
} lost_config_t;

static bool config_is_lost(void *argument) {
    const lost_config_t *config = argument;
    const flash_forward_args_t args = shape();
    CHECK(setenv("FLASHATTN_CONFIG", config->text, 1) == 0);
    CHECK(flash_query_support(&args, NULL, NULL, 0) == config->status);
    CHECK(strstr(flash_last_error(), "FLASHATTN_CONFIG: ") == flash_last_error());
    return true;
}

/* A call that names its kernel does not need the variable. */
static bool own_kernel_is_used(void *argument) {
    flash_forward_args_t args = shape();
    flash_config_t first = FLASH_CONFIG_INIT;
    uint64_t size;
    CHECK(setenv("FLASHATTN_CONFIG", argument, 1) == 0);
    CHECK(flash_kernel_config(flash_kernel_at(0), &first) == FLASH_SUCCESS);
    args.dtype = first.dtype;
    CHECK(flash_workspace_size(&args, flash_kernel_at(0), &size) == FLASH_SUCCESS);
    return true;
}

TEST(config) {
    lost_config_t not_built = {"REFERENCE (FP32, any, 17, 1)", FLASH_ERROR_NOT_BUILT};
    lost_config_t against_the_rules = {"REFERENCE (FP32, any, 0, 1)", FLASH_ERROR_INVALID_CONFIG};
    check_in_child(config_is_forced, NULL);
    check_in_child(config_is_lost, &not_built);
    check_in_child(config_is_lost, &against_the_rules);
    check_in_child(own_kernel_is_used, "fastest");
}

/* ---- FLASHATTN_TUNING ---- */

/* A file of measured results with this text, and the words of the message if a call refuses it. */
typedef struct tuning_file {
    const char *text;
    const char *words; /* NULL: accepted */
} tuning_file_t;

static bool file_is_read(void *argument) {
    const tuning_file_t *given = argument;
    char path[] = "/tmp/flashattn-tuning-XXXXXX";
    const int file = mkstemp(path);
    const size_t length = strlen(given->text);
    CHECK(file >= 0 && write(file, given->text, length) == (ssize_t)length && close(file) == 0);
    CHECK(setenv("FLASHATTN_TUNING", path, 1) == 0);
    const flash_status_t status = flash_set_tuning(NULL);
    unlink(path);
    if (given->words == NULL)
        CHECK(status == FLASH_SUCCESS);
    else
        CHECK(status == FLASH_ERROR_INVALID_ARGUMENT &&
              strstr(flash_last_error(), given->words) != NULL);
    return true;
}

/* Nobody ever writes to the FIFO, so a call that waited for it would not come back. */
static bool fifo_is_refused(void *argument) {
    char folder[] = "/tmp/flashattn-fifo-XXXXXX", path[64];
    (void)argument;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/fifo", folder);
    CHECK(mkfifo(path, 0600) == 0 && setenv("FLASHATTN_TUNING", path, 1) == 0);
    const flash_status_t status = flash_set_tuning(NULL);
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
    CHECK(status == FLASH_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(flash_last_error(), "fifo: not a regular file") != NULL);
    return true;
}

static bool none_is_no_file(void *argument) {
    (void)argument;
    CHECK(setenv("FLASHATTN_TUNING", "none", 1) == 0);
    CHECK(flash_set_tuning(NULL) == FLASH_SUCCESS);
    return true;
}

static bool cpu_needs_no_results(void *argument) {
    const flash_forward_args_t args = shape();
    uint64_t size;
    CHECK(setenv("FLASHATTN_TUNING", argument, 1) == 0);
    CHECK(flash_workspace_size(&args, NULL, &size) == FLASH_SUCCESS);
    CHECK(flash_set_tuning(FLASH_TUNING_HEADER) == FLASH_SUCCESS);
    return true;
}

TEST(tuning) {
    tuning_file_t files[] = {
        {FLASH_TUNING_HEADER "\n", NULL},
        {FLASH_TUNING_HEADER
         "\ncc=90 sms=132 dtype=BF16 d_head=8 features=none q=1 k=1 heads=1 "
         "ns=1: REFERENCE (BF16, any, 16, 1): causal+window+softcap+varlen+paged+bias",
         NULL},
        {FLASH_TUNING_HEADER "\n#\ncc=90 sms=no\n", "FLASHATTN_TUNING: line 3: expected a number"},
        {"tuned\n", "FLASHATTN_TUNING: line 1 is \"tuned\""},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        check_in_child(file_is_read, &files[i]);
    check_in_child(none_is_no_file, NULL);
    check_in_child(cpu_needs_no_results, "/nowhere");
    check_in_child(fifo_is_refused, NULL);
}

/* ---- FLASHATTN_TRACE ---- */

/* Counts the lines that three calls, two of them alike, write to standard error. */
static bool traced_lines(void *argument) {
    const char *value = argument;
    const int expected = strcmp(value, "1") == 0 ? 2 : 0;
    char path[] = "/tmp/flashattn-trace-XXXXXX";
    test_problem_t p;
    int n_lines = 0;
    CHECK(setenv("FLASHATTN_TRACE", value, 1) == 0);
    const int file = mkstemp(path), standard_error = dup(STDERR_FILENO);
    CHECK(file >= 0 && standard_error >= 0 && dup2(file, STDERR_FILENO) == STDERR_FILENO);
    unlink(path);
    problem_create(&p, SIZES, 1);
    const flash_status_t first = flash_forward(&p.args, NULL, NULL);
    const flash_status_t second = flash_forward(&p.args, NULL, NULL);
    p.args.flags = FLASH_FLAG_CAUSAL;
    const flash_status_t third = flash_forward(&p.args, NULL, NULL);
    fflush(stderr);
    dup2(standard_error, STDERR_FILENO);
    CHECK(first == FLASH_SUCCESS && second == FLASH_SUCCESS && third == FLASH_SUCCESS);
    FILE *lines = fdopen(file, "r");
    CHECK(lines != NULL && fseek(lines, 0, SEEK_SET) == 0);
    for (int c = fgetc(lines); c != EOF; c = fgetc(lines))
        n_lines += c == '\n';
    fclose(lines);
    problem_destroy(&p);
    CHECK(n_lines == expected);
    return true;
}

static bool closed_standard_error_leaves_errno(void *argument) {
    test_problem_t p;
    (void)argument;
    CHECK(setenv("FLASHATTN_TRACE", "1", 1) == 0);
    problem_create(&p, SIZES, 1);
    close(STDERR_FILENO);
    errno = EDOM;
    CHECK(flash_forward(&p.args, NULL, NULL) == FLASH_SUCCESS);
    CHECK(errno == EDOM);
    problem_destroy(&p);
    return true;
}

TEST(trace) {
    check_in_child(closed_standard_error_leaves_errno, NULL);
    check_in_child(traced_lines, "1");
    check_in_child(traced_lines, "0");
    check_in_child(traced_lines, "");
}

int main(void) {
    unsetenv("FLASHATTN_NUM_THREADS");
    unsetenv("FLASHATTN_CPU_ISA");
    unsetenv("FLASHATTN_CONFIG");
    unsetenv("FLASHATTN_TRACE");
    unsetenv("FLASHATTN_TUNING");
    return run_all_tests(NULL, NULL);
}
