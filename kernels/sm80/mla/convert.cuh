/*
 * Keys of e4m3 land as bytes, n_stages steps ahead, and become fp16 one step before they are
 * multiplied. A thread converts the chunks that it has itself copied, from a place that no other
 * thread touches. So no barrier and no warp is waited for, only the thread's own copies.
 *
 * A warp converts the panels whose columns of V it multiplies, and no other warp reads these after
 * their scores are complete. So it converts step n + 2 over step n as soon as it has multiplied by
 * V of step n, and two stages are enough. The last panel belongs only to K, and is free by then.
 *
 * In a pass a warp has eight keys, of which four lanes each have the 64 bytes of a panel. Accesses
 * of shared memory are without bank conflicts: landed chunks lie in the order of the threads, and
 * eight lanes store to different places of the lines of two neighbouring keys.
 *
 * Latent tokens become bf16, and have a last panel that is bf16 already (mla/latent.cuh).
 */
#ifndef FLASH_KERNELS_SM80_MLA_CONVERT_CUH
#define FLASH_KERNELS_SM80_MLA_CONVERT_CUH

#include "common/ptx/async_copy.cuh"
#include "common/ptx/e4m3.cuh"
#include "common/ptx/shared_memory.cuh"
#include "sm80/mla/key_source.cuh"
#include "sm80/mla/latent.cuh"

/* A thread knows this of the landings, of which it converts the oldest next. */
typedef struct landing_ring {
    uint32_t first;
    uint32_t oldest;
    int32_t id; /* of the page of the lane's key in the step that is copied next, or the slot */
} landing_ring_t;

/* ---- Copies ---- */

/* Loads the id of the page of the lane's key: a warp has those of all keys of a step. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t fetch_lane_id(const sm80_decode_params_t &params,
                                                        const key_source_t &source,
                                                        int32_t step_key, int32_t end) {
    if constexpr (has_pages<C>)
        return fetch_id(source, params, step_key + lane_number() % C.B_c, end);
    return 0;
}

/* Each lane knows where one key of a step lies, and a warp those of all. */
typedef struct lane_keys {
    long long offset; /* bytes from source.head to the lane's key; 0 if there is none */
    uint32_t exist;   /* bit n: key n of the step */
} lane_keys_t;

/* Finds the keys of the step that begins with one. id: of the page of the lane's key; end: of the
 * walk. */
template <flash_config_t C, key_tensor T>
static __device__ __forceinline__ lane_keys_t find_lane_keys(const key_source_t &source,
                                                             const sm80_decode_params_t &params,
                                                             int32_t step_key, int32_t end,
                                                             int32_t id) {
    const int32_t key = step_key + lane_number() % C.B_c;
    const long long offset = key_offset<C, T>(source, params, key, end, id);
    return {max(offset, 0ll), __ballot_sync(0xffffffffu, offset >= 0)};
}

/* Starts to copy the step that begins with a key to a landing. id: of the page of the lane's key;
 * end: of the walk. */
template <flash_config_t C, key_tensor T>
static __device__ __forceinline__ void copy_step(uint32_t landing, const key_source_t &source,
                                                 const sm80_decode_params_t &params,
                                                 int32_t step_key, int32_t end, int32_t id) {
    const int32_t column = pass_chunk() * byte_chunk_columns; /* of a panel */
    const int32_t columns = tensor_columns<T>(params.attention);
    const lane_keys_t keys = find_lane_keys<C, T>(source, params, step_key, end, id);
#pragma unroll
    for (int pass = 0; pass < passes<C>; ++pass) {
        const int key = pass * pass_keys + pass_key();
        const char *const from = source.head + __shfl_sync(0xffffffffu, keys.offset, key);
        const bool exists = (keys.exist >> key & 1) != 0;
#pragma unroll
        for (int n = 0; n < warp_panels<C>; ++n) {
            const int32_t own = warp_number() * warp_columns<C> + n * panel_columns + column;
            async_copy_or_zero(landed_chunk<C>(landing, pass * warp_panels<C> + n), from + own,
                               exists && own < columns);
        }
        if constexpr (is_latent<C>)
            copy_scale<C>(landing, key, from, exists);
        else if (v_in_k<C> && warp_number() == pass)
            async_copy_or_zero(landed_chunk<C>(landing, own_chunks<C>), from + C.d_head_v + column,
                               exists && C.d_head_v + column < columns);
    }
    if constexpr (is_latent<C>) {
        const int key = rotary_key();
        const char *const from = source.head + __shfl_sync(0xffffffffu, keys.offset, key % C.B_c);
        copy_rotary<C>(landing, key, from, (keys.exist >> key % C.B_c & 1) != 0);
    }
}

/* Starts to copy the first steps to all landings; a step that the walk does not have makes a group
 * of no copies. All page ids are fetched at the same time, with those of the step after them. */
