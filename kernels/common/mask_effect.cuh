/*
 * A warp finds out what a mask does to the scores of a block: whether it shows any key to any row,
 * and whether it changes any score. Kernels leave out blocks that are hidden, and the mask where it
 * changes nothing.
 *
 * Numbers are read in chunks of 16 bytes where they are neighbours and aligned. A mask that shows a
 * key and changes a score is known after its first rows. One that hides all of a block, or nothing,
 * is read whole.
 */
#ifndef FLASH_KERNELS_COMMON_MASK_EFFECT_CUH
#define FLASH_KERNELS_COMMON_MASK_EFFECT_CUH

#include "common/bias.h"
#include "common/dtype.cuh"

/* Bits of what a mask does to some scores. */
enum { MASK_SHOWS = 1 /* some key to some row */, MASK_CHANGES = 2 /* some score */ };

/* A block of keys that a kernel visits: twice its number, and 1 more if the mask changes scores.
 * The larger kernels have no register left for a second value. */
typedef struct shown_block {
    int32_t code;
} shown_block_t;

static __device__ __forceinline__ shown_block_t shown_block_of(int32_t number, bool mask_changes) {
    return shown_block_t{2 * number + mask_changes};
}

static __device__ __forceinline__ int32_t block_index(const shown_block_t &block) {
    return block.code >> 1;
}

static __device__ __forceinline__ bool mask_changes(const shown_block_t &block) {
    return block.code & 1;
}

/* Consecutive rows of a mask, and the columns of a range of keys that it covers. */
typedef struct mask_part {
    int64_t at; /* elements, or words, from the mask's first one to the first row */
    int32_t n_rows;
    int32_t begin; /* columns */
    int32_t end;
} mask_part_t;

/* A lane's share: bits are set in `shown` if it has seen what is not hidden, and in `changed` if it
 * has seen what changes a score. */
typedef struct mask_findings {
    uint32_t shown;
    uint32_t changed;
} mask_findings_t;

/* Returns what the lanes of the warp have found together, as bits. */
static __device__ __forceinline__ int mask_effect_of(const mask_findings_t &found) {
    const int shows = __any_sync(0xffffffffu, found.shown != 0) ? MASK_SHOWS : 0;
    const int changes = __any_sync(0xffffffffu, found.changed != 0) ? MASK_CHANGES : 0;
    return shows | changes;
}

/* ---- Bits: a word of eight rows at a time to every lane ---- */

/* Returns the bits of a word whose columns are in the part. */
static __device__ __forceinline__ uint32_t bits_of_part(const mask_part_t &part, int32_t word) {
    const int32_t begin = part.begin - word * 32, end = part.end - word * 32;
    const uint32_t from = begin > 0 ? 0xffffffffu << begin : 0xffffffffu;
    return from & (end < 32 ? ~(0xffffffffu << end) : 0xffffffffu);
}

static __device__ __forceinline__ int effect_of_bits(const flash_bias_t &bias,
                                                     const mask_part_t &part) {
    constexpr int words_at_once = 4, rows_at_once = 8;
    const int lane = threadIdx.x % 32;
    mask_findings_t found = {0, 0};
    for (int32_t word = part.begin / 32 + lane % words_at_once; word <= (part.end - 1) / 32;
         word += words_at_once) {
        const uint32_t bits = bits_of_part(part, word);
        const uint32_t *words = static_cast<const uint32_t *>(bias.mask) + part.at + word;
#pragma unroll 8
        for (int32_t row = lane / words_at_once; row < part.n_rows; row += rows_at_once) {
            const uint32_t x = words[row * bias.stride_query];
            found.shown |= x & bits;
            found.changed |= ~x & bits;
        }
    }
    __syncwarp();
    return mask_effect_of(found);
}

/* ---- Numbers: a chunk of neighbouring columns at a time to every lane ---- */

template <int DTYPE> constexpr int mask_chunk_elements = 16 / dtype_size(DTYPE);

