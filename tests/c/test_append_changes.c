/*
 * Another thread changes the arrays of flash_kv_append() during the call. What the call writes is
 * arbitrary then, but stays within the outputs, and nothing beyond an array is read.
 *
 * The call's executor stands for that thread: it runs after the arrays were checked and before they
 * are used. Arrays end where memory ends, and the caches lie in the middle of canaries.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    BATCH = 4,
    NEW = 32, /* tokens of each sequence, in K and V and in Q: enough work to be shared */
    HEADS = 4,
    D = 128,
    PAIRS = 4,
    PAGE_SIZE = 16,
    N_IDS = 4, /* of a sequence */
    N_PAGES = BATCH * N_IDS,
    N_POSITIONS = 64,
    ROW = HEADS * D,
    N_NEW = BATCH * NEW * ROW,
    N_CACHE = N_PAGES * PAGE_SIZE * ROW,
    GUARD = 1 << 12, /* elements on both sides of an output */
    CANARY = 0x5a
};

/* ---- Memory ---- */

/* Maps an array that ends where no memory is. */
static void *at_the_end(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    char *mapping =
        mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(mapping != MAP_FAILED);
    assert_int_equal(mprotect(mapping + size, page, PROT_NONE), 0);
    return mapping + size - bytes;
}

static float *guarded(float *memory, size_t n) {
    memset(memory, CANARY, (n + 2 * GUARD) * sizeof *memory);
    return memory + GUARD;
}

static void check_guards(const float *guarded_memory, size_t n) {
    const unsigned char *before = (const void *)guarded_memory;
    const unsigned char *behind = (const void *)(guarded_memory + GUARD + n);
    size_t n_written = 0;
    for (size_t i = 0; i < GUARD * sizeof *guarded_memory; i++)
        n_written += (before[i] != CANARY) + (behind[i] != CANARY);
    assert_int_equal(n_written, 0);
}

/* ---- The call ---- */

static struct {
    float k[N_CACHE + 2 * GUARD];
    float v[N_CACHE + 2 * GUARD];
    float q_out[N_NEW + 2 * GUARD];
    float k_new[N_NEW];
    float v_new[N_NEW];
    float q[N_NEW];
} memory;

typedef struct arrays {
    _Atomic int32_t *ends; /* read as int32_t and int64_t by the library */
    _Atomic int32_t *used;
    _Atomic int32_t *table;
    _Atomic int32_t *v_table;
    _Atomic int32_t *rows;
    _Atomic int32_t *indptr;
    _Atomic int32_t *start;
    _Atomic int64_t *slots;
    _Atomic int64_t *positions;
    float *cos;
    float *sin;
    int32_t *after;
} arrays_t;

static arrays_t arrays;
static flash_paging_t paging;
static flash_rotary_t rotary;

/* Numbers that 32 bits do not hold wrap. */
static void fill(_Atomic int32_t *array, int n, int64_t first, int64_t step) {
    for (int i = 0; i < n; i++)
        atomic_store_explicit(&array[i], (int32_t)(first + i * step), memory_order_relaxed);
}

static void fill64(_Atomic int64_t *array, int n, int64_t first, int64_t step) {
    for (int i = 0; i < n; i++)
        atomic_store_explicit(&array[i], first + i * step, memory_order_relaxed);
}

/* Sets what a call accepts. */
static void set_good(void) {
    fill(arrays.ends, BATCH + 1, 0, NEW);
    fill(arrays.used, BATCH, 1, 1);
    fill(arrays.table, N_PAGES, 0, 1);
    fill(arrays.v_table, N_PAGES, 0, 1);
    fill(arrays.rows, BATCH, 0, 1);
    fill(arrays.indptr, BATCH + 1, 0, N_IDS);
    fill(arrays.start, BATCH, 0, 1);
    fill64(arrays.slots, BATCH * NEW, 0, 1);
    fill64(arrays.positions, BATCH * NEW, 0, 0);
}

