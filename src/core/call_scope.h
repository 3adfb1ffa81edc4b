/*
 * Two settings of a thread must not reach the library's work: cancellation, and floating-point
 * modes that would change the bits of results. Both are set aside during an exported call, and
 * during a task that runs in a thread of the caller.
 */
#ifndef FLASH_CALL_SCOPE_H
#define FLASH_CALL_SCOPE_H

#include "core/float_modes.h"

#include <pthread.h>

/* The thread's own settings. */
typedef struct call_scope {
    float_modes_t float_modes;
    int cancel_state;
} call_scope_t;

/* In every function that waits, reads a file or prints, a cancelled thread would leave a lock held,
 * or a task undone that others wait for. Disabling cancellation costs a few nanoseconds. */
static inline call_scope_t call_scope_enter(void) {
    call_scope_t scope;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &scope.cancel_state);
    scope.float_modes = float_modes_enter();
    return scope;
}

static inline void call_scope_leave(const call_scope_t *scope) {
    int disabled;
    float_modes_leave(&scope->float_modes);
    pthread_setcancelstate(scope->cancel_state, &disabled);
}

/* A thread that was cancelled meanwhile ends here: a loop of calls may have no other such point. */
static inline void call_scope_leave_call(const call_scope_t *scope) {
    call_scope_leave(scope);
    pthread_testcancel();
}

/* Enters a scope that lasts to the function's end. It is the first line of an exported call that
 * waits, reads files, prints or runs tasks. */
#define FLASH_CALL_SCOPE()                                                                         \
    __attribute__((cleanup(call_scope_leave_call), unused)) const call_scope_t call_scope =        \
        call_scope_enter()

#endif
