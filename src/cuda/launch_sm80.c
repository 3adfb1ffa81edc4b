/*
 * Launching a kernel of the SM80 family: a block for each tile.
 */
#include "cuda/families.h"

#include "cuda/block.h"
#include "cuda/grid.h"

flash_status_t launch_sm80(const void *symbol, const flash_config_t *config,
                           const problem_t *problem, flash_stream_t stream) {
    const cuda_block_t block = cuda_block(config);
    const cuda_grid_t grid = {.blocks = sm80_grid_blocks(config, &problem->params),
                              .threads = block.threads,
                              .shared_bytes = block.shared_bytes};
    return launch_grid(symbol, &grid, &problem->params, stream);
}
