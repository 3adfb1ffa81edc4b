/*
 * Host and device code agree on this for every SM90 kernel. It is plain C, and constant expressions
 * in CUDA C++.
 *
 * A kernel is an `extern "C" __global__ void name(const __grid_constant__ sm90_params_t params)`.
 * The grid has one dimension: any number of blocks up to sm90_tiles(), which is at most INT32_MAX
 * (exactly that number unless persistent, with longest_first at most SM90_MAX_BLOCKS), of
 * sm90_block_threads() threads with sm90_shared_bytes() of dynamic shared memory (drawn in
 * block_state.cuh); no launch where there are no tiles. schedule/schedule.cuh says which block does
 * what.
 */
#ifndef FLASH_KERNELS_SM90_KERNEL_H
#define FLASH_KERNELS_SM90_KERNEL_H

#include "common/divide.h"
#include "common/latent.h"
#include "common/operand.h"
#include "common/params.h"
#include "common/rules.h"
#include "flashattn.h"

#include <stdint.h>

#ifdef __CUDACC__
#define SM90_CONSTANT       static constexpr __host__ __device__ inline
#define SM90_ALIGNED(bytes) alignas(bytes)
#else
#define SM90_CONSTANT       static inline
#define SM90_ALIGNED(bytes) _Alignas(bytes)
#endif

enum {
    SM90_WARP_THREADS = 32,
    SM90_WARPGROUP_THREADS = 128,
    SM90_WARPGROUP_ROWS = 64, /* of Q, of each warpgroup that multiplies */
    SM90_MAX_CONSUMERS = 3,
    SM90_WIDER_D_HEAD = 192,     /* beside which kernels have a d_head_v, as DeepSeek's prefill */
    SM90_PANEL_BYTES = 128,      /* of a row of a tile in shared memory: one span of the swizzle */
    SM90_TILE_ALIGNMENT = 1024,  /* bytes: eight rows of the swizzle's pattern */
    SM90_ROWS_OF_ONES = 8,       /* behind a transposed V: see fp8/products.cuh */
    SM90_CHUNK_BYTES = 16,       /* TMA's addresses and strides are multiples of it */
    SM90_STATE_BYTES = 2944,     /* block_state_t, behind the tiles (block_state.cuh) */
    SM90_CONVERSION_BYTES = 320, /* more, where K and V are converted */
    SM90_CONVERTED_KEYS = 32,    /* keys of a converted block, or a divisor of them */
    SM90_SHARED_BYTES_MAX = 227 * 1024,
    SM90_FAILURE_BITS = 1024, /* of a block: which of its tiles the second pass computes again */
    SM90_MAX_BLOCKS = 160,    /* of a grid with longest_first */
    SM90_RAGGED_END = 1 << 30 /* coordinate of each sequence's end in a ragged tensor's map */
};

/* A CUtensorMap, as the driver encodes it. */
typedef struct sm90_tensor_map {
    SM90_ALIGNED(64) uint64_t opaque[16];
} sm90_tensor_map_t;

/* These are tokens from one batch entry's first to the next's; 0 for ragged tensors. */
typedef struct sm90_entry_tokens {
    int32_t q;
    int32_t k;
    int32_t v;
    int32_t o;
} sm90_entry_tokens_t;

/* The host decides this about the schedule (schedule/schedule.cuh). Heads are query heads; those
 * that share tiles count as one (sm90_heads()). */
typedef struct sm90_schedule {
    /* These are the first heads of the batch, which go to teams of blocks, under longest_first
     * without varlen; each team takes whole heads. 0, or a multiple of the number of teams. */
    int32_t whole_heads;
    int32_t team_blocks; /* blocks per team; divides the blocks of the grid */
    /* So many of the other heads make a section, whose K and V fit L2 together, under
     * longest_first; at least 1. With varlen a section has heads of one batch entry only. */
    int32_t section_heads;
    int32_t bundle_tiles; /* with varlen: short tiles handed out at a time, at most; 1, 2, 4 or 8 */
    int32_t is_even;      /* tiles take about as long as each other: blocks take them in turn */
} sm90_schedule_t;

/* This is for kernels with pages. */
typedef struct sm90_paging {
    flash_divider_t by_page_size;
    int32_t box_keys;       /* keys that always lie in one page and in one block; 0: single keys */
    uint32_t k_token_bytes; /* from one token of the pool to the next */
    uint32_t v_token_bytes;
} sm90_paging_t;

