/*
 * Launching a kernel of the SM80 family: a block for each tile.
 */
#include "launch_families.h"

#include "cuda_block.h"
#include "launch_grid.h"

flash_status_t launch_sm80(const void *symbol, const flash_config_t *config,
                           const problem_t *problem, flash_stream_t stream) {
    const cuda_block_t block = cuda_block(config);
    const cuda_grid_t grid = {.blocks = sm80_grid_blocks(config, &problem->params),
                              .threads = block.threads,
                              .shared_bytes = block.shared_bytes};
    return launch_grid(symbol, &grid, &problem->params, stream);
}
