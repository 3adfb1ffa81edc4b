/*
 * A waiting thread spins for SPIN_NANOSECONDS, then it sleeps.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "cpu/countdown.h"

#include <stdbool.h>
#include <time.h>

/* Spinning takes longer than packing a block of keys, or than the rest of a task that began at the
 * same time. It is short compared with the milliseconds for which a system takes a processor away.
 */
enum { SPIN_NANOSECONDS = 50000 };

static int64_t nanoseconds(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (int64_t)moment.tv_sec * 1000000000 + moment.tv_nsec;
}

static inline void pause_processor(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Says whether the count fell in time. */
static bool spin(const atomic_int_least64_t *count, int64_t most) {
    const int64_t end = nanoseconds() + SPIN_NANOSECONDS;
    do {
        if (atomic_load_explicit(count, memory_order_acquire) <= most)
            return true;
        pause_processor();
    } while (nanoseconds() < end);
    return false;
}

/* Who lowers the count either sees this sleeper, or has lowered it before the sleeper looks. */
static void sleep_until(const atomic_int_least64_t *count, int64_t most,
                        countdown_sleepers_t *sleepers) {
    pthread_mutex_lock(&sleepers->lock);
    atomic_fetch_add(&sleepers->n_sleepers, 1);
    while (atomic_load(count) > most)
        pthread_cond_wait(&sleepers->fallen, &sleepers->lock);
    atomic_fetch_sub(&sleepers->n_sleepers, 1);
    pthread_mutex_unlock(&sleepers->lock);
}

void countdown_wait(const atomic_int_least64_t *count, int64_t most,
                    countdown_sleepers_t *sleepers) {
    if (atomic_load_explicit(count, memory_order_acquire) > most && !spin(count, most))
        sleep_until(count, most, sleepers);
}

void countdown_sleepers_init(countdown_sleepers_t *sleepers) {
    pthread_mutex_init(&sleepers->lock, NULL);
    pthread_cond_init(&sleepers->fallen, NULL);
    atomic_init(&sleepers->n_sleepers, 0);
}

void countdown_sleepers_destroy(countdown_sleepers_t *sleepers) {
    pthread_cond_destroy(&sleepers->fallen);
    pthread_mutex_destroy(&sleepers->lock);
}
