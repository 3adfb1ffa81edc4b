/*
 * These constants follow from a configuration, which is checked at compile time. Everything here is
 * a constant expression: no branch on a configuration field is left in a kernel.
 */
#ifndef FLASH_KERNELS_SM90_DERIVE_CUH
#define FLASH_KERNELS_SM90_DERIVE_CUH

#include "common/bits.cuh"
#include "common/operand.cuh"
#include "sm90/sm90_kernel.h"

SM90_CONSTANT int at_least_1(int n) {
    return n < 1 ? 1 : n;
}

/* ---- threads ---- */

template <flash_config_t C> constexpr int consumers = sm90_consumers(&C);
template <flash_config_t C> constexpr int consumer_threads = consumers<C> *SM90_WARPGROUP_THREADS;
template <flash_config_t C> constexpr int block_threads = sm90_block_threads(&C);
constexpr int warp_threads = 32;
constexpr int warpgroup_warps = SM90_WARPGROUP_THREADS / warp_threads;

static __device__ __forceinline__ uint32_t lane_index() {
    return threadIdx.x % warp_threads;
}

/* Each warp of the first warpgroup, the producer, has a role of its own: one loads K and V, one
 * schedules tiles, one loads Q and stores O, one sanitises V. The other warpgroups are the
 * consumers. */
enum { KV_LOAD_WARP, SCHEDULER_WARP, Q_LOAD_O_STORE_WARP, SANITISE_WARP };

/* Where K and V are converted, the last warpgroup does that, in place of the sanitise warp, which
 * then has nothing to do. Beside K and V of e4m3 it also converts Q of bf16 to fp16, and scores are
 * multiplied by K's scale and by the powers of two in rows of Q. */
template <flash_config_t C>
constexpr int first_converter = block_threads<C> - SM90_WARPGROUP_THREADS;
constexpr int converter_registers = sm90_converter_registers();

template <flash_config_t C> constexpr int producer_registers = sm90_producer_registers(&C);
template <flash_config_t C> constexpr int consumer_registers = sm90_consumer_registers(&C);

/* A block is launched with as many registers as each thread can have of 64K, in eights. */
template <flash_config_t C>
constexpr int launched_registers = 65536 / block_threads<C> / 8 * 8 * block_threads<C>;
template <flash_config_t C>
constexpr int asked_registers = consumer_threads<C> *consumer_registers<C> +
                                SM90_WARPGROUP_THREADS *(producer_registers<C> +
                                                         (converts<C> ? converter_registers : 0));

/* ---- elements: of tiles, Q and O, and of K and V in memory ---- */

template <flash_config_t C> constexpr int element_bytes = sm90_element_bytes(&C);
template <flash_config_t C> constexpr int chunk_elements = sm90_chunk_elements(&C);
template <flash_config_t C> constexpr int panel_elements = sm90_panel_elements(&C);
template <flash_config_t C> using element_bits = bits_of<element_bytes<C>>;
template <flash_config_t C> constexpr int o_element_bytes = sm90_o_element_bytes(&C);
template <flash_config_t C> using o_element_bits = bits_of<o_element_bytes<C>>;
template <flash_config_t C> constexpr int o_chunk_elements = SM90_CHUNK_BYTES / o_element_bytes<C>;
template <flash_config_t C> constexpr int o_panel_elements = SM90_PANEL_BYTES / o_element_bytes<C>;
template <flash_config_t C> constexpr int kv_element_bytes = sm90_kv_element_bytes(&C);
template <flash_config_t C> using kv_element_bits = bits_of<kv_element_bytes<C>>;

/* ---- accumulators per thread, and steps of 32 bytes along the contractions ---- */

template <flash_config_t C> constexpr int d_head_v = sm90_d_head_v(&C);
template <flash_config_t C> constexpr int score_registers = C.B_c / 2;
template <flash_config_t C> constexpr int output_registers = d_head_v<C> / 2;
template <flash_config_t C> constexpr int head_steps = C.d_head *element_bytes<C> / 32;
template <flash_config_t C> constexpr int key_steps = C.B_c *element_bytes<C> / 32;

template <flash_config_t C> constexpr bool q_in_registers = sm90_q_in_registers(&C) != 0;

/* Scores of the next block are computed beside the softmax of this one. */
template <flash_config_t C> constexpr bool looks_ahead = sm90_looks_ahead(&C) != 0;

/* ---- features ---- */

