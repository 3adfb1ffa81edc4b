/*
 * A thread computes the online softmax of the two rows of S that it shares with its quad
 * (fragments.cuh).
 *
 * O and the sum of a row are kept relative to a reference maximum. With a running maximum each
 * block of keys may raise it, and O and the sum are rescaled. With a fixed reference the blocks
 * that a mask cuts, or the first one, set it; after them it stays, whatever the scores, and nothing
 * is rescaled. Every reference gives the same result as long as O, the sums and P are all relative
 * to it and none leaves its range, which failed() finds out at the end.
 *
 * P of fp16 would leave its range where a score is 11.1 above the reference. So a fixed reference
 * of such kernels is above the maximum by reference_margin, in the exponent of 2: scores may then
 * be 15.2 above the maximum. What that costs are bits of weights below 2^-8 of the greatest. P of
 * e4m3 has 448, 2^8.8, as its largest number. Its reference is 2^8 below a maximum, and follows the
 * scores when they are 2^0.75 above that, at once in rows in which few keys have weight.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_SOFTMAX_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_SOFTMAX_CUH

#include "common/non_finite.cuh"
#include "common/quad.cuh"
#include "sm90/fragments.cuh"
#include "sm90/softmax/units.cuh"

/* A thread has this state of each of its two rows. */
typedef struct softmax_state {
    float max[2]; /* reference maximum, in units of S */
    float sum[2]; /* of exponentials; until finish_sums() over the thread's own columns */
} softmax_state_t;

/* O and the sum of each row are multiplied by these factors when its maximum rises. */
typedef struct rescale {
    float factor[2];
} rescale_t;

/* Turns scores into arguments of tanh. */
template <flash_config_t C>
static __device__ __forceinline__ void scale_to_cap(score_tile<C> &s, const score_units<C> &unit) {
#pragma unroll
    for (int i = 0; i < score_registers<C>; ++i)
        s.s[i] *= inverse_cap(unit, i / 2 % 2);
}

/* Says whether all arguments of the warp, times a factor, are below 2. */
template <flash_config_t C>
static __device__ __forceinline__ bool are_below_2(const score_tile<C> &s, float factor) {
    uint32_t bits[4] = {0, 0, 0, 0}; /* more than one, for the latency */
#pragma unroll
    for (int i = 0; i < score_registers<C>; ++i)
        bits[i / 2 % 4] |= __float_as_uint(s.s[i] * factor);
    return warp_is_below_2(bits[0] | bits[1] | bits[2] | bits[3]);
}

template <flash_config_t C, int TERMS>
static __device__ __forceinline__ void cap_by(score_tile<C> &s, const tanh_polynomial<TERMS> &p) {
#pragma unroll
    for (int i = 0; i < score_registers<C>; ++i)
        s.s[i] = tanh_by(p, s.s[i], 0.0f);
}

/* Multiplies scores by odd units. */
template <flash_config_t C>
static __device__ __forceinline__ void scale_by_units(score_tile<C> &s,
                                                      const score_units<C> &unit) {
#pragma unroll
    for (int i = 0; i < score_registers<C>; ++i)
        s.s[i] *= unit.score[i / 2 % 2];
}

/* Turns scores into tanh(score / cap), in units of the cap. POLYNOMIAL: where one serves; code that
 * seldom runs does without, to be shorter. */
template <flash_config_t C, bool POLYNOMIAL>
static __device__ __forceinline__ void cap_scores(score_tile<C> &s, const score_units<C> &unit) {
    if constexpr (multiplies_e4m3<C> && !(C.fixed_reference && POLYNOMIAL))
        if (unit.odd)
            scale_by_units<C>(s, unit);
    if constexpr (has_softcap<C>) {
        if (!is_capped(unit))
            return;
        scale_to_cap<C>(s, unit);
        if (POLYNOMIAL && are_below_2<C>(s, small_below_2)) {
            cap_by<C>(s, small_polynomial(1.0f));
        } else if (POLYNOMIAL && are_below_2<C>(s, middle_below_2)) {
            cap_by<C>(s, middle_polynomial(1.0f));
        } else {
#pragma unroll
            for (int i = 0; i < score_registers<C>; ++i)
                s.s[i] = tanh_of(s.s[i]);
        }
    }
}

template <flash_config_t C>
static __device__ __forceinline__ float row_max(const score_tile<C> &s, int half) {
    float x = fmaxf(s.s[2 * half], s.s[2 * half + 1]);
#pragma unroll
    for (int i = 4; i < score_registers<C>; i += 4)
        x = fmaxf(x, fmaxf(s.s[i + 2 * half], s.s[i + 2 * half + 1]));
    return quad_max(x);
}

/* Returns what is subtracted from scores. A row without a finite score yet has a maximum of
 * -infinity, which must not be subtracted. */
static __device__ __forceinline__ float subtrahend(float max) {
    return max == -INFINITY ? 0.0f : max;
}

template <flash_config_t C>
constexpr float reference_margin =
    multiplies_e4m3<C>                                         ? -8.0f
    : C.fixed_reference &&operand_dtype<C> == FLASH_DTYPE_FP16 ? 6.0f
                                                               : 0.0f;