/* Q and K have axes [batch, head, seq, d_head], V and O [batch, head, seq, d_head_v], innermost
 * last, or with varlen those that ptx/tma.cuh says. Their boxes are one panel of columns by
 * sm90_q_box_rows() (Q), B_c (K, V; in pages box_keys) or SM90_WARPGROUP_ROWS (O) rows: of one head
 * or, in Q and O, equal parts of each of the heads that share the tile.
 * Maps are unset (zeros) where a tensor has no elements, and for an O of fp32. */
typedef struct sm90_params {
    sm90_tensor_map_t q;
    sm90_tensor_map_t k;
    sm90_tensor_map_t v;
    sm90_tensor_map_t o;
    flash_params_t problem;
    sm90_entry_tokens_t entry_tokens; /* for kernels with varlen */
    sm90_schedule_t schedule;
    sm90_paging_t paging;
} sm90_params_t;

/* Returns the bytes of an element of the tiles of Q, K and V, and in memory of Q. */
SM90_CONSTANT int32_t sm90_element_bytes(const flash_config_t *c) {
    return dtype_size(flash_operand_dtype(c));
}

/* Returns the bytes of an element of O, unless it is fp32. */
SM90_CONSTANT int32_t sm90_o_element_bytes(const flash_config_t *c) {
    return flash_multiplies_e4m3(c) ? 2 : sm90_element_bytes(c);
}

/* Returns the bytes of an element of K and V in memory. */
SM90_CONSTANT int32_t sm90_kv_element_bytes(const flash_config_t *c) {
    return dtype_size(c->dtype);
}

SM90_CONSTANT int32_t sm90_chunk_elements(const flash_config_t *c) {
    return SM90_CHUNK_BYTES / sm90_element_bytes(c);
}

/* Returns the columns of V and O, where those of Q and K are d_head. */
SM90_CONSTANT int32_t sm90_d_head_v(const flash_config_t *c) {
    return c->d_head_v > 0 ? c->d_head_v : c->d_head;
}

/* Counts the columns of a panel. */
SM90_CONSTANT int32_t sm90_panel_elements(const flash_config_t *c) {
    return SM90_PANEL_BYTES / sm90_element_bytes(c);
}

/* Says whether two warpgroups share 64 rows, and each has half of the columns of O. */
SM90_CONSTANT int32_t sm90_shares_rows(const flash_config_t *c) {
    return c->arch == FLASH_ARCH_SM90_MLA || c->arch == FLASH_ARCH_SM90_WIDE;
}

/* Counts the warpgroups that multiply: one or, where they share, two for each 64 rows. One more
 * loads, and where K and V are converted in shared memory, another one does that
 * (load/convert_kv.cuh). */
SM90_CONSTANT int32_t sm90_consumers(const flash_config_t *c) {
    return c->B_r / SM90_WARPGROUP_ROWS * (sm90_shares_rows(c) ? 2 : 1);
}

SM90_CONSTANT int32_t sm90_block_threads(const flash_config_t *c) {
    return (sm90_consumers(c) + 1 + flash_converts(c)) * SM90_WARPGROUP_THREADS;
}

SM90_CONSTANT int32_t sm90_warps(const flash_config_t *c) {
    return sm90_block_threads(c) / SM90_WARP_THREADS;
}

/* Producer, converter and consumers share the 64K registers of a multiprocessor, in eights: what
 * loads needs few. */
SM90_CONSTANT int32_t sm90_producer_registers(const flash_config_t *c) {
    return flash_multiplies_e4m3(c) && c->arch == FLASH_ARCH_SM90 ? 24
           : sm90_consumers(c) == 3                               ? 32
                                                                  : 40;
}

SM90_CONSTANT int32_t sm90_converter_registers(void) {
    return 56;
}

SM90_CONSTANT int32_t sm90_consumer_registers(const flash_config_t *c) {
    return flash_converts(c)                                        ? 208
           : sm90_consumers(c) == 3                                 ? 160
           : flash_multiplies_e4m3(c) && c->arch == FLASH_ARCH_SM90 ? 240
                                                                    : 232;
}

/* Counts the registers that a consumer needs beside scores, probabilities, O and fragments of Q. In
 * decode kernels with bias the thread's two rows are of different heads. */
SM90_CONSTANT int32_t sm90_other_registers(const flash_config_t *c) {
    const int32_t has_bias = (c->features & FLASH_FEATURE_BIAS) != 0;
    return c->arch == FLASH_ARCH_SM90_DECODE && has_bias ? 64 : 40;
}

