/*
 * The schedule says which tiles a block computes, and in which order. The rest of the kernel
 * includes no other header of the folder.
 *
 *     schedule_pass()                     the scheduler warp announces the block's tiles, in one
 *                                         of these schedules:
 *                                           in turn          without longest_first
 *                                           whole heads,
 *                                           then LPT         with longest_first (ranks.cuh)
 *                                           ragged LPT       with varlen (ragged.cuh)
 *                                         If tiles are even, LPT is in turn too.
 *     await_assignment(),
 *     read_assignment(),
 *     release_assignment(),
 *     take_assignment()                   the other roles read them (assignments.cuh)
 *     record_failure_if(), any_failed()   what the second pass computes again (passes.cuh)
 *
 * Every schedule depends only on the launch, never on timing, and needs no memory but the block's
 * own: the scheduler of each block works out what all blocks take.
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_SCHEDULE_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_SCHEDULE_CUH

#include "sm90/schedule/scheduler.cuh"

#endif
