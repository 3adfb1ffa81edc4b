/*
 * Waiting for a count to fall takes little processor time, however long it lasts, and misses no
 * fall. These tests also run under ThreadSanitizer.
 */
#define _GNU_SOURCE /* usleep */
#include "cpu/countdown.h"
#include "support.h"

#include <time.h>
#include <unistd.h>

typedef struct waiting {
    countdown_sleepers_t sleepers;
    atomic_int_least64_t count;
    double processor_seconds; /* of the thread that waited */
} waiting_t;

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void lower(waiting_t *w) {
    atomic_fetch_sub(&w->count, 1);
    countdown_tell(&w->sleepers);
}

static void start(waiting_t *w, int64_t count) {
    countdown_sleepers_init(&w->sleepers);
    atomic_init(&w->count, count);
}

static void a_count_that_has_fallen_is_not_waited_for(void **state) {
    waiting_t w;
    (void)state;
    start(&w, 3);
    countdown_wait(&w.count, 3, &w.sleepers);
    countdown_wait(&w.count, 4, &w.sleepers);
    countdown_sleepers_destroy(&w.sleepers);
}

static void *wait_for_none(void *waiting) {
    waiting_t *w = waiting;
    countdown_wait(&w->count, 0, &w->sleepers);
    w->processor_seconds = seconds(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static void a_long_wait_is_slept_through(void **state) {
    enum { MILLISECONDS = 400 };
    waiting_t w;
    pthread_t thread;
    (void)state;
    start(&w, 2);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_none, &w), 0);
    lower(&w);
    usleep(MILLISECONDS * 1000);
    lower(&w);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(w.processor_seconds < 1e-3 * MILLISECONDS / 20);
    countdown_sleepers_destroy(&w.sleepers);
}

/* ---- All threads lower many counts, one after the other, and wait for each ---- */

enum { N_THREADS = 4, N_COUNTS = 2000 };

typedef struct relay {
    countdown_sleepers_t sleepers;
    atomic_int_least64_t counts[N_COUNTS];
    atomic_int n_failures;
} relay_t;

/* A thread is late now and then, so that the others fall asleep. */
static void *run(void *relay) {
    relay_t *r = relay;
    for (int i = 0; i < N_COUNTS; i++) {
        if (i % 100 == 0)
            usleep(200);
        atomic_fetch_sub(&r->counts[i], 1);
        countdown_tell(&r->sleepers);
        countdown_wait(&r->counts[i], 0, &r->sleepers);
        if (atomic_load(&r->counts[i]) != 0)
            atomic_fetch_add(&r->n_failures, 1);
    }
    return NULL;
}

static void no_fall_is_missed(void **state) {
    static relay_t relay;
    pthread_t threads[N_THREADS];
    (void)state;
    alarm(240);
    countdown_sleepers_init(&relay.sleepers);
    for (int i = 0; i < N_COUNTS; i++)
        atomic_init(&relay.counts[i], N_THREADS);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run, &relay), 0);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&relay.n_failures), 0);
    countdown_sleepers_destroy(&relay.sleepers);
    alarm(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_count_that_has_fallen_is_not_waited_for),
        cmocka_unit_test(a_long_wait_is_slept_through),
        cmocka_unit_test(no_fall_is_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