/* Counts the columns of O that P V of a block is computed of at a time, in accumulators of their
 * own, where products are of e4m3 (fp8/products.cuh). */
SM90_CONSTANT int32_t sm90_part_columns(const flash_config_t *c) {
    const int32_t columns = sm90_d_head_v(c);
    const int32_t of_decode = columns <= 64 ? columns : 64;
    const int32_t of_others = columns <= 128 ? columns : columns / 2;
    return c->arch == FLASH_ARCH_SM90_DECODE ? of_decode : of_others;
}

/* Counts the columns of a part with those of ones. */
SM90_CONSTANT int32_t sm90_second_level_columns(const flash_config_t *c) {
    return flash_multiplies_e4m3(c) ? sm90_part_columns(c) + SM90_ROWS_OF_ONES : 0;
}

/* Says whether consumers compute the scores of the next block beside the softmax of this one
 * (mma/look_ahead.cuh): where products are of e4m3, and there are registers for both. */
SM90_CONSTANT int32_t sm90_looks_ahead(const flash_config_t *c) {
    return flash_multiplies_e4m3(c) && c->arch == FLASH_ARCH_SM90 && sm90_d_head_v(c) <= 64;
}

/* The fragments of Q stay in registers where there is room: QK^T then reads a quarter less from
 * shared memory, and Q's slot is free for something else. Measured on an H200: +2 % for full, +4 to
 * 9 % for causal attention at d_head 128. */
SM90_CONSTANT int32_t sm90_q_in_registers(const flash_config_t *c) {
    const int32_t bytes = sm90_element_bytes(c);
    const int32_t of_o = sm90_d_head_v(c) + sm90_second_level_columns(c);
    return c->B_c / 2 + c->B_c * bytes / 8 + of_o / 2 + c->d_head * bytes / 8 <=
           sm90_consumer_registers(c) - sm90_other_registers(c);
}

/* A part of Q, with barriers of its own, has all rows of a tile; or, where Q stays in shared memory
 * until the tile is done, the rows of one consumer, which need not wait for the other's. Measured
 * on an H200, d_head 256: +2 % at 512 and 1,024 keys, 0 to -1 % at 8,192. */
SM90_CONSTANT int32_t sm90_q_part_rows(const flash_config_t *c) {
    return sm90_q_in_registers(c) ? c->B_r : SM90_WARPGROUP_ROWS;
}

SM90_CONSTANT int32_t sm90_panels(const flash_config_t *c, int32_t columns) {
    return (columns + sm90_panel_elements(c) - 1) / sm90_panel_elements(c);
}

/* Returns the bytes of a tile in shared memory: whole panels. */
SM90_CONSTANT int32_t sm90_tile_bytes(const flash_config_t *c, int32_t rows, int32_t columns) {
    return rows * sm90_panels(c, columns) * SM90_PANEL_BYTES;
}

SM90_CONSTANT int32_t sm90_q_bytes(const flash_config_t *c) {
    return sm90_tile_bytes(c, c->B_r, c->d_head);
}

SM90_CONSTANT int32_t sm90_k_bytes(const flash_config_t *c) {
    return sm90_tile_bytes(c, c->B_c, c->d_head);
}

/* V of e4m3 that is multiplied as such lies transposed: a row for each of its columns. In
 * SM90_DECODE a block of it lands in as much, rows of whole panels for its keys. */
SM90_CONSTANT int32_t sm90_v_bytes(const flash_config_t *c) {
    const int32_t rows_of_v = sm90_d_head_v(c) + SM90_ROWS_OF_ONES;
    const int32_t lands = c->arch == FLASH_ARCH_SM90_DECODE && rows_of_v < SM90_PANEL_BYTES;
    const int32_t rows = lands ? SM90_PANEL_BYTES : rows_of_v;
    const int32_t tiles = (rows * c->B_c + SM90_TILE_ALIGNMENT - 1) / SM90_TILE_ALIGNMENT;
    return flash_multiplies_e4m3(c) ? tiles * SM90_TILE_ALIGNMENT
                                    : sm90_tile_bytes(c, c->B_c, sm90_d_head_v(c));
}

/* Returns the bytes in which a block of V lies beside its stage, until it is transposed. */
SM90_CONSTANT int32_t sm90_v_landing_bytes(const flash_config_t *c) {
    return c->arch == FLASH_ARCH_SM90_DECODE && flash_multiplies_e4m3(c) ? sm90_v_bytes(c) : 0;
}

