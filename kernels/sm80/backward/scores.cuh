/*
 * P and dS are computed of S and dP, element by element:
 *
 *     P = exp2(z - L),   dS = P (dP - D) (1 - t^2)
 *
 * with z the score in the exponent of 2, softcap and bias included, L the logarithm of its row's
 * sum, and t the tanh of a softcap. Where a query does not see a key, both are 0, whatever S and dP
 * are.
 *
 * With dropout P of weights that stay is multiplied with dP, and all of P with D: dS is
 * P (z dP - D / scale), with z 0 or 1, and what is made of it is multiplied by the scale at the
 * end, as dV is. Row sums (common/row_sums.cu) give D / scale.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_SCORES_CUH
#define FLASH_KERNELS_SM80_BACKWARD_SCORES_CUH

#include "common/ptx/shared_memory.cuh"
#include "common/score_unit.cuh"
#include "sm80/backward/bias.cuh"
#include "sm80/backward/dropout.cuh"
#include "sm80/backward/products.cuh"
#include "sm80/backward/tile.cuh"

/* ---- L and D ---- */

/* If rows are queries, a thread has L and D of its own. */
template <flash_config_t C> struct row_sums {
    float log_sum[m_tiles<C>][2];
    float d[m_tiles<C>][2];
};

template <flash_config_t C>
static __device__ __forceinline__ row_sums<C> load_row_sums(const flash_backward_params_t &params,
                                                            const gradient_tile_t &tile) {
    row_sums<C> sums;
    const flash_gradients_t &g = params.gradients;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row_of_thread<C>(m, half);
            const int64_t at =
                flash_row_index(&params.forward, &g, &tile.sequence, tile.batch_index, tile.head,
                                (int64_t)tile.row_begin + row);
            sums.log_sum[m][half] = row < tile.rows ? g.row_log_sum[at] : 0.0f;
            sums.d[m][half] = row < tile.rows ? g.row_d[at] : 0.0f;
        }
    return sums;
}

/* ---- Masks ---- */

/* Hides what does not belong to the thread's rows. first_column: of the part, in the sequence. */
template <flash_config_t C>
static __device__ __forceinline__ void hide_columns(score_part<C> &s, const flash_params_t &p,
                                                    const gradient_tile_t &tile,
                                                    int32_t first_column) {
    const int32_t first = first_column + column_of_thread();
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_range_t columns =
                columns_of_row<C>(p, tile.sequence, tile.row_begin + row_of_thread<C>(m, half));
            const int32_t begin = columns.begin - first, end = columns.end - first;
#pragma unroll
            for (int n = 0; n < part_tiles<C>; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (n * 8 + i >= end || (has_mask<C> && n * 8 + i < begin))
                        s.s[m][n][2 * half + i] = -INFINITY;
        }
}

/* ---- P and dS ---- */

template <flash_config_t C>
static __device__ __forceinline__ void cap_scores(score_part<C> &s, const score_unit_t &unit) {
    cap_each(unit, [&](const auto &f) {
#pragma unroll
        for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
            for (int n = 0; n < part_tiles<C>; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    s.s[m][n][i] = f(s.s[m][n][i]);
    });
}

/* Multiplies dP - D, which dP holds then, by the derivative of the cap. */
template <flash_config_t C>
static __device__ __forceinline__ void multiply_by_derivative(score_part<C> &d_p,
                                                              const score_part<C> &t) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int n = 0; n < part_tiles<C>; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                d_p.s[m][n][i] *= fmaf(-t.s[m][n][i], t.s[m][n][i], 1.0f);
}

/* Calls f(s, dP, L, D, m, n, i) for each of the thread's elements, i of tile (m, n). sums: of the
 * part's columns in shared memory, if these are queries. */
template <flash_config_t C, typename F>
static __device__ __forceinline__ void for_each_element(score_part<C> &s, score_part<C> &d_p,
                                                        const row_sums<C> &of_rows, uint32_t sums,
                                                        const F &f) {
#pragma unroll
    for (int n = 0; n < part_tiles<C>; ++n) {
        float2 log_sum, d;
        if constexpr (rows_are_keys<C>) {
            const uint32_t at = sums + (n * 8 + column_of_thread()) * (int)sizeof(float);
            log_sum = shared_load_pair(at);
            d = shared_load_pair(at + step_rows<C> * (int)sizeof(float));
        }
#pragma unroll
        for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float l = !rows_are_keys<C> ? of_rows.log_sum[m][i / 2]
                                : i % 2 == 0      ? log_sum.x
                                                  : log_sum.y;
                const float of_d = !rows_are_keys<C> ? of_rows.d[m][i / 2] : i % 2 == 0 ? d.x : d.y;
                f(s.s[m][n][i], d_p.s[m][n][i], l, of_d, m, n, i);
            }
    }
}

/* Makes P of S, and dS of dP. MASKED: some are hidden. */
template <flash_config_t C, bool MASKED>
static __device__ __forceinline__ void
finish_scores(score_part<C> &s, score_part<C> &d_p, const flash_params_t &p,
              const gradient_tile_t &tile, score_unit_t unit, const row_sums<C> &of_rows,
              uint32_t sums, int32_t member, int32_t first_column) {
    if constexpr (has_softcap<C>)
        cap_scores<C>(s, unit);
    score_part<C> t;
    if constexpr (has_softcap<C>)
        t = s;
    if constexpr (has_bias<C>) {
        add_biases<C>(s, p, tile, member, first_column, unit.log2);
        unit.log2 = 1.0f;
    }
    if constexpr (MASKED)
        hide_columns<C>(s, p, tile, first_column);
    const weight_bound_t bound = weight_bound_of(p.dropout.threshold);
    kept_part<C> kept;
    if constexpr (has_dropout<C>)
        kept = find_kept<C>(tile, member, first_column);
    for_each_element<C>(s, d_p, of_rows, sums,
                        [&](float &x, float &y, float l, float d, int m, int n, int i) {
                            const bool is_hidden = (MASKED || has_bias<C>)&&x == -INFINITY;
                            x = is_hidden ? 0.0f : exp2_approx(fmaf(x, unit.log2, -l));
                            if constexpr (has_dropout<C>) {
                                const float kept_x = stays<C>(kept, bound, m, n, i) ? x : 0.0f;
                                y = is_hidden ? 0.0f : fmaf(kept_x, y, -(x * d));
                                x = kept_x;
                            } else {
                                y = is_hidden ? 0.0f : x * (y - d);
                            }
                        });
    if constexpr (has_softcap<C>)
        if (unit.inverse_cap != 0.0f)
            multiply_by_derivative<C>(d_p, t);
}

#endif