/* The bits of -infinity in each element of a word, and all bits but the signs. */
template <int DTYPE>
constexpr uint32_t minus_infinities = DTYPE == FLASH_DTYPE_FP32   ? 0xff800000u
                                      : DTYPE == FLASH_DTYPE_FP16 ? 0xfc00fc00u
                                                                  : 0xff80ff80u;
template <int DTYPE>
constexpr uint32_t magnitudes = DTYPE == FLASH_DTYPE_FP32 ? 0x7fffffffu : 0x7fff7fffu;

template <int DTYPE>
static __device__ __forceinline__ void look_at_word(mask_findings_t &found, uint32_t word) {
    found.shown |= word ^ minus_infinities<DTYPE>;
    found.changed |= word & magnitudes<DTYPE>;
}

template <int DTYPE>
static __device__ __forceinline__ void look_at_chunk(mask_findings_t &found, const uint4 &chunk) {
    look_at_word<DTYPE>(found, chunk.x);
    look_at_word<DTYPE>(found, chunk.y);
    look_at_word<DTYPE>(found, chunk.z);
    look_at_word<DTYPE>(found, chunk.w);
}

/* How a warp goes through the rows of a part of at most KEYS columns. */
template <int DTYPE, int KEYS> struct mask_walk {
    static constexpr int row_chunks = KEYS / mask_chunk_elements<DTYPE>;
    static constexpr int rows_at_once = 32 / row_chunks;
    static constexpr int steps = 4; /* of a round, whose loads are under way together */
    static_assert(row_chunks > 0 && 32 % row_chunks == 0, "a warp has whole rows");
};

/* Says whether the part consists of whole chunks, which are neighbours and aligned. */
template <int DTYPE>
static __device__ __forceinline__ bool has_chunks(const flash_bias_t &bias,
                                                  const mask_part_t &part) {
    const uint64_t elements = (uint64_t)(part.at + part.begin) | (uint64_t)bias.stride_query |
                              (uint64_t)(part.end - part.begin);
    return bias.stride_key == 1 && elements % mask_chunk_elements<DTYPE> == 0 &&
           (uint64_t)bias.mask % 16 == 0;
}

/* Looks at a round of rows from `row` on, chunk by chunk. There is no branch between the loads: a
 * lane beyond the part's end looks at its last chunk or row again. */
template <int DTYPE, int KEYS>
static __device__ __forceinline__ void
look_at_chunks(mask_findings_t &found, const flash_bias_t &bias, const mask_part_t &part,
               int32_t column, int32_t row) {
    typedef mask_walk<DTYPE, KEYS> walk;
    typedef typename dtype_traits<DTYPE>::element element;
    const element *from = static_cast<const element *>(bias.mask) + part.at +
                          min(column, part.end - mask_chunk_elements<DTYPE>);
    uint4 chunk[walk::steps];
#pragma unroll
    for (int i = 0; i < walk::steps; ++i)
        chunk[i] = *reinterpret_cast<const uint4 *>(
            from + min(row + i * walk::rows_at_once, part.n_rows - 1) * bias.stride_query);
#pragma unroll
    for (int i = 0; i < walk::steps; ++i)
        look_at_chunk<DTYPE>(found, chunk[i]);
}

/* Does the same element by element. */
template <int DTYPE, int KEYS>
static __device__ __forceinline__ void
look_at_elements(mask_findings_t &found, const flash_bias_t &bias, const mask_part_t &part,
                 int32_t column, int32_t row) {
    typedef mask_walk<DTYPE, KEYS> walk;
#pragma unroll 1
    for (int i = 0; i < walk::steps; ++i, row += walk::rows_at_once)
#pragma unroll
        for (int j = 0; j < mask_chunk_elements<DTYPE>; ++j)
            if (row < part.n_rows && column + j < part.end) {
                const int64_t at = row * bias.stride_query + (column + j) * bias.stride_key;
                const float number = dtype_load<DTYPE>(bias.mask, part.at + at);
                found.shown |= number != -INFINITY;
                found.changed |= number != 0.0f;
            }
}

