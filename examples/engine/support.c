/*
 * See support.h.
 */
#include "support.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

_Noreturn void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("engine: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(EXIT_FAILURE);
}

void check(flash_status_t status) {
    if (status != FLASH_SUCCESS)
        fail("%s: %s", flash_status_string(status), flash_last_error());
}

void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (memory == NULL)
        fail("out of memory: %zu times %zu bytes", count, size);
    return memory;
}

void *list_add(list_t *list, void *item) {
    list->items = realloc(list->items, (list->count + 1) * sizeof *list->items);
    if (list->items == NULL)
        fail("out of memory: a list of %zu", list->count + 1);
    return list->items[list->count++] = item;
}

void list_free(list_t *list, void (*free_item)(void *item)) {
    for (size_t i = 0; i < list->count; i++)
        free_item(list->items[i]);
    free(list->items);
    *list = (list_t){0};
}

double now(void) {
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}
