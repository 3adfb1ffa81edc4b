/*
 * Threads wait here until a count of work has fallen. They may have to share their processor, so a
 * waiting thread spins for a moment, which suffices where the others run, and then sleeps.
 */
#ifndef FLASH_COUNTDOWN_H
#define FLASH_COUNTDOWN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* Threads sleep on this, for any number of counts. */
typedef struct countdown_sleepers {
    pthread_mutex_t lock;
    pthread_cond_t fallen;
    atomic_int n_sleepers;
} countdown_sleepers_t;

void countdown_sleepers_init(countdown_sleepers_t *sleepers);
void countdown_sleepers_destroy(countdown_sleepers_t *sleepers);

/* Returns when *count <= most. Another thread lowers the count and calls countdown_tell(). */
void countdown_wait(const atomic_int_least64_t *count, int64_t most,
                    countdown_sleepers_t *sleepers);

/* Wakes the sleepers, after a sequentially consistent operation has lowered a count far enough. */
static inline void countdown_tell(countdown_sleepers_t *sleepers) {
    if (atomic_load(&sleepers->n_sleepers) == 0)
        return;
    pthread_mutex_lock(&sleepers->lock);
    pthread_cond_broadcast(&sleepers->fallen);
    pthread_mutex_unlock(&sleepers->lock);
}

#endif
