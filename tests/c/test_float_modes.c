/*
 * The caller's floating-point modes change no bit of a result, and a call changes none of them, in
 * the calling thread and in those of a hook.
 */
#define _GNU_SOURCE /* feenableexcept */
#include "support.h"

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>

/* There is enough work for several threads, in forward, in combine, in append and in backward. */
static const sizes_t SIZES = {
    .batch = 2, .seqlen_q = 150, .seqlen_k = 150, .n_heads = 4, .n_heads_kv = 4, .d_head = 40};
enum { N_PARTIALS = 8, SEQLEN_OF_GRADIENTS = 40 };

/* ---- Modes ---- */

typedef struct modes {
    const char *name;
    int rounding;
    bool flushes; /* denormals count as zero, and results that would be denormal become zero */
} modes_t;

static const modes_t MODES[] = {{"upward", FE_UPWARD, false},
                                {"downward", FE_DOWNWARD, false},
                                {"toward zero", FE_TOWARDZERO, false},
                                {"denormals flushed", FE_TONEAREST, true},
                                {"downward, denormals flushed", FE_DOWNWARD, true}};
enum { N_MODES = sizeof MODES / sizeof MODES[0] };

#if defined(__x86_64__)
#include <xmmintrin.h>

static void flush_denormals(void) {
    _mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ, DAZ */
}

static uint64_t read_modes(void) {
    return _mm_getcsr(); /* with the flags */
}
#elif defined(__aarch64__)
static void flush_denormals(void) {
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | 1u << 24)); /* FZ */
}

static uint64_t read_modes(void) {
    uint64_t fpcr, fpsr;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(fpcr), "=r"(fpsr));
    return fpcr << 32 | fpsr;
}
#else
static void flush_denormals(void) {
}

static uint64_t read_modes(void) {
    return (uint64_t)fegetround() << 32 | (uint64_t)fetestexcept(FE_ALL_EXCEPT);
}
#endif

/* One flag is raised, which should stay the only one. */
static void enter(const modes_t *modes) {
    feclearexcept(FE_ALL_EXCEPT);
    feraiseexcept(FE_DIVBYZERO);
    fesetround(modes->rounding);
    if (modes->flushes)
        flush_denormals();
}

static void leave(void) {
    fesetenv(FE_DFL_ENV);
}

/* ---- Calls ---- */

/* A forward, a combine, an append and a backward call, with outputs that are denormal or not. */
typedef struct calls {
    test_problem_t forward;
    unsigned char *cache; /* e4m3, of K and behind it of V */
    float *turned;
    flash_rotary_t rotary;
    flash_quant_t quant;
    flash_kv_append_args_t append;
    float *o_partial;
    float *lse_partial;
    float *o_combined;
    float *lse_combined;
    flash_combine_args_t combine;
    float *gradients[3]; /* of Q, K and V */
    flash_forward_args_t of_gradients;
    flash_backward_args_t backward;
} calls_t;

static float *allocate(size_t count) {
    float *memory = malloc(count * sizeof *memory);
    assert_non_null(memory);
    memset(memory, 0xff, count * sizeof *memory);
    return memory;
}

static void scale(float *values, size_t count, float factor) {
    for (size_t i = 0; i < count; i++)
        values[i] *= factor;
}

/* The values of Q serve as partial results and as LSEs. */
static void create_combine(calls_t *c) {
    const test_problem_t *p = &c->forward;
    flash_combine_args_t args = FLASH_COMBINE_ARGS_INIT;
    c->o_partial = allocate(N_PARTIALS * p->o_count);
    c->lse_partial = allocate(N_PARTIALS * p->lse_count);
    c->o_combined = allocate(p->o_count);
    c->lse_combined = allocate(p->lse_count);
    for (size_t i = 0; i < N_PARTIALS; i++) {
        for (size_t j = 0; j < p->o_count; j++)
            c->o_partial[i * p->o_count + j] = p->v[(i + j) % p->o_count];
        memcpy(c->lse_partial + i * p->lse_count, p->q + i, p->lse_count * sizeof(float));
    }
    args.dtype = FLASH_DTYPE_FP32;
    args.o_partial = args.o = p->args.o;
    args.o_partial.data = c->o_partial;
    args.stride_partial = (int64_t)p->o_count;
    args.lse_partial = c->lse_partial;
    args.o.data = c->o_combined;
    args.lse = c->lse_combined;
    args.n_partials = N_PARTIALS;
    args.batch = SIZES.batch;
    args.seqlen_q = SIZES.seqlen_q;
    args.n_heads = SIZES.n_heads;
    args.d_head = SIZES.d_head;
    c->combine = args;
}