/* A mask that is seen to show a key and to change a score is read no further. */
template <int DTYPE, int KEYS>
static __device__ __forceinline__ int effect_of_numbers(const flash_bias_t &bias,
                                                        const mask_part_t &part) {
    typedef mask_walk<DTYPE, KEYS> walk;
    const int32_t lane = threadIdx.x % 32, first_row = lane / walk::row_chunks;
    const int32_t column = part.begin + lane % walk::row_chunks * mask_chunk_elements<DTYPE>;
    const bool whole = has_chunks<DTYPE>(bias, part);
    mask_findings_t found = {0, 0};
    int effect = 0;
    for (int32_t row = 0; row < part.n_rows && effect != (MASK_SHOWS | MASK_CHANGES);
         row += walk::steps * walk::rows_at_once) {
        if (whole)
            look_at_chunks<DTYPE, KEYS>(found, bias, part, column, row + first_row);
        else
            look_at_elements<DTYPE, KEYS>(found, bias, part, column, row + first_row);
        __syncwarp();
        effect = mask_effect_of(found);
    }
    return effect;
}

/* ---- Blocks: few words, which every thread that asks looks at alone ---- */

static __device__ __forceinline__ int effect_of_blocks(const flash_bias_t &bias,
                                                       const mask_part_t &part, int32_t query) {
    const uint32_t queries = (uint32_t)bias.block.queries, keys = (uint32_t)bias.block.keys;
    const uint32_t last_query = (uint32_t)query + (uint32_t)part.n_rows - 1;
    const int32_t n_rows = (int32_t)(last_query / queries - (uint32_t)query / queries) + 1;
    const mask_part_t blocks = {part.at, n_rows, (int32_t)((uint32_t)part.begin / keys),
                                (int32_t)((uint32_t)(part.end - 1) / keys) + 1};
    mask_findings_t found = {0, 0};
    for (int32_t word = blocks.begin / 32; word <= (blocks.end - 1) / 32; ++word) {
        const uint32_t bits = bits_of_part(blocks, word);
        const uint32_t *words = static_cast<const uint32_t *>(bias.mask) + blocks.at + word;
#pragma unroll 1
        for (int32_t row = 0; row < n_rows; ++row) {
            const uint32_t x = words[row * bias.stride_query];
            found.shown |= x & bits;
            found.changed |= ~x & bits;
        }
    }
    return (found.shown != 0 ? MASK_SHOWS : 0) | (found.changed != 0 ? MASK_CHANGES : 0);
}

/* ---- Any mask ---- */

/* Returns what the mask does to the scores of n_rows rows from the given one on, that of `query`,
 * and a range of keys, at most KEYS, as bits. All lanes of a warp call it together; with
 * FLASH_MASK_BLOCKS each may have another range. */
template <int KEYS>
static __device__ __forceinline__ int mask_effect(const flash_bias_t &bias,
                                                  const flash_bias_row_t &row, int32_t query,
                                                  int32_t n_rows, const flash_range_t &keys) {
    DTYPES_KNOWN(7); /* numbers are of no other type */
    const int64_t begin = (int64_t)keys.begin - row.first_key, end = begin + keys.end - keys.begin;
    const mask_part_t part = {row.at, bias.stride_query == 0 ? 1 : n_rows,
                              (int32_t)(begin > 0 ? begin : 0),
                              (int32_t)(end < bias.n_keys ? end : bias.n_keys)};
    if (bias.mask == NULL || part.begin >= part.end)
        return MASK_SHOWS;
    const int beside = begin < part.begin || end > part.end ? MASK_SHOWS : 0;
    if (bias.kind == FLASH_MASK_BLOCKS)
        return beside | effect_of_blocks(bias, part, query);
    if (bias.kind == FLASH_MASK_BITS)
        return beside | effect_of_bits(bias, part);
    if (bias.dtype == FLASH_DTYPE_FP16)
        return beside | effect_of_numbers<FLASH_DTYPE_FP16, KEYS>(bias, part);
    if (bias.dtype == FLASH_DTYPE_BF16)
        return beside | effect_of_numbers<FLASH_DTYPE_BF16, KEYS>(bias, part);
    return beside | effect_of_numbers<FLASH_DTYPE_FP32, KEYS>(bias, part);
}

#endif