template <flash_config_t C> constexpr bool has_window = (C.features & FLASH_FEATURE_WINDOW) != 0;
/* Some keys of a sequence may be hidden from some of its queries. */
template <flash_config_t C>
constexpr bool has_mask = has_window<C> || (C.features & FLASH_FEATURE_CAUSAL) != 0;
template <flash_config_t C> constexpr bool has_varlen = sm90_has_varlen(&C) != 0;
template <flash_config_t C> constexpr bool has_softcap = (C.features & FLASH_FEATURE_SOFTCAP) != 0;
/* Blocks of keys that a mask hides are left out (shown_blocks.cuh). */
template <flash_config_t C>
constexpr bool leaves_out_blocks = (C.features & FLASH_FEATURE_BIAS) != 0;
/* The mask does nothing else: it has whole tiles, and consumers only count its blocks. */
template <flash_config_t C> constexpr bool counts_blocks = sm90_counts_blocks(&C) != 0;
/* ALiBi and masks join the scores (softmax/bias.cuh). */
template <flash_config_t C> constexpr bool has_bias = leaves_out_blocks<C> && !counts_blocks<C>;
/* Heads of a group may share tiles (tile.cuh). */
template <flash_config_t C> constexpr bool packs_heads = sm90_packs_heads(&C) != 0;
/* K and V lie in pages, in every problem that the kernel serves. */
template <flash_config_t C> constexpr bool has_pages = sm90_has_pages(&C) != 0;
/* Holes of a page table hide keys. */
template <flash_config_t C> constexpr bool hides_holes = sm90_hides_holes(&C) != 0;

/* Blocks of V that a mask cuts are sanitised before they are multiplied (load/sanitise_v.cuh), but
 * for the pass with a fixed reference, which FIXED stands for. */
template <flash_config_t C, bool FIXED> constexpr bool sanitises_v = has_mask<C> && !FIXED;

/* The pass of a consumer that follows one with a fixed reference. */
template <flash_config_t C, bool FIXED> constexpr bool is_second_pass = C.fixed_reference && !FIXED;

/* One loop computes blocks that a mask cuts and blocks that rows see whole, and looks which kind it
 * has: where code is to be little rather than fast. */
template <flash_config_t C, bool FIXED>
constexpr bool looks_for_cuts = has_bias<C> || (has_mask<C> && is_second_pass<C, FIXED>);

/* The sanitise warp has blocks of V to sanitise, or to load. */
template <flash_config_t C>
constexpr bool sanitise_warp_reads = has_pages<C> || (has_mask<C> && !converts<C>);

/* Each consumer leaves out blocks that its own rows do not see: see mma/walk.cuh. */
template <flash_config_t C>
constexpr bool walks_apart = has_mask<C> && !C.ping_pong && consumers<C> > 1;

/* ---- shared memory ---- */

template <flash_config_t C> constexpr int q_panels = sm90_panels(&C, C.d_head);
template <flash_config_t C> constexpr int output_panels = sm90_o_panels(&C);
template <flash_config_t C> constexpr int q_panel_bytes = C.B_r *SM90_PANEL_BYTES;
template <flash_config_t C> constexpr int kv_panel_bytes = C.B_c *SM90_PANEL_BYTES;
template <flash_config_t C> constexpr int q_bytes = sm90_q_bytes(&C);
template <flash_config_t C> constexpr int k_bytes = sm90_k_bytes(&C);
template <flash_config_t C> constexpr int v_bytes = sm90_v_bytes(&C);
/* Bytes of the elements of a block of V, behind which there may be ones (fp8/products.cuh). */
template <flash_config_t C>
constexpr int value_bytes = multiplies_e4m3<C> ? d_head_v<C> *C.B_c : v_bytes<C>;

/* K and V are loaded alike, by the same functions. */
enum kv_tensor { TENSOR_K, TENSOR_V };
template <flash_config_t C, kv_tensor T>
constexpr int kv_columns = T == TENSOR_K ? C.d_head : d_head_v<C>;
template <flash_config_t C, kv_tensor T>
constexpr int kv_bytes = T == TENSOR_K ? k_bytes<C> : v_bytes<C>;

/* A block of K or V arrives in the last panels of its stage: in all, unless it is converted. */
template <flash_config_t C, kv_tensor T>
constexpr int landing_panels = sm90_landing_panels(&C, kv_columns<C, T>);
template <flash_config_t C>
constexpr int landing_columns = SM90_PANEL_BYTES / kv_element_bytes<C>; /* of a panel */
/* The first byte of a panel's columns in a key; latent tokens have their scales before the last. */
template <flash_config_t C> __device__ constexpr int landing_byte(int panel) {
    return is_latent<C> && panel * SM90_PANEL_BYTES == LATENT_CODES ? (int)LATENT_ROTARY_AT
                                                                    : panel * SM90_PANEL_BYTES;
}
template <flash_config_t C, kv_tensor T>
constexpr int landing_bytes = landing_panels<C, T> *kv_panel_bytes<C>;
template <flash_config_t C, kv_tensor T>
constexpr int landing_offset = kv_bytes<C, T> - landing_bytes<C, T>;