template <flash_config_t C>
static __device__ __forceinline__ void
fill_landings(landing_ring_t &ring, const sm80_decode_params_t &params, const key_source_t &source,
              const key_walk_t &walk) {
    int32_t ids[C.n_stages];
#pragma unroll
    for (int i = 0; i < C.n_stages; ++i)
        ids[i] = fetch_lane_id<C>(params, source, walk.begin + i * C.B_c, walk.end);
    ring.id = fetch_lane_id<C>(params, source, walk.begin + C.n_stages * C.B_c, walk.end);
    ring.oldest = ring.first;
#pragma unroll
    for (int i = 0; i < C.n_stages; ++i) {
        const int32_t step_key = walk.begin + i * C.B_c;
        if (step_key < walk.end)
            copy_step<C, TENSOR_K>(ring.first + i * landing_bytes<C>, source, params, step_key,
                                   walk.end, ids[i]);
        async_copy_commit();
    }
}

/* ---- Conversion ---- */

/* Returns the place of the thread's first elements of a panel in the first pass. */
static __device__ __forceinline__ uint32_t converted_chunk(uint32_t panel) {
    return panel + chunk_offset(pass_key(), 2 * pass_chunk());
}

/* Returns eight elements as they are multiplied. scale: of latent tokens; others have none. */
template <flash_config_t C>
static __device__ __forceinline__ uint4 eight_elements(uint32_t low, uint32_t high, float scale) {
    if constexpr (is_latent<C>)
        return scaled_eight(low, high, scale);
    const e4m3_pairs_t a = fp16_from_e4m3(low), b = fp16_from_e4m3(high);
    return {a.low, a.high, b.low, b.high};
}

/* Stores the elements of a chunk in two, whose numbers, and so their places, differ in the lowest
 * bit. first: the place in the first pass. */
template <flash_config_t C>
static __device__ __forceinline__ void store_elements(uint32_t first, int pass, uint4 bytes,
                                                      float scale) {
    const int of_pass = pass * pass_keys * DECODE_LINE_BYTES;
    shared_store(first + of_pass, eight_elements<C>(bytes.x, bytes.y, scale));
    shared_store((first ^ DECODE_CHUNK_BYTES) + of_pass,
                 eight_elements<C>(bytes.z, bytes.w, scale));
}

/* Converts the thread's chunks of a landing into a stage. */
template <flash_config_t C>
static __device__ __forceinline__ void convert_landing(uint32_t stage, uint32_t landing) {
    static_assert(pass_keys % line_chunks == 0, "a thread's keys have one swizzle");
    static_assert(key_panels<C> == C.n_warps * warp_panels<C> + v_in_k<C>,
                  "the last panel is only K's, where V is in K");
    static_assert(passes<C> <= C.n_warps, "a warp for each pass of the last panel");
    const uint32_t own = converted_chunk(stage + warp_number() * warp_panels<C> * panel_bytes<C>);
    const pass_scales<C> scales = load_scales<C>(landing);
#pragma unroll
    for (int n = 0; n < warp_panels<C>; ++n) {
        uint4 bytes[passes<C>];
#pragma unroll
        for (int pass = 0; pass < passes<C>; ++pass)
            bytes[pass] = shared_load(landed_chunk<C>(landing, pass * warp_panels<C> + n));
#pragma unroll
        for (int pass = 0; pass < passes<C>; ++pass)
            store_elements<C>(own + n * panel_bytes<C>, pass, bytes[pass], scales.of[pass]);
    }
    if constexpr (is_latent<C>)
        move_rotary<C>(stage + (key_panels<C> - 1) * panel_bytes<C>, landing);
    else if (v_in_k<C> && warp_number() < passes<C>)
        store_elements<C>(converted_chunk(stage + (key_panels<C> - 1) * panel_bytes<C>),
                          warp_number(), shared_load(landed_chunk<C>(landing, own_chunks<C>)),
                          1.0f);
}

/* Converts the oldest step, which begins with a key, into a stage whose V the warp does not need
 * any more, and starts to copy the step that takes its place. */
template <flash_config_t C>
static __device__ __forceinline__ void
convert_step(uint32_t stage, landing_ring_t &ring, const sm80_decode_params_t &params,
             const key_source_t &source, const key_walk_t &walk, int32_t step_key) {
    constexpr uint32_t last = (C.n_stages - 1) * landing_bytes<C>;
    const int32_t copied_key = step_key + C.n_stages * C.B_c;
    async_copy_wait_all_but<C.n_stages - 1>();
    __syncwarp();
    convert_landing<C>(stage, ring.oldest);
    if constexpr (is_latent<C>)
        __syncwarp(); /* lanes share scales */
    if (copied_key < walk.end) {
        copy_step<C, TENSOR_K>(ring.oldest, source, params, copied_key, walk.end, ring.id);
        ring.id = fetch_lane_id<C>(params, source, copied_key + C.B_c, walk.end);
    }
    async_copy_commit();
    ring.oldest = ring.oldest == ring.first + last ? ring.first : ring.oldest + landing_bytes<C>;
}

#endif