static int map_arrays(void **state) {
    (void)state;
    arrays.ends = at_the_end((BATCH + 1) * sizeof *arrays.ends);
    arrays.used = at_the_end(BATCH * sizeof *arrays.used);
    arrays.table = at_the_end(N_PAGES * sizeof *arrays.table);
    arrays.v_table = at_the_end(N_PAGES * sizeof *arrays.v_table);
    arrays.rows = at_the_end(BATCH * sizeof *arrays.rows);
    arrays.indptr = at_the_end((BATCH + 1) * sizeof *arrays.indptr);
    arrays.start = at_the_end(BATCH * sizeof *arrays.start);
    arrays.slots = at_the_end(BATCH * NEW * sizeof *arrays.slots);
    arrays.positions = at_the_end(BATCH * NEW * sizeof *arrays.positions);
    arrays.cos = at_the_end(N_POSITIONS * PAIRS * sizeof *arrays.cos);
    arrays.sin = at_the_end(N_POSITIONS * PAIRS * sizeof *arrays.sin);
    arrays.after = at_the_end(BATCH * sizeof *arrays.after);
    set_good();
    return 0;
}

/* Makes a call of ragged tokens into pages, with a table of rows, and lengths that it writes. */
static flash_kv_append_args_t valid_call(void) {
    flash_kv_append_args_t a = FLASH_KV_APPEND_ARGS_INIT;
    paging = (flash_paging_t)FLASH_PAGING_INIT;
    paging.page_size = PAGE_SIZE;
    paging.n_pages = N_PAGES;
    paging.page_table = (const int32_t *)arrays.table;
    paging.v_page_table = (const int32_t *)arrays.v_table;
    paging.page_table_stride = N_IDS;
    rotary = (flash_rotary_t)FLASH_ROTARY_INIT;
    rotary.cos = arrays.cos;
    rotary.sin = arrays.sin;
    rotary.stride_position = PAIRS;
    rotary.n_positions = N_POSITIONS;
    rotary.rotary_dim = 2 * PAIRS;
    a.dtype = FLASH_DTYPE_FP32;
    a.k_new = flash_tensor_bshd(memory.k_new, NEW, HEADS, D);
    a.v_new = flash_tensor_bshd(memory.v_new, NEW, HEADS, D);
    a.k = flash_tensor_bshd(guarded(memory.k, N_CACHE), PAGE_SIZE, HEADS, D);
    a.v = flash_tensor_bshd(guarded(memory.v, N_CACHE), PAGE_SIZE, HEADS, D);
    a.q = flash_tensor_bshd(memory.q, NEW, HEADS, D);
    a.q_out = flash_tensor_bshd(guarded(memory.q_out, N_NEW), NEW, HEADS, D);
    a.cu_seqlens_new = a.cu_seqlens_q = (const int32_t *)arrays.ends;
    a.seqused_k = (const int32_t *)arrays.used;
    a.seqused_k_out = arrays.after;
    a.batch = BATCH;
    a.seqlen_new = a.seqlen_q = BATCH * NEW;
    a.n_heads = a.n_heads_kv = HEADS;
    a.d_head = D;
    a.paging = &paging;
    a.rotary = &rotary;
    return a;
}

static void use_nothing(flash_kv_append_args_t *a) {
    (void)a;
}

static void use_rows(flash_kv_append_args_t *a) {
    (void)a;
    paging.page_rows = (const int32_t *)arrays.rows;
}

static void use_indptr(flash_kv_append_args_t *a) {
    (void)a;
    paging.page_indptr = (const int32_t *)arrays.indptr;
    paging.page_table_stride = 0;
}

/* A cache of slots, one for each sequence. */
static void use_places(flash_kv_append_args_t *a) {
    paging.page_table = paging.v_page_table = NULL;
    paging.page_table_stride = 0;
    paging.page_rows = (const int32_t *)arrays.rows;
    paging.page_size = N_CACHE / BATCH / ROW;
    paging.n_pages = BATCH;
    a->k.stride_batch = a->v.stride_batch = N_CACHE / BATCH;
}

static void use_contiguous(flash_kv_append_args_t *a) {
    use_places(a);
    a->paging = NULL;
    a->seqlen_k = N_CACHE / BATCH / ROW;
}

static void use_slots(flash_kv_append_args_t *a) {
    paging.page_table = paging.v_page_table = NULL;
    paging.page_table_stride = 0;
    a->seqused_k_out = NULL;
    a->slot_mapping = (const int64_t *)arrays.slots;
}