template <flash_config_t C>
constexpr int warpgroup_output_bytes = SM90_WARPGROUP_ROWS *output_panels<C> *SM90_PANEL_BYTES;

/* Stages of the rings of K and V, a block of keys each. */
template <flash_config_t C> constexpr int k_stages = C.n_stages;
template <flash_config_t C> constexpr int v_stages = sm90_v_stages(&C);
template <flash_config_t C, kv_tensor T>
constexpr int kv_stages = T == TENSOR_K ? k_stages<C> : v_stages<C>;

/* There are one or two slots of Q: with two, the next tile's Q arrives while this tile's is still
 * needed. */
template <flash_config_t C> constexpr int q_slots = sm90_has_second_q_slot(&C) ? 2 : 1;

/* Q is loaded in parts, each with its own barriers. */
template <flash_config_t C> constexpr int q_part_rows = sm90_q_part_rows(&C);
template <flash_config_t C> constexpr int q_parts = C.B_r / q_part_rows<C>;
template <flash_config_t C> constexpr int q_box_rows = sm90_q_box_rows(&C);

/* The next tile's first QK^T is issued beside this tile's last PV where the next Q is sure to be
 * there, and registers are left for it. */
template <flash_config_t C>
constexpr bool starts_early = (q_in_registers<C> || q_slots<C> == 2) &&
                              (C.overlap || !multiplies_e4m3<C>);

/* outputs_per_v_stage: consumers whose O tiles fit in one stage of V. output_v_stages: stages of V
 * that the O tiles of all consumers occupy. */
template <flash_config_t C>
constexpr int outputs_per_v_stage = at_least_1(value_bytes<C> / warpgroup_output_bytes<C>);
template <flash_config_t C>
constexpr int
    output_v_stages = (consumers<C> + outputs_per_v_stage<C> - 1) / outputs_per_v_stage<C>;

/* O is staged in shared memory, from where TMA stores it, if there is room: in a slot of its own;
 * in Q's slot, which the next tile's fragments have left by then; or in stages of V, and the next
 * tile's Q then need not wait for it. Otherwise it is stored from registers. Measured on an H200,
 * stages of V instead of Q's slot at d_head 128: at 512 keys causal +1 %, full -3 %; in ragged
 * batches of 300 sequences of 1 to 64 tokens, full, +11 %, and +22 % where heads share tiles. */
enum output_staging { STAGED_ALONE, STAGED_IN_Q, STAGED_IN_V, NOT_STAGED };
template <flash_config_t C> constexpr output_staging choose_staging() {
    if (sm90_has_o_slot(&C))
        return STAGED_ALONE;
    const bool fits_v =
        warpgroup_output_bytes<C> <= value_bytes<C> && output_v_stages<C> <= v_stages<C>;
    const bool prefers_v = fits_v && (has_mask<C> || has_varlen<C>);
    if (q_in_registers<C> && !prefers_v)
        return STAGED_IN_Q;
    return fits_v ? STAGED_IN_V : NOT_STAGED;
}
template <flash_config_t C> constexpr output_staging staging_of_o = choose_staging<C>();
template <flash_config_t C> constexpr bool stages_o = staging_of_o<C> != NOT_STAGED;

/* Where O is staged in V, so many stages, in the order of the ring, come before it and are left to
 * the next tile's first blocks. With ping_pong one stage comes after it: the one that was read
 * last. The consumer whose turn comes last still reads it when the first consumer stages its O. */
template <flash_config_t C> constexpr int count_v_stages_beside_o() {
    const int others = v_stages<C> - output_v_stages<C>;
    if (staging_of_o<C> != STAGED_IN_V)
        return 0;
    return C.ping_pong && outputs_per_v_stage<C> > 1 && others > 0 ? others - 1 : others;
}
template <flash_config_t C> constexpr int v_stages_beside_o = count_v_stages_beside_o<C>();

/* Q's slot is free as soon as its fragments are in registers, if O is not staged there. */
template <flash_config_t C>
constexpr bool frees_q_at_once = q_in_registers<C> &&staging_of_o<C> != STAGED_IN_Q;

template <flash_config_t C>
constexpr int output_panel_bytes =
    staging_of_o<C> == STAGED_IN_Q ? q_panel_bytes<C> : SM90_WARPGROUP_ROWS *SM90_PANEL_BYTES;

/* ---- legality ---- */

template <flash_config_t C> __device__ constexpr void assert_legal() {
    static_assert(C.arch == FLASH_ARCH_SM90, "a configuration of another family");
    static_assert(asked_registers<C> <= launched_registers<C>,
                  "a warpgroup would wait for registers for ever");
    static_assert(has_half_operands<C> || multiplies_e4m3<C>, "wgmma has other types too");
    static_assert(!is_latent<C>, "latent tokens are of other families");
    SM90_FWD_RULES(ASSERT_RULE, &C)
}

#endif
