/*
 * Who waits for a count to fall sleeps, if that lasts, and misses no fall. These tests also run
 * under ThreadSanitizer.
 */
#define _GNU_SOURCE /* gettid, usleep */
#include "cpu/countdown.h"
#include "support.h"

#include <unistd.h>

typedef struct waiting {
    countdown_sleepers_t sleepers;
    atomic_int_least64_t count;
    atomic_int thread; /* that waits; 0 until it is about to */
} waiting_t;

static void lower(waiting_t *w) {
    atomic_fetch_sub(&w->count, 1);
    countdown_tell(&w->sleepers);
}

static void start(waiting_t *w, int64_t count) {
    countdown_sleepers_init(&w->sleepers);
    atomic_init(&w->count, count);
    atomic_init(&w->thread, 0);
}

TEST(a_count_that_has_fallen_is_not_waited_for) {
    waiting_t w;
    start(&w, 3);
    countdown_wait(&w.count, 3, &w.sleepers);
    countdown_wait(&w.count, 4, &w.sleepers);
    countdown_sleepers_destroy(&w.sleepers);
}

static void *wait_for_none(void *waiting) {
    waiting_t *w = waiting;
    atomic_store(&w->thread, gettid());
    countdown_wait(&w->count, 0, &w->sleepers);
    return NULL;
}

/* Reads the state of a thread from /proc, such as R (runs, or could) and S (sleeps). */
static char state_of(int thread) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    return strrchr(line, ')')[2]; /* after the program's name, in brackets */
}

/* Returns when the thread was found asleep many times in a row: one that polls would hardly be. */
static void await_sleep(const waiting_t *w) {
    for (int n_asleep = 0; n_asleep < 50; usleep(200)) {
        const int thread = atomic_load(&w->thread);
        n_asleep = thread != 0 && state_of(thread) == 'S' ? n_asleep + 1 : 0;
    }
}

/* It does not end if the thread does not go to sleep. */
TEST(a_long_wait_is_slept_through) {
    waiting_t w;
    pthread_t thread;
    start(&w, 2);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_none, &w), 0);
    lower(&w);
    await_sleep(&w);
    lower(&w);
    assert_int_equal(pthread_join(thread, NULL), 0);
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

TEST(no_fall_is_missed) {
    static relay_t relay;
    pthread_t threads[N_THREADS];
    countdown_sleepers_init(&relay.sleepers);
    for (int i = 0; i < N_COUNTS; i++)
        atomic_init(&relay.counts[i], N_THREADS);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run, &relay), 0);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&relay.n_failures), 0);
    countdown_sleepers_destroy(&relay.sleepers);
}
