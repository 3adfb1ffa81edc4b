/*
 * Where Q, K and V are of e4m3 and multiplied as such, the tensor core adds up in registers that
 * are not fp32: over thousands of keys they lose weight. So sums over keys have two levels. P V of
 * a block begins at zero, in accumulators T of its own, and joins O by additions in fp32. That
 * takes as many instructions as to rescale O in each block, which here is seldom done: see
 * follow_max().
 *
 * What the tensor core cuts off is most where V has a mean, and P is rounded. Both are the same for
 * a column of ones behind V, whose product is the weight of a row: O is divided by that, and what
 * is cut off cancels. LSE is that of the unrounded P.
 *
 * A block of V lies transposed (transpose_v.cu): a row of B_c keys for each column of V. Of every
 * sixteen keys, the order is 0, 1, 8, 9, 2, 3, 10, 11, ...: the pairs of accumulators of S that a
 * thread has then are four neighbouring columns of a fragment of P.
 */
#ifndef FLASH_KERNELS_SM90_FP8_PRODUCTS_CUH
#define FLASH_KERNELS_SM90_FP8_PRODUCTS_CUH

#include "sm90/block_state.cuh"
#include "sm90/fragments.cuh"
#include "sm90/ptx/descriptor.cuh"
#include "sm90/ptx/order.cuh"
#include "sm90/ptx/wgmma_e4m3.cuh"
#include "sm90/softmax/softmax.cuh"

/* P V of a block is computed in parts of so many columns. The last one has those of ones too. */
template <flash_config_t C> constexpr int part_columns = sm90_part_columns(&C);
template <flash_config_t C> constexpr int second_level_parts = d_head_v<C> / part_columns<C>;
template <flash_config_t C> constexpr bool has_one_part = second_level_parts<C> == 1;
template <flash_config_t C, int PART>
constexpr bool is_last_part = PART == second_level_parts<C> - 1;

/* The columns of ones are a product of their own after the last of several parts, where a consumer
 * alone has so many registers in use that ptxas finds no room for both in one. */
template <flash_config_t C> constexpr bool has_ones_apart = !has_one_part<C> && consumers<C> == 1;

/* Parts have the registers that S had before it became P: see mma/in_parts.cuh. */
template <flash_config_t C>
constexpr bool has_parts_in_s = multiplies_e4m3<C> &&C.arch == FLASH_ARCH_SM90 && !has_one_part<C>;

/* Two parts are under way at a time where O leaves registers for both: the sums of one then run
 * beside the product of the other. */
template <flash_config_t C>
constexpr int parts_at_a_time = has_parts_in_s<C> &&d_head_v<C> <= 192 ? 2 : 1;

/* A consumer has these accumulators of the P V of a block beside O, and the weights of its rows. */
template <flash_config_t C> struct second_level {
    float t[parts_at_a_time<C>]
           [(part_columns<C> + (has_ones_apart<C> ? 0 : SM90_ROWS_OF_ONES)) / 2];
    float ones[SM90_ROWS_OF_ONES / 2]; /* if they are apart */
    float weight[2];
    int32_t blocks; /* that are in T; 0: what is there does not count */
};

struct no_second_level {};

template <flash_config_t C>
using second_level_of = std::conditional_t<multiplies_e4m3<C>, second_level<C>, no_second_level>;

/* Returns the accumulators of a part. */
template <flash_config_t C, int PART>
static __device__ __forceinline__ auto &accumulators_of(second_level<C> &level) {
    constexpr bool with_ones = is_last_part<C, PART> && !has_ones_apart<C>;
    constexpr int columns = part_columns<C> + (with_ones ? SM90_ROWS_OF_ONES : 0);
    return *(float(*)[columns / 2]) level.t[PART % parts_at_a_time<C>];
}

/* Issues D = P V of the columns of V that begin at `column`, or D += P V. */
template <flash_config_t C, int N>
static __device__ __forceinline__ void issue_columns(float (&d)[N], const probability_tile<C> &p,
                                                     int stage, int column, bool accumulate) {
    static_assert(C.B_c == SM90_PANEL_BYTES, "a row of V is one panel");
    constexpr int step_keys = 32;
    const uint32_t v = descriptor_low(v_tile<C>(stage) + column * C.B_c, 0);
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
        wgmma<operand_dtype<C>, 2 * N>::template register_a<0>(
            d, p.p[i], descriptor(v, i * step_keys), i > 0 || accumulate);
}

/* Returns the address of a word of shared memory that nobody reads in rows without bias. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t unread_word() {
    static_assert(!has_bias<C>, "rows with bias number their blocks there");
    return shared_address(block_state<C>().k_blocks);
}

/* Issues T = P V of a part of the columns, or T += P V where T has blocks already. */
template <flash_config_t C, int PART>
static __device__ __forceinline__ void issue_part(second_level<C> &level,
                                                  const probability_tile<C> &p, int stage) {
    auto &t = accumulators_of<C, PART>(level);
    if constexpr (has_parts_in_s<C>)
        drop_accumulators(t);
    wgmma_fence();
    issue_columns<C>(t, p, stage, PART * part_columns<C>, looks_ahead<C> && level.blocks > 0);
    if constexpr (is_last_part<C, PART> && has_ones_apart<C>)
        issue_columns<C>(level.ones, p, stage, d_head_v<C>, false);
    wgmma_commit();
}