static void use_start(flash_kv_append_args_t *a) {
    (void)a;
    rotary.start = (const int32_t *)arrays.start;
}

static void use_positions(flash_kv_append_args_t *a) {
    (void)a;
    rotary.positions = (const int64_t *)arrays.positions;
}

/* ---- Changes between the checks and the work ---- */

typedef struct change {
    void (*use)(flash_kv_append_args_t *a);
    void (*set)(void);
} change_t;

static int32_t n_runs; /* of the executor */

static void change_and_run(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    ((const change_t *)context)->set();
    for (int32_t i = 0; i < n_tasks; i++)
        task(argument, i);
    n_runs++;
}

static void changes_stay_within_bounds(void **state) {
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    flash_kv_append_args_t args = valid_call();
    change_t *change = *state;
    change->use(&args);
    set_good();
    executor.n_workers = 2;
    executor.run = change_and_run;
    executor.context = change;
    args.executor = &executor;
    n_runs = 0;
    assert_success(flash_kv_append(&args, NULL));
    assert_int_equal(n_runs, 1);
    check_guards(memory.k, N_CACHE);
    check_guards(memory.v, N_CACHE);
    check_guards(memory.q_out, N_NEW);
}

enum { FAR = 1 << 29 };

/* X(name of the test, arrays in use, what they become) */
#define CHANGES(X)                                                                                 \
    X(no_change, use_nothing, (void)0)                                                             \
    X(ends_far, use_nothing, fill(arrays.ends, BATCH + 1, 0, FAR))                                 \
    X(ends_negative, use_nothing, fill(arrays.ends, BATCH + 1, 0, -FAR))                           \
    X(ends_extreme, use_nothing, fill(arrays.ends, BATCH + 1, INT32_MIN, INT32_MAX / 2))           \
    X(ends_in_a_contiguous_cache, use_contiguous, fill(arrays.ends, BATCH + 1, -FAR, FAR / 2))     \
    X(ends_beside_slots, use_slots, fill(arrays.ends, BATCH + 1, 0, FAR))                          \
    X(used_far, use_nothing, fill(arrays.used, BATCH, FAR, FAR))                                   \
    X(used_extreme, use_nothing, fill(arrays.used, BATCH, INT32_MAX, 0))                           \
    X(used_at_the_end, use_nothing, fill(arrays.used, BATCH, N_IDS *PAGE_SIZE - 1, 0))             \
    X(used_at_the_end_of_a_contiguous_cache, use_contiguous,                                       \
      fill(arrays.used, BATCH, N_CACHE / BATCH / ROW - 1, 0))                                      \
    X(used_negative, use_nothing, fill(arrays.used, BATCH, -1, -FAR))                              \
    X(used_in_a_contiguous_cache, use_contiguous, fill(arrays.used, BATCH, -FAR, FAR))             \
    X(used_in_places, use_places, fill(arrays.used, BATCH, -FAR, FAR))                             \
    X(ids_beyond, use_nothing, fill(arrays.table, N_PAGES, N_PAGES, 0))                            \
    X(ids_far, use_nothing, fill(arrays.table, N_PAGES, INT32_MAX, 0))                             \
    X(ids_negative, use_nothing, fill(arrays.table, N_PAGES, -1, -FAR / N_PAGES))                  \
    X(ids_of_v_far, use_nothing, fill(arrays.v_table, N_PAGES, INT32_MAX, 0))                      \
    X(rows_beyond, use_rows, fill(arrays.rows, BATCH, BATCH, 0))                                   \
    X(rows_far, use_rows, fill(arrays.rows, BATCH, FAR, 1))                                        \
    X(rows_negative, use_rows, fill(arrays.rows, BATCH, -1, -FAR / BATCH))                         \
    X(places_beyond, use_places, fill(arrays.rows, BATCH, BATCH, 0))                               \
    X(places_far, use_places, fill(arrays.rows, BATCH, FAR, 1))                                    \
    X(places_negative, use_places, fill(arrays.rows, BATCH, -1, -FAR / BATCH))                     \
    X(indptr_beyond, use_indptr, fill(arrays.indptr, BATCH + 1, N_PAGES - 1, N_IDS))               \
    X(indptr_far, use_indptr, fill(arrays.indptr, BATCH + 1, FAR, N_IDS))                          \
    X(indptr_negative, use_indptr, fill(arrays.indptr, BATCH + 1, -FAR, N_IDS))                    \
    X(indptr_longer, use_indptr, fill(arrays.indptr, BATCH + 1, 0, FAR / 2))                       \
    X(indptr_descends, use_indptr, fill(arrays.indptr, BATCH + 1, FAR, -FAR / 2))                  \
    X(slots_beyond, use_slots, fill64(arrays.slots, BATCH *NEW, N_PAGES *PAGE_SIZE, 1))            \
    X(slots_far, use_slots, fill64(arrays.slots, BATCH *NEW, INT64_MAX, 0))                        \
    X(slots_negative, use_slots, fill64(arrays.slots, BATCH *NEW, INT64_MIN, 1))                   \
    X(start_beyond, use_start, fill(arrays.start, BATCH, N_POSITIONS, 0))                          \
    X(start_far, use_start, fill(arrays.start, BATCH, INT32_MAX, 0))                               \
    X(start_negative, use_start, fill(arrays.start, BATCH, INT32_MIN, 0))                          \
    X(positions_beyond, use_positions, fill64(arrays.positions, BATCH *NEW, N_POSITIONS, 0))       \
    X(positions_far, use_positions, fill64(arrays.positions, BATCH *NEW, INT64_MAX, 0))            \
    X(positions_negative, use_positions, fill64(arrays.positions, BATCH *NEW, INT64_MIN, 0))

