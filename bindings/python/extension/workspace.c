/*
 * This file keeps workspaces of the CPU in a list, from which a call takes one for itself: a
 * thread, or a call within a call, can do that while another call works. The interpreter's lock
 * guards it.
 */
#include "workspace.h"

#include <stdlib.h>

#include "tensor.h"

/* This holds that of decode and of short prompts; longer calls do without the extension. */
enum { KEPT_BYTES_MAX = 1 << 22, KEPT_MAX = 16 };

static workspace_t kept[KEPT_MAX];
static int n_kept;

static bool take_on_cpu(uint64_t size, workspace_t *workspace) {
    if (n_kept > 0)
        *workspace = kept[--n_kept];
    if (workspace->size >= size)
        return true;
    free(workspace->memory);
    const uint64_t with_room = size + size / 4; /* for lengths that grow from call to call */
    *workspace = (workspace_t){.memory = malloc(with_room), .size = with_room};
    if (workspace->memory == NULL)
        workspace->size = 0;
    return workspace->memory != NULL;
}

static void ignore(void *context, const char *kind, const char *message) {
    (void)context, (void)kind, (void)message; /* torch raises the same where the call is repeated */
}

static bool take_on_cuda(int32_t device, uint64_t size, workspace_t *workspace) {
    int64_t shape = (int64_t)size;
    exchange_tensor_t like = {
        .device = {EXCHANGE_CUDA, device},
        .ndim = 1,
        .dtype = {EXCHANGE_UINT, 8, 1},
        .shape = &shape,
    };
    if (host.exchange->allocate(&like, &workspace->lent, NULL, ignore) != 0)
        return false;
    workspace->memory = workspace->lent->tensor.data;
    workspace->size = size;
    return true;
}

bool workspace_take(int32_t device, uint64_t size, workspace_t *workspace) {
    *workspace = (workspace_t){0};
    if (size == 0)
        return true;
    if (device != ON_CPU)
        return take_on_cuda(device, size, workspace);
    return size <= KEPT_BYTES_MAX && take_on_cpu(size, workspace);
}

void workspace_give_back(workspace_t *workspace) {
    if (workspace->lent != NULL)
        workspace->lent->deleter(workspace->lent);
    else if (workspace->memory != NULL && n_kept < KEPT_MAX)
        kept[n_kept++] = *workspace;
    else
        free(workspace->memory);
}
