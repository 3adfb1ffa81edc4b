/*
 * A program that links nothing of the library, whose path is its argument, loads and unloads it. It
 * also runs under AddressSanitizer, which finds what unloading leaks.
 */
#define _GNU_SOURCE
#include "flashattn.h"

#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LOADS = 100, N_WARM_UP = 10, N_THREADS = 4, SEQLEN = 200, HEADS = 4, D_HEAD = 16 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

typedef struct library {
    void *handle;
    flash_status_t (*set_num_threads)(int32_t);
    flash_status_t (*workspace_size)(const flash_forward_args_t *, const flash_kernel_t *,
                                     uint64_t *);
    flash_status_t (*forward)(const flash_forward_args_t *, const flash_kernel_t *, flash_stream_t);
    flash_status_t (*failing)(const flash_kernel_t *, flash_config_t *);
    const char *(*last_error)(void);
} library_t;

/* ISO C does not cast pointers to objects to pointers to functions, but POSIX promises the bits. */
static void find(void *handle, const char *name, void *function) {
    void *symbol = dlsym(handle, name);
    CHECK(symbol != NULL);
    memcpy(function, &symbol, sizeof symbol);
}

static library_t load(const char *path) {
    library_t l;
    l.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (l.handle == NULL)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(l.handle != NULL);
    find(l.handle, "flash_set_num_threads", &l.set_num_threads);
    find(l.handle, "flash_workspace_size", &l.workspace_size);
    find(l.handle, "flash_forward", &l.forward);
    find(l.handle, "flash_kernel_config", &l.failing);
    find(l.handle, "flash_last_error", &l.last_error);
    return l;
}

static bool is_mapped(const char *path) {
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (!found && fgets(line, sizeof line, maps) != NULL)
        found = strstr(line, strrchr(path, '/') + 1) != NULL;
    fclose(maps);
    return found;
}

static int count_threads(void) {
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *entry = readdir(tasks); entry != NULL; entry = readdir(tasks))
        n += entry->d_name[0] != '.';
    closedir(tasks);
    return n;
}

/* A joined thread leaves /proc a moment after pthread_join() has returned. This does not end if one
 * stays. */
static void await_threads(int n) {
    while (count_threads() != n)
        sched_yield();
}

static flash_tensor_t tensor(float *data) {
    flash_tensor_t t = FLASH_TENSOR_INIT;
    t.data = data;
    t.stride_head = D_HEAD;
    t.stride_seq = HEADS * D_HEAD;
    t.stride_batch = SEQLEN * HEADS * D_HEAD;
    return t;
}

/* Attention with equal keys is the mean of V, here the constant itself. */
static void compute(const library_t *l) {
    static float input[SEQLEN * HEADS * D_HEAD], output[SEQLEN * HEADS * D_HEAD];
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    for (int i = 0; i < SEQLEN * HEADS * D_HEAD; i++)
        input[i] = 0.5f, output[i] = 0;
    args.dtype = FLASH_DTYPE_FP32;
    args.q = args.k = args.v = tensor(input);
    args.o = tensor(output);
    args.batch = 1;
    args.seqlen_q = args.seqlen_k = SEQLEN;
    args.n_heads = args.n_heads_kv = HEADS;
    args.d_head = D_HEAD;
    CHECK(l->workspace_size(&args, NULL, &args.workspace_size) == FLASH_SUCCESS);
    args.workspace = malloc((size_t)args.workspace_size);
    CHECK(l->forward(&args, NULL, NULL) == FLASH_SUCCESS);
    for (int i = 0; i < SEQLEN * HEADS * D_HEAD; i++)
        CHECK(output[i] > 0.4999f && output[i] < 0.5001f);
    free(args.workspace);
}

static void load_use_unload(const char *path) {
    const int n_before = count_threads();
    library_t l = load(path);
    CHECK(l.set_num_threads(N_THREADS) == FLASH_SUCCESS);
    compute(&l);
    CHECK(count_threads() == n_before + N_THREADS - 1); /* the pool is alive */
    CHECK(l.failing(NULL, NULL) == FLASH_ERROR_INVALID_ARGUMENT);
    CHECK(strcmp(l.last_error(), "") != 0);
    CHECK(dlclose(l.handle) == 0);
    CHECK(!is_mapped(path));
    await_threads(n_before);
}

int main(int argc, char **argv) {
    size_t warm = 0;
    CHECK(argc == 2 && strchr(argv[1], '/') != NULL);
    CHECK(!is_mapped(argv[1]));
    for (int i = 0; i < N_LOADS; i++) {
        load_use_unload(argv[1]);
        if (i == N_WARM_UP)
            warm = mallinfo2().uordblks;
    }
    const size_t grown = mallinfo2().uordblks - warm;
    printf("%d loads: %zu bytes in use after load %d, %zd more at the end\n", N_LOADS, warm,
           N_WARM_UP, (ssize_t)grown);
    CHECK((ssize_t)grown < (N_LOADS - N_WARM_UP) * LEFT_BEHIND);
    return 0;
}