static const int32_t no_keys[2] = {0, 0};   /* so far */
static const float scale_of_cache = 3e-38f; /* the denormal values are some codes of e4m3 */

/* The values of V turn by angles whose cosines are those of K, and whose sines are those of Q. */
static void create_append(calls_t *c) {
    const test_problem_t *p = &c->forward;
    flash_kv_append_args_t args = FLASH_KV_APPEND_ARGS_INIT;
    c->cache = malloc(2 * p->o_count);
    assert_non_null(c->cache);
    c->turned = allocate(p->o_count);
    c->rotary = (flash_rotary_t)FLASH_ROTARY_INIT;
    c->rotary.cos = p->k;
    c->rotary.sin = p->q;
    c->rotary.stride_position = c->rotary.rotary_dim = SIZES.d_head;
    c->rotary.n_positions = SIZES.seqlen_q;
    c->quant = (flash_quant_t)FLASH_QUANT_INIT;
    c->quant.k_scale = c->quant.v_scale = &scale_of_cache;
    args.dtype = FLASH_DTYPE_FP32;
    args.k_new = args.v_new = args.k = args.v = args.q = args.q_out = p->args.v;
    args.k.dtype = args.v.dtype = FLASH_DTYPE_E4M3;
    args.k.data = c->cache;
    args.v.data = c->cache + p->o_count;
    args.q_out.data = c->turned;
    args.seqused_k = no_keys;
    args.batch = SIZES.batch;
    args.seqlen_new = args.seqlen_k = args.seqlen_q = SIZES.seqlen_q;
    args.n_heads = args.n_heads_kv = SIZES.n_heads;
    args.d_head = SIZES.d_head;
    args.rotary = &c->rotary;
    args.quant = &c->quant;
    c->append = args;
}

/* Gradients of the first queries and keys of each sequence, where those of O are the values of V.
 */
static void create_backward(calls_t *c) {
    const test_problem_t *p = &c->forward;
    flash_forward_args_t forward = p->args;
    flash_backward_args_t args = FLASH_BACKWARD_ARGS_INIT;
    forward.lse_stride_batch = SIZES.n_heads * SIZES.seqlen_q;
    forward.lse_stride_head = SIZES.seqlen_q;
    forward.lse_stride_seq = 1;
    forward.seqlen_q = forward.seqlen_k = SEQLEN_OF_GRADIENTS;
    c->of_gradients = forward;
    args.forward = &c->of_gradients;
    args.d_o = args.dq = args.dk = args.dv = forward.v;
    for (int i = 0; i < 3; i++)
        c->gradients[i] = allocate(p->o_count);
    args.dq.data = c->gradients[0];
    args.dk.data = c->gradients[1];
    args.dv.data = c->gradients[2];
    assert_success(flash_backward_workspace_size(&args, NULL, &args.workspace_size));
    args.workspace = malloc((size_t)args.workspace_size);
    assert_non_null(args.workspace);
    c->backward = args;
}

static void create(calls_t *c, float size_of_v) {
    problem_create(&c->forward, SIZES, 41);
    scale(c->forward.v, c->forward.o_count, size_of_v);
    create_combine(c);
    create_append(c);
    create_backward(c);
}

static void destroy(calls_t *c) {
    problem_destroy(&c->forward);
    free(c->cache);
    free(c->turned);
    free(c->o_partial);
    free(c->lse_partial);
    free(c->o_combined);
    free(c->lse_combined);
    for (int i = 0; i < 3; i++)
        free(c->gradients[i]);
    free(c->backward.workspace);
}

static bool succeed(calls_t *c) {
    return flash_prepare(&c->forward.args, NULL) == FLASH_SUCCESS &&
           flash_forward(&c->forward.args, NULL, NULL) == FLASH_SUCCESS &&
           flash_combine(&c->combine, NULL) == FLASH_SUCCESS &&
           flash_kv_append(&c->append, NULL) == FLASH_SUCCESS &&
           flash_backward(&c->backward, NULL) == FLASH_SUCCESS;
}

static bool same_gradients(const calls_t *a, const calls_t *b) {
    for (int i = 0; i < 3; i++)
        if (memcmp(a->gradients[i], b->gradients[i], a->forward.o_count * sizeof(float)) != 0)
            return false;
    return true;
}

static bool same_bits(const calls_t *a, const calls_t *b) {
    return problem_same_bits(&a->forward, &b->forward) && same_gradients(a, b) &&
           memcmp(a->cache, b->cache, 2 * a->forward.o_count) == 0 &&
           memcmp(a->turned, b->turned, a->forward.o_count * sizeof(float)) == 0 &&
           memcmp(a->o_combined, b->o_combined, a->forward.o_count * sizeof(float)) == 0 &&
           memcmp(a->lse_combined, b->lse_combined, a->forward.lse_count * sizeof(float)) == 0;
}