/* Adds a part of P V, which is done, to O and the weights. */
template <flash_config_t C, int PART>
static __device__ __forceinline__ void add_part(output_tile<C> &o, second_level<C> &level) {
    constexpr int registers = part_columns<C> / 2;
    auto &t = accumulators_of<C, PART>(level);
    pin_accumulators(t);
#pragma unroll
    for (int i = 0; i < registers; ++i)
        o.o[PART * registers + i] += t[i];
    if constexpr (is_last_part<C, PART> && has_ones_apart<C>) {
        pin_accumulators(level.ones);
        level.weight[0] += level.ones[0];
        level.weight[1] += level.ones[2];
    } else if constexpr (is_last_part<C, PART>) {
        level.weight[0] += t[registers];
        level.weight[1] += t[registers + 2];
    }
}

/* Issues the first parts of a block, as many as are under way at a time. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_first_parts(second_level<C> &level,
                                                         const probability_tile<C> &p, int stage) {
    issue_part<C, 0>(level, p, stage);
    if constexpr (parts_at_a_time<C> == 2)
        issue_part<C, 1>(level, p, stage);
}

/* Waits until a part is done. The one behind it may still be under way. */
template <flash_config_t C, int PART> static __device__ __forceinline__ void await_part() {
    wgmma_wait<parts_at_a_time<C> == 2 && !is_last_part<C, PART> ? 1 : 0>();
}

/* Adds a part that is done to O, and then issues the one that has the same registers. The sums are
 * complete before that: ptxas would else put the new part into other registers, which there are
 * not. */
template <flash_config_t C, int PART>
static __device__ __forceinline__ void add_and_issue(output_tile<C> &o, second_level<C> &level,
                                                     const probability_tile<C> &p, int stage) {
    constexpr int next = PART + parts_at_a_time<C>;
    add_part<C, PART>(o, level);
    if constexpr (has_parts_in_s<C>)
        complete_all<part_columns<C> / 2>(o.o + PART * (part_columns<C> / 2), unread_word<C>());
    if constexpr (next < second_level_parts<C>)
        issue_part<C, next>(level, p, stage);
}

/* Adds the parts from PART on to O, and issues those that are not yet under way. The first of them
 * is done. */
template <flash_config_t C, int PART = 0>
static __device__ __forceinline__ void add_second_level(output_tile<C> &o, second_level<C> &level,
                                                        const probability_tile<C> &p, int stage) {
    add_and_issue<C, PART>(o, level, p, stage);
    if constexpr (!is_last_part<C, PART>) {
        await_part<C, PART + 1>();
        add_second_level<C, PART + 1>(o, level, p, stage);
    }
}

/* Rescales the weights of rows with their O. */
template <flash_config_t C>
static __device__ __forceinline__ void rescale_weights(second_level<C> &level,
                                                       const rescale_t &past) {
    level.weight[0] *= past.factor[0];
    level.weight[1] *= past.factor[1];
}

/* Writes the rows of ones behind each stage of V, once. */
template <flash_config_t C> static __device__ __forceinline__ void write_ones() {
    constexpr uint32_t four_ones = 0x38383838u;
    constexpr int bytes = SM90_ROWS_OF_ONES * C.B_c, words = bytes / 4;
    for (int i = threadIdx.x; i < v_stages<C> * words; i += block_threads<C>)
        shared_store(v_tile<C>(i / words) + d_head_v<C> * C.B_c + i % words * 4, four_ones);
    async_proxy_fence();
}

/* Rounds four numbers to e4m3; a becomes bits 0 ... 7. */
template <bool PINNED>
static __device__ __forceinline__ uint32_t e4m3_from(float a, float b, float c, float d) {
    uint32_t four;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}\n"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    if constexpr (PINNED)
        asm volatile("" : "+r"(four)); /* otherwise the halves are put together by one more */
    return four;
}

/* Rounding comes between exponentials (exponentials.cuh). */
template <flash_config_t C>
constexpr bool exponentiates_in_chunks = C.arch == FLASH_ARCH_SM90 &&has_one_part<C>;

/* Rounds the accumulators of S that become fragment i of P. */
template <flash_config_t C>
static __device__ __forceinline__ void round_fragment(probability_tile<C> &p,
                                                      const score_tile<C> &s, int i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float *x = s.s + 16 * i + 8 * (j / 2) + 2 * (j % 2);
        p.p[i][j] = e4m3_from<!exponentiates_in_chunks<C>>(x[0], x[1], x[4], x[5]);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void round_to_e4m3(probability_tile<C> &p,
                                                     const score_tile<C> &s) {
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
        round_fragment<C>(p, s, i);
}

#endif
