/*
 * Constants that follow from a configuration, and its legality at compile time. Everything here
 * is a constant expression: no branch on a configuration field is left in a kernel.
 */
#ifndef FLASH_KERNELS_SM90_DERIVE_CUH
#define FLASH_KERNELS_SM90_DERIVE_CUH

#include "sm90/sm90_kernel.h"

SM90_CONSTANT int at_least_1(int n) {
    return n < 1 ? 1 : n;
}

/* ---- threads ---- */

template <flash_config_t C> constexpr int consumers = sm90_consumers(&C);
template <flash_config_t C> constexpr int consumer_threads = consumers<C> *SM90_WARPGROUP_THREADS;
template <flash_config_t C>
constexpr int block_threads = consumer_threads<C> + SM90_WARPGROUP_THREADS;
constexpr int warp_threads = 32;
constexpr int warpgroup_warps = SM90_WARPGROUP_THREADS / warp_threads;

/* The warps of the first warpgroup: one loads K and V, one hands out tiles, one brings Q and takes
 * O away, one looks over V. */
enum { PRODUCER_WARP, SCHEDULER_WARP, CARRIER_WARP, GUARD_WARP };

template <flash_config_t C> constexpr int producer_registers = sm90_producer_registers(&C);
template <flash_config_t C> constexpr int consumer_registers = sm90_consumer_registers(&C);

/* ---- accumulators of a thread, and steps of 16 along the contractions ---- */

template <flash_config_t C> constexpr int score_registers = C.B_c / 2;
template <flash_config_t C> constexpr int output_registers = C.d_head / 2;
template <flash_config_t C> constexpr int head_steps = C.d_head / 16;
template <flash_config_t C> constexpr int key_steps = C.B_c / 16;

template <flash_config_t C> constexpr bool q_in_registers = sm90_queries_in_registers(&C) != 0;

/* ---- features ---- */

template <flash_config_t C> constexpr bool has_window = (C.features & FLASH_FEATURE_WINDOW) != 0;
/* Some keys of a sequence may be hidden from some of its queries. */
template <flash_config_t C>
constexpr bool has_mask = has_window<C> || (C.features & FLASH_FEATURE_CAUSAL) != 0;
template <flash_config_t C> constexpr bool has_varlen = sm90_has_varlen(&C) != 0;
template <flash_config_t C> constexpr bool has_softcap = (C.features & FLASH_FEATURE_SOFTCAP) != 0;

/* Whether blocks of V that a mask cuts are looked over before they are used: see hidden_values.cuh.
 * FIXED: in a pass with a fixed reference. */
template <flash_config_t C, bool FIXED> constexpr bool is_guarded = has_mask<C> && !FIXED;

/* Whether each consumer leaves out what its own rows do not see: see walk.cuh. */
template <flash_config_t C>
constexpr bool walks_apart = has_mask<C> && !C.ping_pong && consumers<C> > 1;

/* ---- shared memory ---- */

constexpr int panel_row_bytes = SM90_PANEL_ELEMENTS * SM90_ELEMENT_BYTES;
template <flash_config_t C> constexpr int panels = sm90_panels(&C);
template <flash_config_t C> constexpr int q_panel_bytes = C.B_r *panel_row_bytes;
template <flash_config_t C> constexpr int kv_panel_bytes = C.B_c *panel_row_bytes;
template <flash_config_t C> constexpr int q_bytes = sm90_tile_bytes(&C, C.B_r);
template <flash_config_t C> constexpr int kv_bytes = sm90_tile_bytes(&C, C.B_c);

template <flash_config_t C>
constexpr int warpgroup_output_bytes = SM90_WARPGROUP_ROWS *panels<C> *panel_row_bytes;

/* Places of blocks in the rings of K and V. */
template <flash_config_t C> constexpr int k_stages = C.n_stages;
template <flash_config_t C> constexpr int v_stages = sm90_v_stages(&C);

/* Places of Q: with two, the next tile's Q arrives while this one's is still needed. */
template <flash_config_t C> constexpr int q_places = sm90_has_next_query_place(&C) ? 2 : 1;

/* Parts in which Q comes, each with its barriers. */
template <flash_config_t C> constexpr int q_box_rows = sm90_q_box_rows(&C);
template <flash_config_t C> constexpr int q_parts = C.B_r / q_box_rows<C>;