static calls_t expected_normal, expected_denormal;

static int compute_expected(void **state) {
    (void)state;
    assert_success(flash_set_num_threads(1));
    create(&expected_normal, 1.0f);
    create(&expected_denormal, 1e-39f);
    return succeed(&expected_normal) && succeed(&expected_denormal) ? 0 : -1;
}

static int destroy_expected(void **state) {
    (void)state;
    destroy(&expected_normal);
    destroy(&expected_denormal);
    return 0;
}

/* Nothing is asserted before the default modes are back, because an assertion may compute. */
static void check(const modes_t *modes, const calls_t *expected, float size_of_v) {
    calls_t c;
    create(&c, size_of_v);
    enter(modes);
    const uint64_t before = read_modes();
    const bool succeeded = succeed(&c);
    const uint64_t after = read_modes();
    leave();
    if (!succeeded || before != after || !same_bits(&c, expected))
        fail_msg("%s: %s; modes 0x%llx before, 0x%llx after; %s bits", modes->name,
                 succeeded ? "succeeded" : flash_last_error(), (unsigned long long)before,
                 (unsigned long long)after, same_bits(&c, expected) ? "the same" : "other");
    destroy(&c);
}

static void check_all(void) {
    for (size_t i = 0; i < N_MODES; i++) {
        check(&MODES[i], &expected_normal, 1.0f);
        check(&MODES[i], &expected_denormal, 1e-39f);
    }
}

TEST_WITH_TEARDOWN(modes_of_the_caller_change_nothing, default_threads) {
    for (int32_t n_threads = 1; n_threads <= 4; n_threads += 3) {
        assert_success(flash_set_num_threads(n_threads));
        check_all();
    }
}

/* Threads start with the modes of the thread that starts them, unless they set their own. */
TEST_WITH_TEARDOWN(modes_at_the_start_of_the_threads_change_nothing, default_threads) {
    for (size_t i = 0; i < N_MODES; i++) {
        enter(&MODES[i]);
        const flash_status_t set = flash_set_num_threads(4);
        const flash_status_t started = flash_prepare(&expected_normal.forward.args, NULL);
        leave();
        assert_int_equal(set, FLASH_SUCCESS);
        assert_int_equal(started, FLASH_SUCCESS);
        check(&MODES[i], &expected_normal, 1.0f);
    }
}

/* A trap would end the program. */
TEST_WITH_TEARDOWN(traps_of_the_caller_do_not_spring, default_threads) {
    calls_t c;
    create(&c, 1e-39f);
    assert_success(flash_set_num_threads(4));
    if (feenableexcept(FE_INEXACT | FE_UNDERFLOW) == -1)
        skip(); /* the processor has none */
    const bool succeeded = succeed(&c);
    const int enabled = fegetexcept();
    leave();
    assert_true(succeeded && same_bits(&c, &expected_denormal));
    assert_int_equal(enabled, FE_INEXACT | FE_UNDERFLOW);
    destroy(&c);
}

/* ---- A hook whose threads have modes of their own ---- */

static atomic_int n_changed; /* tasks that left other modes behind */

typedef struct unit {
    flash_task_t task;
    void *argument;
    int32_t index;
} unit_t;

static void *run_unit(void *unit) {
    const unit_t *u = unit;
    enter(&MODES[(size_t)u->index % N_MODES]);
    const uint64_t before = read_modes();
    u->task(u->argument, u->index);
    if (read_modes() != before)
        atomic_fetch_add(&n_changed, 1);
    return NULL;
}

static void run_in_threads(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    enum { MOST = 8 };
    pthread_t threads[MOST];
    unit_t units[MOST];
    (void)context;
    if (n_tasks > MOST)
        abort();
    for (int32_t i = 0; i < n_tasks; i++) {
        units[i] = (unit_t){task, argument, i};
        if (pthread_create(&threads[i], NULL, run_unit, &units[i]) != 0)
            abort();
    }
    for (int32_t i = 0; i < n_tasks; i++)
        pthread_join(threads[i], NULL);
}

TEST_WITH_TEARDOWN(modes_of_the_hooks_threads_change_nothing, default_threads) {
    assert_success(flash_set_parallel_for(run_in_threads, NULL, N_MODES));
    atomic_store(&n_changed, 0);
    check_all();
    assert_int_equal(atomic_load(&n_changed), 0);
}

int main(void) {
    return run_all_tests(compute_expected, destroy_expected);
}