/* Counts the panels of O, unless it is fp32. */
SM90_CONSTANT int32_t sm90_o_panels(const flash_config_t *c) {
    return (sm90_d_head_v(c) * sm90_o_element_bytes(c) + SM90_PANEL_BYTES - 1) / SM90_PANEL_BYTES;
}

SM90_CONSTANT int32_t sm90_o_bytes(const flash_config_t *c) {
    return c->B_r * sm90_o_panels(c) * SM90_PANEL_BYTES;
}

/* Counts the panels in which a block of K or V of that number of columns arrives: fewer than it
 * fills, where it is converted. */
SM90_CONSTANT int32_t sm90_landing_panels(const flash_config_t *c, int32_t columns) {
    return (columns * sm90_kv_element_bytes(c) + SM90_PANEL_BYTES - 1) / SM90_PANEL_BYTES;
}

/* Returns the bytes of the state of a block, behind its tiles. */
SM90_CONSTANT int32_t sm90_state_bytes(const flash_config_t *c) {
    return SM90_STATE_BYTES + flash_converts(c) * SM90_CONVERSION_BYTES;
}

/* Returns the bytes that a block needs at least: Q, n_stages blocks of K and of V, and the block's
 * state. */
SM90_CONSTANT int32_t sm90_min_shared_bytes(const flash_config_t *c) {
    return sm90_q_bytes(c) +
           c->n_stages * (sm90_k_bytes(c) + sm90_v_bytes(c) + sm90_v_landing_bytes(c)) +
           sm90_state_bytes(c);
}

/* Says whether staged O has a slot of its own, which it has where there is room. Measured on an
 * H200, at d_head 64 and 512 keys causal: +3 % beside Q's slot, which is free if Q's fragments are
 * in registers, but the next Q then waits for O. */
SM90_CONSTANT int32_t sm90_has_o_slot(const flash_config_t *c) {
    return sm90_min_shared_bytes(c) + sm90_o_bytes(c) <= SM90_SHARED_BYTES_MAX;
}

/* Says whether the next tile's Q has a slot beside this tile's, which it has where there is still
 * room. */
SM90_CONSTANT int32_t sm90_has_second_q_slot(const flash_config_t *c) {
    return !sm90_q_in_registers(c) &&
           sm90_min_shared_bytes(c) + sm90_o_bytes(c) + sm90_q_bytes(c) <= SM90_SHARED_BYTES_MAX;
}

/* Says whether V has one stage more than K, which it has where there is room for a block of keys,
 * but for no tile of O. O then leaves through stages of V, and the next tile's first block of V
 * need not wait for it. Measured on an H200, at d_head 256 and 512 or 1,024 keys: +3 to 7 %
 * full, +2 to 3 % causal. */
SM90_CONSTANT int32_t sm90_has_spare_v_stage(const flash_config_t *c) {
    return !sm90_q_in_registers(c) && !sm90_has_o_slot(c) &&
           sm90_min_shared_bytes(c) + sm90_v_bytes(c) <= SM90_SHARED_BYTES_MAX;
}

SM90_CONSTANT int32_t sm90_v_stages(const flash_config_t *c) {
    return c->n_stages + sm90_has_spare_v_stage(c);
}

SM90_CONSTANT int32_t sm90_shared_bytes(const flash_config_t *c) {
    return sm90_min_shared_bytes(c) + sm90_has_o_slot(c) * sm90_o_bytes(c) +
           sm90_has_second_q_slot(c) * sm90_q_bytes(c) +
           sm90_has_spare_v_stage(c) * sm90_v_bytes(c);
}

/* Says whether O is fp32, which is stored from registers; TMA is for O of 16 bits. */
SM90_CONSTANT int32_t sm90_has_fp32_o(const flash_params_t *p) {
    return p->o_dtype == FLASH_DTYPE_FP32;
}

SM90_CONSTANT int32_t sm90_has_varlen(const flash_config_t *c) {
    return (c->features & FLASH_FEATURE_VARLEN) != 0;
}

SM90_CONSTANT int32_t sm90_has_pages(const flash_config_t *c) {
    return (c->features & FLASH_FEATURE_PAGED) != 0;
}

/* Says whether a kernel hides keys in holes of a page table: where it adds a bias, and in the
 * families that share rows, where it converts K, which rows with bias do not. */
SM90_CONSTANT int32_t sm90_hides_holes(const flash_config_t *c) {
    const int32_t has_bias = (c->features & FLASH_FEATURE_BIAS) != 0;
    return sm90_has_pages(c) && (has_bias || (sm90_shares_rows(c) && flash_converts(c)));
}