/* The sum of a row is as many times too small by that. */
template <flash_config_t C>
constexpr float
    reference_factor = reference_margin<C> < 0
                           ? 1.0f / static_cast<float>(1 << static_cast<int>(-reference_margin<C>))
                           : static_cast<float>(1 << static_cast<int>(reference_margin<C>));

/* Takes the reference maximum from the first block. */
template <flash_config_t C>
static __device__ __forceinline__ softmax_state_t start_softmax(const score_tile<C> &s) {
    return softmax_state_t{{row_max<C>(s, 0), row_max<C>(s, 1)}, {0.0f, 0.0f}};
}

/* Raises the reference maximum of a row to that of a block, and rescales its sum. Returns the
 * factor for O. */
static __device__ __forceinline__ float raise_row_max(softmax_state_t &state, int half,
                                                      float of_block, float log2_unit) {
    const float max = fmaxf(state.max[half], of_block);
    const float factor = exp2_approx((state.max[half] - subtrahend(max)) * log2_unit);
    state.max[half] = max;
    state.sum[half] *= factor;
    return factor;
}

/* So far, in the exponent of 2, a score may be above the reference maximum where P is of e4m3, in
 * rows in which many keys have weight: those of which a thread's own columns have this sum. Where
 * few have, the largest P is to be 2^8, which rounding does not change: that would be most of the
 * error. */
constexpr float reference_lag = 0.75f;
constexpr float sum_of_many = 4.0f * 256.0f;

static __device__ __forceinline__ float allowed_lag(const softmax_state_t &state, int half) {
    return state.sum[half] >= sum_of_many ? reference_lag : 0.0f;
}

/* Raises the reference maxima of P of e4m3 if a score of the warp has left one too far behind.
 * Otherwise all factors are 1. */
template <flash_config_t C>
static __device__ __forceinline__ rescale_t follow_max(softmax_state_t &state,
                                                       const score_tile<C> &s,
                                                       const softmax_units<C> &unit) {
    static_assert(reference_lag - reference_margin<C> < 8.8f, "P stays below 448");
    rescale_t past = {{1.0f, 1.0f}};
    float of_block[2];
    bool behind = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        of_block[half] = row_max<C>(s, half);
        behind |=
            (of_block[half] - state.max[half]) * log2_unit(unit, half) > allowed_lag(state, half);
    }
    if (__any_sync(0xffffffffu, behind)) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
            past.factor[half] = raise_row_max(state, half, of_block[half], log2_unit(unit, half));
    }
    return past;
}

/* Raises the reference maxima to those of the block, and rescales the sums. */
template <flash_config_t C>
static __device__ __forceinline__ rescale_t raise_max(softmax_state_t &state,
                                                      const score_tile<C> &s,
                                                      const softmax_units<C> &unit) {
    if constexpr (multiplies_e4m3<C>) {
        return follow_max<C>(state, s, unit);
    } else {
        rescale_t past;
#pragma unroll
        for (int half = 0; half < 2; ++half)
            past.factor[half] =
                raise_row_max(state, half, row_max<C>(s, half), log2_unit(unit, half));
        return past;
    }
}

/* Returns what P and the sum of a row are relative to, in the exponent of 2. */
template <flash_config_t C>
static __device__ __forceinline__ float log2_reference(const softmax_state_t &state,
                                                       const softmax_units<C> &unit, int half) {
    return fmaf(subtrahend(state.max[half]), log2_unit(unit, half), reference_margin<C>);
}

/* Turns a part of S into P, relative to the reference maxima, and adds it, unrounded, to the sums.
 */
template <flash_config_t C, int BEGIN, int END>
static __device__ __forceinline__ void exponentiate_part(score_tile<C> &s, softmax_state_t &state,
                                                         const softmax_units<C> &unit) {
    const float reference[2] = {log2_reference<C>(state, unit, 0),
                                log2_reference<C>(state, unit, 1)};
#pragma unroll
    for (int i = BEGIN; i < END; i += 4)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float *x = &s.s[i + 2 * half];
            x[0] = exp2_approx(fmaf(x[0], log2_unit(unit, half), -reference[half]));
            x[1] = exp2_approx(fmaf(x[1], log2_unit(unit, half), -reference[half]));
            state.sum[half] += x[0] + x[1];
        }
}

/* Does that for all of S. */
template <flash_config_t C>
static __device__ __forceinline__ void exponentiate(score_tile<C> &s, softmax_state_t &state,
                                                    const softmax_units<C> &unit) {
    exponentiate_part<C, 0, score_registers<C>>(s, state, unit);
}

/* Does the same for arguments of tanh, by a polynomial for their size. shift: what is added to the
 * capped score of each row, in the exponent of 2. */
template <flash_config_t C, int TERMS>
static __device__ __forceinline__ void exponentiate_by(score_tile<C> &s, softmax_state_t &state,
                                                       const tanh_polynomial<TERMS> &p,
                                                       const float (&shift)[2]) {
#pragma unroll
    for (int i = 0; i < score_registers<C>; i += 2) {
        float *x = &s.s[i];
        x[0] = exp2_approx(tanh_by(p, x[0], shift[i / 2 % 2]));
        x[1] = exp2_approx(tanh_by(p, x[1], shift[i / 2 % 2]));
        state.sum[i / 2 % 2] += x[0] + x[1];
    }
}

