/*
 * What a thread must not bring into the library's work: cancellation, and floating-point modes that
 * would change the bits of results. Both are set aside for the time of an exported call, and of a
 * task that runs in a thread of the caller.
 */
#ifndef FLASH_CALL_SCOPE_H
#define FLASH_CALL_SCOPE_H

#include "core/float_modes.h"

#include <pthread.h>

/* What the thread had before. */
typedef struct call_scope {
    float_modes_t float_modes;
    int cancel_state;
} call_scope_t;

/* A cancelled thread would leave a lock held, or a task undone that others wait for, in every
 * function that waits, reads a file or prints. Cleanup handlers in all of them would have to take
 * half-done work back; with cancellation disabled there is none. It costs a few nanoseconds. */
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

/* A thread that was cancelled meanwhile ends here: a loop of calls has no other place to. */
static inline void call_scope_leave_call(const call_scope_t *scope) {
    call_scope_leave(scope);
    pthread_testcancel();
}

/* The first line of an exported call that waits, reads files, prints or runs tasks: the scope lasts
 * to the function's end. */
#define FLASH_CALL_SCOPE()                                                                         \
    __attribute__((cleanup(call_scope_leave_call), unused)) const call_scope_t call_scope =        \
        call_scope_enter()

#endif
