/*
 * flash_combine() launches a warp per row on CUDA devices.
 */
#include "cuda/runtime/cuda_combine.h"

#include "core/status.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/scope.h"
#include "kernels/common/combine.h"
#include "kernels/sm80/sm80_kernel.h"

static flash_status_t enqueue(const flash_combine_args_t *args, flash_stream_t stream) {
    enum { MOST_BLOCKS = 1 << 20 }; /* with more rows, each block takes several in turn */
    union {
        void (*function)(flash_combine_args_t);
        const void *symbol;
    } u = {.function = flash_combine_rows};
    const int64_t n_rows = args->batch * args->n_heads * args->seqlen_q;
    const int64_t blocks = (n_rows + COMBINE_WARPS - 1) / COMBINE_WARPS;
    const cuda_grid_t grid = {.blocks = blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS,
                              .threads = SM80_WARP_THREADS * COMBINE_WARPS};
    if (n_rows == 0)
        return FLASH_SUCCESS;
    return launch_grid(u.symbol, &grid, args, stream);
}

flash_status_t cuda_combine(const flash_combine_args_t *args, const device_t *device,
                            flash_stream_t stream) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = enqueue(args, stream);
    cuda_scope_leave(&scope);
    return status;
}