/* Does the same for arguments of any size. cap: in the exponent of 2. */
template <flash_config_t C>
static __device__ __forceinline__ void exponentiate_any(score_tile<C> &s, softmax_state_t &state,
                                                        float cap, const float (&shift)[2]) {
#pragma unroll
    for (int i = 0; i < score_registers<C>; i += 8)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float *x = &s.s[i + 2 * half], *y = x + 4;
            tanh_of_four(x[0], x[1], y[0], y[1], cap, shift[half]);
            x[0] = exp2_approx(x[0]), x[1] = exp2_approx(x[1]);
            y[0] = exp2_approx(y[0]), y[1] = exp2_approx(y[1]);
            state.sum[half] += x[0] + x[1];
            state.sum[half] += y[0] + y[1];
        }
}

/* Does the same for scores that are still to be capped, if there is a cap, in fewer operations than
 * two steps take. A NaN in a row makes others of the row NaN, so each row must see all keys. */
template <flash_config_t C>
static __device__ __forceinline__ void
cap_and_exponentiate(score_tile<C> &s, softmax_state_t &state, const score_units<C> &unit) {
    if (!has_softcap<C> || !is_capped(unit)) {
        exponentiate<C>(s, state, unit);
        return;
    }
    const float cap = log2_unit(unit, 0); /* that of all rows */
    const float shift[2] = {-log2_reference<C>(state, unit, 0), -log2_reference<C>(state, unit, 1)};
    scale_to_cap<C>(s, unit);
    if (are_below_2<C>(s, small_below_2))
        exponentiate_by<C>(s, state, small_polynomial(cap), shift);
    else if (are_below_2<C>(s, middle_below_2))
        exponentiate_by<C>(s, state, middle_polynomial(cap), shift);
    else
        exponentiate_any<C>(s, state, cap, shift);
}

template <flash_config_t C>
static __device__ __forceinline__ void rescale_output(output_tile<C> &o, const rescale_t &past) {
#pragma unroll
    for (int i = 0; i < output_registers<C>; i += 2)
        o.o[i] *= past.factor[i / 2 % 2], o.o[i + 1] *= past.factor[i / 2 % 2];
}

/* Adds up the sums of the quad, after the last block. */
static __device__ __forceinline__ void finish_sums(softmax_state_t &state) {
    state.sum[0] = quad_sum(state.sum[0]);
    state.sum[1] = quad_sum(state.sum[1]);
}

/* Returns the sum of a row with its sink, by which O is divided. */
template <flash_config_t C>
static __device__ __forceinline__ float
sum_with_sink(const softmax_state_t &state, const softmax_units<C> &unit, int half, float sink) {
    return state.sum[half] + sink_weight(sink, log2_reference<C>(state, unit, half));
}

/* Makes a row fail that has no reference, because no score was finite in the blocks that set it. It
 * is called after the blocks that used the fixed reference; whatever follows, the row fails. */
static __device__ __forceinline__ void require_reference(softmax_state_t &state) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        if (state.max[half] == -INFINITY)
            state.sum[half] = NAN;
}

template <flash_config_t C>
constexpr int looked_at_as = multiplies_e4m3<C> ? (int)FLASH_DTYPE_FP16 : operand_dtype<C>;

/* Says whether the fixed reference has failed this thread's rows: a sum or an element of O has left
 * its range, or is near its end. What is not finite because the inputs are not fails too, which
 * costs time but does no harm; so does an O of bf16 from 2^121 on, which is looked at as fp16. */
template <flash_config_t C>
static __device__ __forceinline__ bool failed(const softmax_state_t &state,
                                              const rounded_output<C> &o) {
    constexpr float max_sum = 0x1p100f;
    uint32_t zero[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < output_registers<C> / 2; ++i)
        zero[i % 4] = multiply_add_pair<looked_at_as<C>>(o.w[i], 0, zero[i % 4]);
    const bool finite = is_pair_of_zeros(zero[0] | zero[1] | zero[2] | zero[3]);
    return !(finite && state.sum[0] < max_sum && state.sum[1] < max_sum);
}

/* Returns LSE, the natural logarithm of the sum of exponentials, of the row whose LSE the thread
 * stores: its quad's first row in even threads, the second in odd ones. A row that saw no key has
 * -infinity. The margin is taken out of the sum, not of its logarithm, of which log2_approx() may
 * lose digits: one key with a score of 0 has the LSE 0. There is no branch: see
 * ptx/predicated.cuh. */
template <flash_config_t C>
static __device__ __forceinline__ float row_lse(const softmax_state_t &state,
                                                const softmax_units<C> &unit) {
    const bool odd = threadIdx.x % 2;
    const float max = odd ? state.max[1] : state.max[0], sum = odd ? state.sum[1] : state.sum[0];
    return log2_approx(sum * reference_factor<C>) * ln_2 +
           subtrahend(max) * natural_unit<C>(unit, odd);
}

#endif