/* The next tile's first QK^T is issued beside this one's last PV where its Q is sure to be there.
 */
template <flash_config_t C> constexpr bool starts_early = q_in_registers<C> || q_places<C> == 2;

/* Warpgroups whose O fits in a place of V, and the places that O of all takes. */
template <flash_config_t C>
constexpr int outputs_of_v_place = at_least_1(kv_bytes<C> / warpgroup_output_bytes<C>);
template <flash_config_t C>
constexpr int output_v_places = (consumers<C> + outputs_of_v_place<C> - 1) / outputs_of_v_place<C>;

/* O leaves through shared memory by TMA where it has a place there: its own; that of Q, which the
 * next tile's fragments have left by then; or places of V. The next tile's Q then need not wait for
 * it. Measured on an H200, V's places instead of Q's at d_head 128 and 512 keys: causal +1 %, full
 * -3 %. */
enum output_place { OUTPUT_OWN, OUTPUT_IN_Q, OUTPUT_IN_V, OUTPUT_NOWHERE };
template <flash_config_t C> constexpr output_place output_place_of() {
    if (sm90_has_output_place(&C))
        return OUTPUT_OWN;
    const bool fits_v =
        warpgroup_output_bytes<C> <= kv_bytes<C> && output_v_places<C> <= v_stages<C>;
    if (q_in_registers<C> && !(has_mask<C> && fits_v))
        return OUTPUT_IN_Q;
    return fits_v ? OUTPUT_IN_V : OUTPUT_NOWHERE;
}
template <flash_config_t C> constexpr output_place place_of_o = output_place_of<C>();
template <flash_config_t C> constexpr bool has_staged_output = place_of_o<C> != OUTPUT_NOWHERE;

/* Of V's places, those that O on its way out leaves to the next tile's first blocks. The last of
 * them was read last, by the consumer whose turn comes last: the first one does not wait for that.
 */
template <flash_config_t C> constexpr int v_places_beside_o_of() {
    const int others = v_stages<C> - output_v_places<C>;
    if (place_of_o<C> != OUTPUT_IN_V)
        return 0;
    return C.ping_pong && outputs_of_v_place<C> > 1 && others > 0 ? others - 1 : others;
}
template <flash_config_t C> constexpr int v_places_beside_o = v_places_beside_o_of<C>();

/* Whether Q's place is free as soon as its fragments are in registers. */
template <flash_config_t C>
constexpr bool frees_q_at_once = q_in_registers<C> &&place_of_o<C> != OUTPUT_IN_Q;

template <flash_config_t C>
constexpr int output_panel_bytes =
    place_of_o<C> == OUTPUT_IN_Q ? q_panel_bytes<C> : SM90_WARPGROUP_ROWS *panel_row_bytes;

/* ---- legality ---- */

SM90_CONSTANT bool is_bool(int32_t value) {
    return value == 0 || value == 1;
}

template <flash_config_t C> __device__ constexpr void assert_legal() {
    static_assert(C.arch == FLASH_ARCH_SM90, "a configuration of another family");
    static_assert(C.dtype == FLASH_DTYPE_FP16 || C.dtype == FLASH_DTYPE_BF16, "dtype");
    static_assert(C.d_head == 64 || C.d_head == 96 || C.d_head == 128 || C.d_head == 192 ||
                      C.d_head == 256,
                  "d_head");
    static_assert(C.B_r == 64 || C.B_r == 128 || C.B_r == 192, "B_r");
    static_assert(C.B_c % 16 == 0 && C.B_c >= 16 && C.B_c <= 256, "B_c");
    static_assert(C.n_warps * warp_threads == block_threads<C>, "n_warps");
    static_assert(C.n_stages >= 2 && C.n_stages <= 4, "n_stages");
    static_assert(is_bool(C.overlap) && is_bool(C.ping_pong) && is_bool(C.persistent) &&
                      is_bool(C.longest_first) && is_bool(C.fixed_reference),
                  "a switch is 0 or 1");
    static_assert(!C.ping_pong || (C.overlap && consumers<C> > 1),
                  "ping_pong needs overlap, and two that take turns");
    static_assert(!C.longest_first || C.persistent, "longest_first needs persistent");
    static_assert(!has_varlen<C> || C.longest_first, "varlen needs longest_first");
}

#endif
