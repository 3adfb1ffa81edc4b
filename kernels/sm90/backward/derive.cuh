/*
 * These constants of backward kernels follow from a configuration, beside those of sm90/derive.cuh.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_DERIVE_CUH
#define FLASH_KERNELS_SM90_BACKWARD_DERIVE_CUH

#include "sm90/backward_kernel.h"
#include "sm90/derive.cuh"

template <flash_config_t C> constexpr int gradient_consumers = sm90_backward_consumers(&C);
template <flash_config_t C> constexpr bool keeps_ds = sm90_keeps_ds(&C) != 0;
template <flash_config_t C> constexpr bool reads_ds = sm90_reads_ds(&C) != 0;

/* Each warp of the producer has a role; the others have none. */
enum { TILE_LOAD_WARP, ROW_LOAD_WARP };

template <flash_config_t C> constexpr bool writes_dq = sm90_writes_dq(&C) != 0;
template <flash_config_t C> constexpr bool has_roles = sm90_backward_has_roles(&C) != 0;

/* dK and dV, beside their scores, take all registers that a consumer can have. */
template <flash_config_t C> constexpr bool needs_most_registers = !writes_dq<C> && !has_roles<C>;
template <flash_config_t C>
constexpr int gradient_producer_registers =
    needs_most_registers<C> || gradient_consumers<C> == 4 ? 24 : 40;
template <flash_config_t C>
constexpr int gradient_consumer_registers = gradient_consumers<C> == 4 ? 112
                                            : needs_most_registers<C>  ? 240
                                                                       : 232;

/* Fragments of the rows that stay wait in registers, where d_head leaves room for them: what is
 * read of shared memory for a product is then half as much, or less. Both consumers of dK and dV
 * that have no roles need all registers for accumulators. */
template <flash_config_t C>
constexpr bool has_still_fragments = writes_dq<C> ? C.d_head <= 64
                                                  : (has_roles<C> &&C.d_head + d_head_v<C> <= 320);

/* Rows that stay and rows that pass by. */
template <flash_config_t C> constexpr int still_rows = sm90_backward_rows(&C);
template <flash_config_t C> constexpr int step_rows = sm90_backward_step(&C);

/* A tile of Q or K has d_head columns, one of dO or V d_head_v; their bytes. */
template <flash_config_t C>
constexpr int still_bytes = sm90_tile_bytes(&C, still_rows<C>, C.d_head);
template <flash_config_t C>
constexpr int still_v_bytes = sm90_tile_bytes(&C, still_rows<C>, d_head_v<C>);
template <flash_config_t C>
constexpr int moving_bytes = sm90_tile_bytes(&C, step_rows<C>, C.d_head);
template <flash_config_t C>
constexpr int moving_v_bytes = sm90_tile_bytes(&C, step_rows<C>, d_head_v<C>);
template <flash_config_t C> constexpr int still_panel = still_rows<C> *SM90_PANEL_BYTES;
template <flash_config_t C> constexpr int moving_panel = step_rows<C> *SM90_PANEL_BYTES;

template <flash_config_t C> __device__ constexpr void assert_legal_gradients() {
    static_assert(C.arch == FLASH_ARCH_SM90, "a configuration of another family");
    if constexpr (writes_dq<C>) {
        SM90_BWD_DQ_RULES(ASSERT_RULE, &C)
    } else {
        SM90_BWD_DKV_RULES(ASSERT_RULE, &C)
    }
}

#endif
