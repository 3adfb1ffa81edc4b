/*
 * A check runs in a child process if a process can do it only once, or should not survive it:
 * reading the environment, forking, unloading.
 */
#ifndef FLASH_TESTS_CHILD_H
#define FLASH_TESTS_CHILD_H

#include <stdbool.h>
#include <stdio.h>

enum { CHILD_SECONDS = 3600 }; /* only a child that hangs takes that long */

/* Ends a check, a function that returns bool, with a message unless the condition holds. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/* Fails the test unless check(argument), run in a child, returns true. */
void check_in_child(bool (*check)(void *argument), void *argument);

#endif
