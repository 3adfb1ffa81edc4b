/*
 * Blocks of rows are copied from global to shared memory: by cp.async, or through registers, which
 * also serves rows at any alignment. Rows past the end of the sequence and columns past d_head (of
 * V: d_head_v) become zeros; memory there is never read.
 *
 * A thread copies chunk (threadIdx.x % panel_chunks) of each panel, of every pass_rows-th row.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_LOAD_CUH
#define FLASH_KERNELS_SM80_FORWARD_LOAD_CUH

#include "common/ptx/async_copy.cuh"
#include "common/ptx/e4m3.cuh"
#include "common/ptx/opaque.cuh"
#include "common/ptx/shared_memory.cuh"
#include "sm80/forward/layout.cuh"

/* Returns the row and the column of a thread's first chunk in every block that it helps to copy. */
template <flash_config_t C> static __device__ __forceinline__ int copy_row() {
    return threadIdx.x / panel_chunks<C>;
}

template <flash_config_t C> static __device__ __forceinline__ int copy_column() {
    return threadIdx.x % panel_chunks<C> * chunk_elements<C>;
}

template <flash_config_t C> constexpr int panel_elements = panel_chunks<C> *chunk_elements<C>;
template <flash_config_t C> constexpr int panel_bytes = panel_chunks<C> *SM80_CHUNK_BYTES;

/* Elements in global memory have BYTES: 1 for K and V of e4m3, which become fp16. A chunk has as
 * many elements as 16 bytes of shared memory. */
template <flash_config_t C, int BYTES> constexpr int global_chunk_bytes = chunk_elements<C> *BYTES;
template <flash_config_t C, int BYTES>
constexpr int global_panel_bytes = panel_chunks<C> *global_chunk_bytes<C, BYTES>;

/* Rows of one head of one sequence in global memory, from a row and a column on. */
typedef struct row_source {
    const char *pointer;
    int64_t row_stride; /* bytes */
    int32_t column;     /* the first one */
    int32_t d_head;     /* columns that exist */
    bool aligned;       /* whole, aligned chunks; always true with async_copy */
} row_source_t;

template <flash_config_t C, int BYTES = element_bytes<C>>
static __device__ __forceinline__ bool chunks_aligned(const char *head_data, int64_t row_stride,
                                                      int32_t d_head) {
    return ((uint64_t)head_data | (uint64_t)row_stride | (uint64_t)d_head * BYTES) %
               global_chunk_bytes<C, BYTES> ==
           0;
}

template <flash_config_t C, int BYTES>
static __device__ __forceinline__ row_source_t make_row_source(const void *data,
                                                               const flash_strides_t &stride,
                                                               int32_t d_head, int64_t batch_index,
                                                               int64_t head, int64_t row,
                                                               int32_t column) {
    const char *head_data =
        (const char *)data + (batch_index * stride.batch + head * stride.head) * BYTES;
    row_source_t source;
    source.row_stride = stride.seq * BYTES;
    source.column = column;
    source.d_head = d_head;
    source.aligned = C.async_copy || chunks_aligned<C, BYTES>(head_data, source.row_stride, d_head);
    source.pointer = head_data + row * source.row_stride + column * BYTES;
    return source;
}

/* Counts the columns that exist from the thread's chunk of a panel on; may be negative. */
template <flash_config_t C, typename source_t>
static __device__ __forceinline__ int32_t existing_columns(const source_t &source, int panel) {
    return source.d_head - source.column - panel * panel_elements<C>;
}

/* Says whether the thread's chunk of a panel has columns. The thread's column is the same in K and
 * V, and their bounds need no registers. The column seems to change, or else the compiler keeps the
 * answers for K and for V over the main loop, and spills other registers. */
template <flash_config_t C>
static __device__ __forceinline__ bool has_columns(row_source_t source, int panel) {
    source.column = (int32_t)opaque((uint32_t)source.column);
    return existing_columns<C>(source, panel) > 0;
}

/* Returns the rows of a block that begins at `row`, from the thread's chunk on. */
template <flash_config_t C, int BYTES>
static __device__ __forceinline__ row_source_t make_copy_source(const void *data,
                                                                const flash_strides_t &stride,
                                                                int32_t d_head, int64_t batch_index,
                                                                int64_t head, int64_t row) {
    return make_row_source<C, BYTES>(data, stride, d_head, batch_index, head, row + copy_row<C>(),
                                     copy_column<C>());
}

/* Returns where the thread's next pass begins. Each address is computed from the one before it. */
template <flash_config_t C>
static __device__ __forceinline__ const char *next_pass(const char *global,
                                                        const row_source_t &source) {
    return opaque(global + pass_rows<C> * source.row_stride);
}

