// GGML_OP_FLASH_ATTN_EXT as a call of libflashattn.
#pragma once

#include <flashattn.h>
#include <ggml.h>

#include <vector>

namespace flashattn_ggml {

/** The arguments of a call. They point into the struct, so that it stays where it is. */
struct Call {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    flash_mask_t mask = FLASH_MASK_INIT;
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    std::vector<float> head_scale; // of a mask with ALiBi's slopes; else empty

    Call() = default;
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;
};

/** Fills what an op asks for, but not who computes it and where. Returns why the library has no
 * words for it; nullptr: it has. */
const char *describe(const ggml_tensor *op, Call *call);

/** Fills the call that computes an op of ggml on n_threads, but for its workspace and team. Returns
 * why ggml must compute it, as long as no other call is made; nullptr: the library can. It is a
 * function of the op alone: each of ggml's threads comes to the same answer. */
const char *make_call(const ggml_tensor *op, int n_threads, Call *call);

} // namespace flashattn_ggml