/* ---- Masks that leave out blocks, and do nothing else ---- */

/* Says whether the kernel has bias and a fixed reference: it serves masks of blocks that show a
 * whole block of keys to a whole tile, or nothing of it to any row, and no other bias. */
SM90_CONSTANT int32_t sm90_counts_blocks(const flash_config_t *c) {
    return c->arch == FLASH_ARCH_SM90 && (c->features & FLASH_FEATURE_BIAS) != 0 &&
           c->fixed_reference;
}

/* ---- Query heads that share tiles ---- */

enum { SM90_MOST_PACK_SHIFT = 2 /* so that a warp's sixteen rows are of one head */ };

/* Says whether the kernel's tiles may have rows of several query heads of a group (tile.cuh): where
 * sequences are short, or windows narrow, tiles of one head would compute mostly what nobody
 * needs. */
SM90_CONSTANT int32_t sm90_packs_heads(const flash_config_t *c) {
    return c->arch == FLASH_ARCH_SM90 && (c->features & FLASH_FEATURE_BIAS) == 0 &&
           (c->features & (FLASH_FEATURE_VARLEN | FLASH_FEATURE_WINDOW)) != 0;
}

SM90_CONSTANT int32_t sm90_pack_shift(const flash_config_t *c, const flash_params_t *p) {
    return sm90_packs_heads(c) ? p->pack_shift : 0;
}

/* Counts the rows of a box of Q. */
SM90_CONSTANT int32_t sm90_q_box_rows(const flash_config_t *c) {
    return sm90_packs_heads(c) ? SM90_WARPGROUP_ROWS : sm90_q_part_rows(c);
}

/* Counts the query heads of an entry; those that share tiles count as one. */
SM90_CONSTANT int32_t sm90_heads(const flash_config_t *c, const flash_params_t *p) {
    return p->n_heads >> sm90_pack_shift(c, p);
}

/* Counts the tiles of a query head, or of all heads that share them. */
SM90_CONSTANT int64_t sm90_tiles_of_head(const flash_config_t *c, const flash_params_t *p,
                                         int32_t seqlen_q) {
    return (((int64_t)seqlen_q << sm90_pack_shift(c, p)) + c->B_r - 1) / c->B_r;
}

SM90_CONSTANT int64_t sm90_tiles_of_entry(const flash_config_t *c, const flash_params_t *p,
                                          int32_t seqlen_q) {
    return sm90_tiles_of_head(c, p, seqlen_q) * sm90_heads(c, p);
}

/* Counts the tiles of a launch; with varlen, the most that it can have. */
SM90_CONSTANT int64_t sm90_tiles(const flash_config_t *c, const flash_params_t *p) {
    return sm90_tiles_of_entry(c, p, p->seqlen_q) * p->batch;
}

/* A team takes its heads one after the other, and the tiles of each in rows of one tile per block.
 * Rows run forth and back, and in every other head the other way round, so that long and short
 * tiles meet every block alike. Two blocks, and heads of four tiles, 0 the longest:
 *
 *               head A      head B
 *     block 0   A0  A3      B1  B2
 *     block 1   A1  A2      B0  B3
 *     row        0   1       2   3
 */
typedef struct sm90_team_row {
    uint32_t head; /* head of the row's first tile, counted among the team's heads */
    uint32_t tile; /* number of the row's first tile in that head */
    uint32_t back; /* 1: the last block of the team takes the first tile */
} sm90_team_row_t;

/* Returns the next row. A team has at most as many blocks as a head has tiles. */
SM90_CONSTANT sm90_team_row_t sm90_next_row(sm90_team_row_t row, uint32_t tiles_of_head,
                                            uint32_t team_blocks) {
    const uint32_t rows_of_head = tiles_of_head / team_blocks;
    row.tile += team_blocks;
    row.back ^= 1;
    if (row.tile >= tiles_of_head) {
        row.tile -= tiles_of_head;
        row.head += 1;
        row.back ^= rows_of_head % 2 == 0;
    }
    return row;
}

/* Returns the tile of the team's block `rank`, as its number in head row.head; a number beyond that
 * head's tiles goes on in the next head. */
SM90_CONSTANT uint32_t sm90_tile_in_row(sm90_team_row_t row, uint32_t team_blocks, uint32_t rank) {
    return row.tile + (row.back ? team_blocks - 1 - rank : rank);
}

