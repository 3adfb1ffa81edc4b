/*
 * Waiting until a count of work has fallen, in threads that may have to share their processor: a
 * waiting thread spins for a moment, which is all it takes where the others run, then it sleeps.
 */
#ifndef FLASH_COUNTDOWN_H
#define FLASH_COUNTDOWN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* What threads sleep on, for any number of counts. */
typedef struct countdown_sleepers {
    pthread_mutex_t lock;
    pthread_cond_t fallen;
    atomic_int n_sleepers;
} countdown_sleepers_t;

void countdown_sleepers_init(countdown_sleepers_t *sleepers);
void countdown_sleepers_destroy(countdown_sleepers_t *sleepers);

/* Returns when *count <= most. Some other thread lowers the count and tells. */
void countdown_wait(const atomic_int_least64_t *count, int64_t most,
                    countdown_sleepers_t *sleepers);

/* Wakes the sleepers after a count, lowered by a sequentially consistent operation, has fallen to
 * what one of them may be waiting for. */
static inline void countdown_tell(countdown_sleepers_t *sleepers) {
    if (atomic_load(&sleepers->n_sleepers) == 0)
        return;
    pthread_mutex_lock(&sleepers->lock);
    pthread_cond_broadcast(&sleepers->fallen);
    pthread_mutex_unlock(&sleepers->lock);
}

#endif
