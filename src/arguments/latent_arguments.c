#include "arguments/latent_arguments.h"

#include "core/status.h"
#include "kernels/common/latent.h"

#include <inttypes.h>

/* A stride of 0 is unused, or repeats a token on purpose. Strides of no tokens mean nothing. */
static flash_status_t check_stride(const char *name, int64_t stride) {
    FLASH_REQUIRE(stride <= 0 || stride >= FLASH_LATENT_TOKEN_BYTES, FLASH_ERROR_INVALID_ARGUMENT,
                  "k.%s is %" PRId64 ": a token of FLASH_DTYPE_LATENT_E4M3 has %d bytes", name,
                  stride, FLASH_LATENT_TOKEN_BYTES);
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_latent(int32_t dtype, const flash_params_t *p) {
    if (dtype != FLASH_DTYPE_LATENT_E4M3)
        return FLASH_SUCCESS;
    FLASH_REQUIRE(p->d_head == LATENT_COLUMNS && p->d_head_v == LATENT_CODES,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "d_head is %" PRId32 " and d_head_v %" PRId32
                  ": %d and %d with K and V of FLASH_DTYPE_LATENT_E4M3",
                  p->d_head, p->d_head_v, LATENT_COLUMNS, LATENT_CODES);
    if (p->batch > 0 && p->seqlen_k > 0) {
        FLASH_TRY(check_stride("stride_batch", p->k_stride.batch));
        FLASH_TRY(check_stride("stride_seq", p->k_stride.seq));
        FLASH_TRY(check_stride("stride_head", p->k_stride.head));
    }
    FLASH_REQUIRE(v_is_in_k(p), FLASH_ERROR_INVALID_ARGUMENT,
                  "v is not k: with FLASH_DTYPE_LATENT_E4M3 both have the same data (%p and %p), "
                  "strides and pages",
                  p->v, p->k);
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_latent_append(const flash_kv_append_args_t *a, bool has_v) {
    FLASH_REQUIRE(
        a->k_new.dtype != FLASH_DTYPE_LATENT_E4M3, FLASH_ERROR_UNSUPPORTED,
        "k_new.dtype is FLASH_DTYPE_LATENT_E4M3 (%d): new tokens are of fp16, bf16 or fp32",
        FLASH_DTYPE_LATENT_E4M3);
    if (a->k.dtype != FLASH_DTYPE_LATENT_E4M3)
        return FLASH_SUCCESS;
    FLASH_REQUIRE(!has_v, FLASH_ERROR_INVALID_ARGUMENT,
                  "v_new or v is given, and k.dtype is FLASH_DTYPE_LATENT_E4M3 (%d), whose tokens "
                  "are K and V",
                  FLASH_DTYPE_LATENT_E4M3);
    FLASH_REQUIRE(a->d_head == LATENT_COLUMNS, FLASH_ERROR_INVALID_ARGUMENT,
                  "d_head is %" PRId64 ": %d with k of FLASH_DTYPE_LATENT_E4M3", a->d_head,
                  LATENT_COLUMNS);
    FLASH_REQUIRE(a->rotary == NULL, FLASH_ERROR_UNSUPPORTED,
                  "rotary is given, and k.dtype is FLASH_DTYPE_LATENT_E4M3 (%d): new tokens have "
                  "turned already",
                  FLASH_DTYPE_LATENT_E4M3);
    return FLASH_SUCCESS;
}