SM90_CONSTANT int64_t sm90_max_blocks(const flash_config_t *c) {
    return c->longest_first ? SM90_MAX_BLOCKS : INT32_MAX;
}

/* ---- Rules among fields (common/rules.h) ---- */

/* Warps are those of the warpgroups that multiply, load and convert. */
#define SM90_WARP_RULES(X, c)                                                                      \
    X((c)->n_warps == sm90_warps(c),                                                               \
      "n_warps is %d: %d with B_r %d and this dtype, of which %d multiply", (c)->n_warps,          \
      sm90_warps(c), (c)->B_r, sm90_consumers(c) * SM90_WARPGROUP_THREADS / SM90_WARP_THREADS)

/* These are common to the kernels whose consumers have rows of their own. */
#define SM90_CONSUMER_RULES(X, c)                                                                  \
    X(!(c)->ping_pong || sm90_consumers(c) > 1,                                                    \
      "ping_pong is 1: it needs a B_r of %d or more, which is %d", 2 * SM90_WARPGROUP_ROWS,        \
      (c)->B_r)                                                                                    \
    X(sm90_shared_bytes(c) <= SM90_SHARED_BYTES_MAX,                                               \
      "d_head %d, d_head_v %d, B_r %d, B_c %d and n_stages %d take %d bytes of shared memory: at " \
      "most %d",                                                                                   \
      (c)->d_head, sm90_d_head_v(c), (c)->B_r, (c)->B_c, (c)->n_stages, sm90_shared_bytes(c),      \
      SM90_SHARED_BYTES_MAX)

/* The converter is written for blocks of these shapes. */
#define SM90_CONVERTER_RULES(X, c)                                                                 \
    X(!flash_converts(c) || (c)->d_head == 64 || (c)->d_head == 128 || (c)->d_head == 256,         \
      "d_head is %d: with this dtype it is 64, 128 or 256", (c)->d_head)                           \
    X(!flash_converts(c) || (c)->B_c % SM90_CONVERTED_KEYS == 0,                                   \
      "B_c is %d: with this dtype it is a multiple of %d", (c)->B_c, SM90_CONVERTED_KEYS)

/* These are for rows that multiply e4m3 as such. */
#define SM90_E4M3_RULES(X, c)                                                                      \
    X(!flash_multiplies_e4m3(c) || (c)->B_c == 128,                                                \
      "B_c is %d: where products are of e4m3, it is 128", (c)->B_c)                                \
    X(!flash_multiplies_e4m3(c) || (c)->overlap == (sm90_d_head_v(c) <= 128),                      \
      "overlap is %d and d_head_v %d: where products are of e4m3, it is 1 up to 128, and 0 above", \
      (c)->overlap, sm90_d_head_v(c))                                                              \
    X(!flash_multiplies_e4m3(c) || !(c)->fixed_reference,                                          \
      "fixed_reference is 1: where products are of e4m3, it is 0")                                 \
    X(!flash_multiplies_e4m3(c) || !sm90_has_pages(c),                                             \
      "operand_dtype is e4m3: no row with paged has it")                                           \
    X(!flash_multiplies_e4m3(c) || ((c)->features & FLASH_FEATURE_BIAS) == 0,                      \
      "operand_dtype is e4m3: no row with bias has it")

#define SM90_FWD_RULES(X, c)                                                                       \
    X((c)->d_head_v == 0 || (c)->d_head == SM90_WIDER_D_HEAD,                                      \
      "d_head_v is %d: it needs a d_head of %d, which is %d", (c)->d_head_v, SM90_WIDER_D_HEAD,    \
      (c)->d_head)                                                                                 \
    SM90_WARP_RULES(X, c)                                                                          \
    X(!(c)->ping_pong || (c)->overlap || flash_multiplies_e4m3(c),                                 \
      "ping_pong is 1: it needs overlap, which is 0")                                              \
    SM90_CONVERTER_RULES(X, c)                                                                     \
    SM90_E4M3_RULES(X, c)                                                                          \
    X(!sm90_has_varlen(c) || (c)->longest_first,                                                   \
      "features has varlen: it needs longest_first, which is 0")                                   \
    X(!sm90_has_pages(c) || sm90_has_varlen(c),                                                    \
      "features has paged: it needs varlen, which is not there")                                   \
    X(!sm90_counts_blocks(c) || (c)->features == (FLASH_FEATURE_VARLEN | FLASH_FEATURE_BIAS),      \
      "features has bias, and fixed_reference is 1: it can be varlen+bias alone")                  \
    SM90_CONSUMER_RULES(X, c)

#endif
