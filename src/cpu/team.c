/*
 * A team is a set of the caller's threads that are all inside one operation and help one of them
 * with its calls. The caller owns the memory; nothing here allocates.
 *
 * A round is one use of the team by all of its threads. Each helper enters and leaves once, and the
 * leader's flash_team_finish() ends the round when all have left. So a thread may come early for
 * the next round, or late for this one.
 */
#include "core/call_scope.h"
#include "core/status.h"
#include "cpu/countdown.h"
#include "cpu/thread_pool.h"
#include "flashattn.h"

#include <stdbool.h>
#include <stddef.h>

/* The contents of a flash_team_t, guarded by the lock but for the counts that threads wait for. */
typedef struct team {
    pthread_mutex_t lock;
    countdown_sleepers_t sleepers;
    atomic_int_least64_t events; /* falls by 1 when anything below changes for helpers */
    atomic_int_least64_t n_left; /* tasks of the present job still to be done */
    flash_task_t task;           /* the present job */
    void *argument;
    int32_t n_tasks;
    int32_t n_claimed;
    int32_t n_helpers; /* threads of the team, less the leader */
    int32_t n_entered; /* helpers of this round */
    int32_t n_gone;
    bool is_over; /* the leader has no more calls in this round */
} team_t;

_Static_assert(sizeof(team_t) <= sizeof(flash_team_t), "a team does not fit into flash_team_t");
_Static_assert(_Alignof(team_t) <= _Alignof(flash_team_t), "flash_team_t is aligned too little");

static team_t *team_of(flash_team_t *team) {
    return (team_t *)(void *)team;
}

/* ---- Waiting; the lock is held before and after ---- */

static void tell(team_t *team) {
    atomic_fetch_sub(&team->events, 1);
    countdown_tell(&team->sleepers);
}

static void wait_for_event(team_t *team) {
    const int64_t seen = atomic_load(&team->events);
    pthread_mutex_unlock(&team->lock);
    countdown_wait(&team->events, seen - 1, &team->sleepers);
    pthread_mutex_lock(&team->lock);
}

/* ---- Tasks; the lock is held before and after ---- */

static bool has_task(const team_t *team) {
    return team->n_claimed < team->n_tasks;
}

static void run_task(team_t *team) {
    const flash_task_t task = team->task;
    void *argument = team->argument;
    const int32_t index = team->n_claimed++;
    pthread_mutex_unlock(&team->lock);
    task(argument, index);
    if (atomic_fetch_sub(&team->n_left, 1) == 1)
        countdown_tell(&team->sleepers);
    pthread_mutex_lock(&team->lock);
}

/* ---- The interface ---- */

flash_status_t flash_team_init(flash_team_t *team, int32_t n_threads) {
    FLASH_REQUIRE(team != NULL, FLASH_ERROR_INVALID_ARGUMENT, "team is NULL");
    FLASH_REQUIRE(n_threads >= 1 && n_threads <= THREAD_POOL_MAX, FLASH_ERROR_INVALID_ARGUMENT,
                  "n_threads is %d: not 1 ... %d", n_threads, THREAD_POOL_MAX);
    team_t *state = team_of(team);
    *state = (team_t){.n_helpers = n_threads - 1};
    pthread_mutex_init(&state->lock, NULL);
    countdown_sleepers_init(&state->sleepers);
    atomic_init(&state->events, INT64_MAX);
    atomic_init(&state->n_left, 0);
    return FLASH_SUCCESS;
}

void flash_team_destroy(flash_team_t *team) {
    if (team == NULL)
        return;
    countdown_sleepers_destroy(&team_of(team)->sleepers);
    pthread_mutex_destroy(&team_of(team)->lock);
}

void flash_team_run(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    team_t *team = team_of(context);
    pthread_mutex_lock(&team->lock);
    team->task = task;
    team->argument = argument;
    team->n_tasks = n_tasks;
    team->n_claimed = 0;
    atomic_store(&team->n_left, n_tasks);
    tell(team);
    while (has_task(team))
        run_task(team);
    pthread_mutex_unlock(&team->lock);
    countdown_wait(&team->n_left, 0, &team->sleepers);
}

void flash_team_help(flash_team_t *team) {
    FLASH_CALL_SCOPE();
    team_t *state = team_of(team);
    pthread_mutex_lock(&state->lock);
    while (state->n_entered == state->n_helpers) /* all helpers of this round have come */
        wait_for_event(state);
    state->n_entered++;
    while (has_task(state) || !state->is_over)
        if (has_task(state))
            run_task(state);
        else
            wait_for_event(state);
    state->n_gone++;
    tell(state);
    pthread_mutex_unlock(&state->lock);
}

void flash_team_finish(flash_team_t *team) {
    FLASH_CALL_SCOPE();
    team_t *state = team_of(team);
    pthread_mutex_lock(&state->lock);
    state->is_over = true;
    tell(state);
    while (state->n_gone < state->n_helpers)
        wait_for_event(state);
    state->n_entered = state->n_gone = state->n_tasks = state->n_claimed = 0;
    state->is_over = false;
    tell(state);
    pthread_mutex_unlock(&state->lock);
}
