/*
 * What tests of the selection share: described devices, and problems that no kernel is run for. The
 * selection is a pure function of both, whatever this machine is.
 */
#ifndef FLASH_TESTS_SELECTION_H
#define FLASH_TESTS_SELECTION_H

#include "support.h"

#include "config/kernel_table.h"
#include "select/select.h"
#include "select/serves.h"

/* An A100. */
extern const device_t ampere;

/* An H200. */
extern const device_t hopper;

/* A B200, which has no wgmma nor others of the instructions of 9.0 alone. */
extern const device_t blackwell;

/* A device with the least shared memory that the SM80 family serves: 8.6, 8.9, 12.0. */
extern const device_t small_gpu;

/* A GeForce RTX 5090, the newest of these devices. */
extern const device_t small_blackwell;

/* A problem with this type of K, V, Q and O; Q and O are never of 8 bits. */
problem_t problem_of(int32_t dtype, int32_t features);

/* Contiguous tensors, with several of everything, which TMA can address. */
problem_t hopper_problem(int32_t d_head, int32_t features);

/* One query over many keys, with `rows` query heads per K/V head. */
problem_t decode_problem(int32_t d_head, int32_t rows, int32_t features);

/* Says whether SM80_DECODE has the shared memory: rows of d_head 256 take 128 KB, others 96 KB. */
bool decodes(const device_t *device, int32_t d_head);

/* decode_problem() with 2048 queries over keys in pages. */
problem_t prefill_in_pages(int32_t d_head);

/* Sequences of up to seqlen_q queries, with `group` query heads per K/V head. */
problem_t mixed_problem(int32_t d_head, int32_t group, int32_t seqlen_q, int32_t features);

/* Queries of 8 K/V heads with 4 query heads each, as in a model of 8 billion parameters. */
problem_t chunk_problem(int32_t batch, int32_t seqlen_q, int32_t seqlen_k, int32_t features);

/* Gives the problem's K and V pages, which no test reads, if its features say so. */
void set_pages(problem_t *problem);

/* With bias: gives the problem a mask of blocks of 128 queries and 128 keys, over all keys. */
void set_mask_of_blocks(problem_t *problem);

/* Gives the problem ragged queries, whose lengths no test reads. */
void make_ragged(problem_t *problem);

/* Returns the kernel that is chosen, which serves. */
const flash_kernel_t *selected(const problem_t *problem, const device_t *device);

bool has_cuda_kernels(void);

/* The exit status of programs that need rows of CUDA families, where the table has none. */
enum { SKIPPED_BY_CTEST = 77 };

#endif
