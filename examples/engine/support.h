/*
 * What every file of the engine needs: memory, a clock, and an end with a message. An example may
 * end the program where an engine in use would refuse a request.
 */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <flashattn.h>

#include <stddef.h>

/* Ends the program with a message, as printf() writes it. */
_Noreturn void fail(const char *format, ...);

/* Ends the program with the library's own message unless the call succeeded. */
void check(flash_status_t status);

/* Allocates memory of zeros, or ends the program. */
void *allocate(size_t count, size_t size);

/* A list has memory that is freed together. list_add() returns what it adds. */
typedef struct list {
    void **items;
    size_t count;
} list_t;
void *list_add(list_t *list, void *item);
void list_free(list_t *list, void (*free_item)(void *item));

double now(void); /* seconds */

#endif
