/* This file declares the memory that a call of attention works in. */
#ifndef FLASH_EXTENSION_WORKSPACE_H
#define FLASH_EXTENSION_WORKSPACE_H

#include "host.h"

typedef struct {
    void *memory;
    uint64_t size;
    exchange_managed_t *lent; /* by torch's allocator, on a CUDA device */
} workspace_t;

/* Takes at least `size` bytes of memory of the device (ON_CPU: kept from call to call; CUDA: of
 * torch's allocator, which during the capture of a graph takes them from the graph's pool). Returns
 * false for more than is kept, or than there is. */
bool workspace_take(int32_t device, uint64_t size, workspace_t *workspace);

/* Gives the memory back. On a CUDA device it is for work that comes later on the same stream. */
void workspace_give_back(workspace_t *workspace);

#endif