#define DEFINE_CHANGE(name, use, setting)                                                          \
    static void set_##name(void) {                                                                 \
        setting;                                                                                   \
    }                                                                                              \
    static change_t change_##name = {use, set_##name};
CHANGES(DEFINE_CHANGE)

/* ---- Changes at any time: numbers that are read twice differ then ---- */

enum { N_CALLS = 1000 };

static atomic_bool is_done;

/* Rows and boundaries of the table stay within it, because a call that reads others first takes
 * them for the table's own. */
static void set_rows_negative_or_last(void) {
    fill(arrays.rows, BATCH, -1, 0);
    fill(arrays.rows, BATCH, BATCH - 1, 0);
}

static void set_indptr_at_the_end(void) {
    fill(arrays.indptr, BATCH + 1, N_PAGES, 0);
    fill(arrays.indptr, BATCH + 1, N_PAGES, -N_IDS);
}

static void *keep_changing(void *unused) {
    void (*const sets[])(void) = {set_good,
                                  set_ends_far,
                                  set_good,
                                  set_used_far,
                                  set_good,
                                  set_ids_far,
                                  set_ids_of_v_far,
                                  set_good,
                                  set_rows_negative_or_last,
                                  set_indptr_at_the_end,
                                  set_good,
                                  set_slots_far,
                                  set_start_far,
                                  set_positions_far};
    for (size_t i = 0; !atomic_load(&is_done); i++)
        sets[i % (sizeof sets / sizeof sets[0])]();
    return unused;
}

TEST(calls_survive_arrays_that_change) {
    void (*const uses[])(flash_kv_append_args_t *) = {use_rows,  use_indptr, use_places,
                                                      use_slots, use_start,  use_positions};
    pthread_t thread;
    int n_served = 0;
    set_good();
    atomic_store(&is_done, false);
    assert_int_equal(pthread_create(&thread, NULL, keep_changing, NULL), 0);
    for (size_t i = 0; i < N_CALLS; i++) {
        flash_kv_append_args_t args = valid_call();
        uses[i % (sizeof uses / sizeof uses[0])](&args);
        n_served += flash_kv_append(&args, NULL) == FLASH_SUCCESS;
        check_guards(memory.k, N_CACHE);
        check_guards(memory.v, N_CACHE);
    }
    atomic_store(&is_done, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    print_message("%d of %d calls found good arrays\n", n_served, N_CALLS);
}

#define CHANGE_TEST(name, use, setting)                                                            \
    {#name " stays within bounds", changes_stay_within_bounds, NULL, NULL, &change_##name},

int main(void) {
    ADD_TESTS(CHANGES(CHANGE_TEST));
    return run_all_tests(map_arrays, NULL);
}
