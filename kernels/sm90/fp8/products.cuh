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
#include "sm90/ptx/wgmma_e4m3.cuh"
#include "sm90/softmax/softmax.cuh"

/* So many columns of P V are computed at a time: all, and those of ones, where there are registers
 * for them. */
template <flash_config_t C> constexpr int second_level_columns = sm90_second_level_columns(&C);
template <flash_config_t C> constexpr int second_level_registers = second_level_columns<C> / 2;
template <flash_config_t C>
constexpr int second_level_parts =
    (d_head_v<C> + SM90_ROWS_OF_ONES + second_level_columns<C> - 1) / second_level_columns<C>;

/* A consumer has a part of the P V of a block beside O, and the weights of its rows. */
template <flash_config_t C> struct second_level {
    float t[second_level_registers<C>];
    float weight[2];
};

struct no_second_level {};

template <flash_config_t C>
using second_level_of = std::conditional_t<multiplies_e4m3<C>, second_level<C>, no_second_level>;

/* Returns the descriptor of V from a key of a block on. */
template <flash_config_t C>
static __device__ __forceinline__ uint64_t transposed_descriptor(uint32_t low, int key) {
    if constexpr (C.B_c == SM90_PANEL_BYTES)
        return descriptor(low, key);
    else
        return narrow_descriptor(low, key);
}

/* Counts the columns of a part. */
template <flash_config_t C> static constexpr __device__ int columns_of_part(int part) {
    const int rest = d_head_v<C> + SM90_ROWS_OF_ONES - part * second_level_columns<C>;
    return rest < second_level_columns<C> ? rest : second_level_columns<C>;
}

/* Issues T = P V for a part of the columns. */
template <flash_config_t C, int PART>
static __device__ __forceinline__ void issue_part(second_level<C> &level,
                                                  const probability_tile<C> &p, int stage) {
    constexpr int columns = columns_of_part<C>(PART), keys = 32;
    const uint32_t first = v_tile<C>(stage) + PART * second_level_columns<C> * C.B_c;
    const uint32_t v = descriptor_low(first, 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
        wgmma<operand_dtype<C>, columns>::template register_a<0>(
            *(float(*)[columns / 2]) level.t, p.p[i], transposed_descriptor<C>(v, i * keys), i > 0);
    wgmma_commit();
}

/* Adds a part of P V, which is done, to O and the weights. */
template <flash_config_t C, int PART>
static __device__ __forceinline__ void add_part(output_tile<C> &o, second_level<C> &level) {
    constexpr int first = PART * second_level_registers<C>;
    pin_accumulators(level.t);
#pragma unroll
    for (int i = 0; i < columns_of_part<C>(PART) / 2; ++i)
        if (first + i < output_registers<C>)
            o.o[first + i] += level.t[i];
    if constexpr (PART == second_level_parts<C> - 1) {
        level.weight[0] += level.t[output_registers<C> - first];
        level.weight[1] += level.t[output_registers<C> - first + 2];
    }
}

/* Adds the parts from PART on, the first of which is done, to O. */
template <flash_config_t C, int PART = 0>
static __device__ __forceinline__ void add_second_level(output_tile<C> &o, second_level<C> &level,
                                                        const probability_tile<C> &p, int stage) {
    add_part<C, PART>(o, level);
    if constexpr (PART + 1 < second_level_parts<C>) {
        issue_part<C, PART + 1>(level, p, stage);
        wgmma_wait<0>();
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
static __device__ __forceinline__ uint32_t e4m3_from(float a, float b, float c, float d) {
    uint32_t four;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}\n"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    asm volatile(""
                 : "+r"(four)); /* otherwise the halves are put together by an instruction more */
    return four;
}

template <flash_config_t C>
static __device__ __forceinline__ void round_to_e4m3(probability_tile<C> &p,
                                                     const score_tile<C> &s) {
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float *x = s.s + 16 * i + 8 * (j / 2) + 2 * (j % 2);
            p.p[i][j] = e4m3_from(x[0], x[1], x[4], x[5]);
        }
}

#endif
