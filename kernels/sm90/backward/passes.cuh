/*
 * A tile is computed in one pass, and in two if a mask hides some of what it reads and its
 * gradients have infinities or NaNs then. These may come of what is hidden (sanitise.cuh).
 * Consumers and producer decide together; a warp whose gradients are finite stores them in the
 * first pass.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_PASSES_CUH
#define FLASH_KERNELS_SM90_BACKWARD_PASSES_CUH

#include "sm90/backward/state.cuh"
#include "sm90/backward/tiles.cuh"

typedef enum pass { FIRST_PASS, SECOND_PASS } pass_t;

template <pass_t PASS> struct pass_constant { static constexpr pass_t value = PASS; };

/* Products of a block and the next overlap. */
template <flash_config_t C, pass_t PASS>
constexpr bool overlaps = C.overlap != 0 && PASS == FIRST_PASS;

/* Says whether a second pass follows the first, when all consumers have decided. */
template <flash_config_t C> static __device__ __forceinline__ bool second_pass_follows() {
    gradient_state_t &state = gradient_state<C>();
    wait_full(state.decided, 0);
    return *(const volatile uint32_t *)&state.spoilt != 0;
}

/* Returns the bit of a consumer's warp in `spoilt`. */
static __device__ __forceinline__ uint32_t bit_of_warp() {
    return 1u << (threadIdx.x / warp_threads - warpgroup_warps);
}

/* Decides on it, by all threads of the consumers. */
template <flash_config_t C> static __device__ __forceinline__ bool decide(bool is_spoilt) {
    gradient_state_t &state = gradient_state<C>();
    if (is_spoilt)
        atomicOr(&state.spoilt, bit_of_warp());
    mbarrier_arrive(shared_address(&state.decided));
    return second_pass_follows<C>();
}

/* Says whether a producer that has loaded `loaded` blocks, n of them in each pass, begins again. */
template <flash_config_t C>
static __device__ __forceinline__ bool begins_again(const flash_params_t &p, int32_t n,
                                                    uint32_t loaded) {
    return is_masked<C>(p) && n > 0 && loaded == (uint32_t)n && second_pass_follows<C>();
}

/* Says whether all are finite. */
template <int N> static __device__ __forceinline__ bool are_finite(const float (&d)[N]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i)
        sum = fmaf(d[i], 0.0f, sum);
    return sum == 0.0f;
}

/* Computes a consumer's gradients and stores them. first(), second(): the passes; finite(): whether
 * the thread's gradients are; store(). */
template <flash_config_t C, typename FIRST, typename SECOND, typename FINITE, typename STORE>
static __device__ __forceinline__ void run_passes(const flash_params_t &p, const FIRST &first,
                                                  const SECOND &second, const FINITE &finite,
                                                  const STORE &store) {
    bool is_second = false;
#pragma unroll 1
    while (true) {
        if (is_second)
            second();
        else
            first();
        const bool is_last = is_second || !is_masked<C>(p);
        const bool is_spoilt = !is_last && __any_sync(0xffffffffu, !finite());
        if (is_second ? (gradient_state<C>().spoilt & bit_of_warp()) != 0 : !is_spoilt)
            store();
        if (is_last || !decide<C>(is_spoilt))
            return;
        is_second = true;
    }
}

#endif