template <int ROWS> static __device__ __forceinline__ void step_back(row_source_t &source) {
    source.pointer -= ROWS * source.row_stride;
}

/* Steps back over n blocks. */
template <int ROWS>
static __device__ __forceinline__ void step_over(row_source_t &source, int32_t n) {
    source.pointer -= n * ROWS * source.row_stride;
}

/* Loads the existing elements of one chunk one by one; the rest become zeros. */
template <flash_config_t C>
static __device__ __forceinline__ uint4 load_elements(const char *global, int columns) {
    uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < chunk_elements<C>; ++i)
        if (i < columns)
            word[i / word_elements<C>] |= (uint32_t)((const element_bits<C> *)global)[i]
                                          << i % word_elements<C> * element_bytes<C> * 8;
    return uint4{word[0], word[1], word[2], word[3]};
}

/* Does the same as load_elements() for e4m3. */
static __device__ __forceinline__ uint2 load_bytes(const char *global, int columns) {
    uint32_t word[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (i < columns)
            word[i / 4] |= (uint32_t)((const uint8_t *)global)[i] << i % 4 * 8;
    return uint2{word[0], word[1]};
}

/* Loads a chunk in the form that it has in shared memory. */
template <flash_config_t C, int BYTES>
static __device__ __forceinline__ uint4 load_chunk(const row_source_t &source, const char *global,
                                                   int columns) {
    if (columns <= 0)
        return uint4{0, 0, 0, 0};
    if constexpr (BYTES == 1) {
        const uint2 bytes = source.aligned ? *(const uint2 *)global : load_bytes(global, columns);
        const e4m3_pairs_t a = fp16_from_e4m3(bytes.x), b = fp16_from_e4m3(bytes.y);
        return uint4{a.low, a.high, b.low, b.high};
    } else {
        return source.aligned ? *(const uint4 *)global : load_elements<C>(global, columns);
    }
}

template <flash_config_t C, int ROWS, int BYTES>
static __device__ __forceinline__ void
copy_through_registers(uint32_t shared, const row_source_t &source, int32_t rows) {
    const uint32_t target = shared + chunk_offset<C>(copy_row<C>(), threadIdx.x % panel_chunks<C>);
    const char *global = source.pointer;
#pragma unroll 2
    for (int row = 0; row < ROWS; row += pass_rows<C>) {
        const bool exists = copy_row<C>() + row < rows;
        uint4 chunk[row_panels<C>];
#pragma unroll
        for (int panel = 0; panel < row_panels<C>; ++panel)
            chunk[panel] =
                load_chunk<C, BYTES>(source, global + panel * global_panel_bytes<C, BYTES>,
                                     exists ? existing_columns<C>(source, panel) : 0);
#pragma unroll
        for (int panel = 0; panel < row_panels<C>; ++panel)
            shared_store(target + row * row_bytes<C> + panel * panel_bytes<C>, chunk[panel]);
        global = next_pass<C>(global, source);
    }
}

/* Starts to copy a block. With PARTIAL rows may be missing, and zeros are written to missing
 * columns too. Later, whole blocks leave these zeros as they are. */
template <flash_config_t C, int ROWS, bool PARTIAL>
static __device__ __forceinline__ void
copy_asynchronously(uint32_t shared, const row_source_t &source, int32_t rows) {
    const uint32_t target = shared + chunk_offset<C>(copy_row<C>(), threadIdx.x % panel_chunks<C>);
    const char *global = source.pointer;
#pragma unroll
    for (int row = 0; row < ROWS; row += pass_rows<C>) {
#pragma unroll
        for (int panel = 0; panel < row_panels<C>; ++panel) {
            const uint32_t to = target + row * row_bytes<C> + panel * panel_bytes<C>;
            const char *from = global + panel * panel_bytes<C>;
            const bool column_exists = has_columns<C>(source, panel);
            if constexpr (PARTIAL)
                async_copy_or_zero(to, from, column_exists && copy_row<C>() + row < rows);
            else
                async_copy_if(to, from, column_exists);
        }
        global = next_pass<C>(global, source);
    }
}

/* Copies a block of ROWS rows, of which `rows` exist; with async_copy it only starts to. */
template <flash_config_t C, int ROWS, bool PARTIAL, int BYTES>
static __device__ __forceinline__ void load_block(uint32_t shared, const row_source_t &source,
                                                  int32_t rows) {
    if constexpr (C.async_copy)
        copy_asynchronously<C, ROWS, PARTIAL>(shared, source, rows);
    else
        copy_through_registers<C, ROWS, BYTES>(shared, source, rows);
}

template <flash_config_t C> static __device__ __forceinline__ void wait_for_loads() {
    if constexpr (C.async_copy)
        async_copy_wait_all();
}

#endif
