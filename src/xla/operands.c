/*
 * This file sorts the buffers of a call from XLA. What their lengths must be it does not know.
 */
#include "xla/operands.h"

#include "core/status.h"

#include <stdbool.h>

#define BIT(type) (UINT64_C(1) << XLA_FFI_DataType_##type)
#define INDICES   BIT(S32)
#define NUMBERS   (BIT(F16) | BIT(BF16) | BIT(F32))

/* This is what is known of a kind of buffer before any length is. */
typedef struct {
    const char *name;
    uint64_t dtypes; /* bits */
    int64_t least_rank;
    int64_t most_rank;
} kind_t;

static const kind_t KINDS[OPERANDS] = {
    [OPERAND_Q] = {"q", NUMBERS | BIT(F8E4M3FN), 3, 4},
    [OPERAND_K] = {"k", NUMBERS | BIT(F8E4M3FN) | BIT(U8), 3, 4},
    [OPERAND_V] = {"v", NUMBERS | BIT(F8E4M3FN) | BIT(U8), 3, 4},
    [OPERAND_CU_SEQLENS_Q] = {"cu_seqlens_q", INDICES, 1, 1},
    [OPERAND_CU_SEQLENS_K] = {"cu_seqlens_k", INDICES, 1, 1},
    [OPERAND_PAGE_TABLE] = {"page_table", INDICES, 1, 2},
    [OPERAND_V_PAGE_TABLE] = {"v_page_table", INDICES, 1, 2},
    [OPERAND_PAGE_INDPTR] = {"page_indptr", INDICES, 1, 1},
    [OPERAND_PAGE_ROWS] = {"page_rows", INDICES | BIT(S64), 1, 1},
    [OPERAND_K_DESCALE] = {"k_descale", BIT(F32), 0, 2},
    [OPERAND_V_DESCALE] = {"v_descale", BIT(F32), 0, 2},
    [OPERAND_SINKS] = {"sinks", BIT(F32), 1, 1},
    [OPERAND_SEQUSED_Q] = {"seqused_q", INDICES, 1, 1},
    [OPERAND_SEQUSED_K] = {"seqused_k", INDICES, 1, 1},
    [OPERAND_ALIBI_SLOPES] = {"alibi_slopes", BIT(F32), 1, 2},
    [OPERAND_ATTN_MASK] = {"attn_mask", NUMBERS, 3, 4},
    [OPERAND_MASK_BITS] = {"mask_bits", BIT(U32) | BIT(S32), 3, 4},
    [OPERAND_LEFTPAD_K] = {"leftpad_k", INDICES, 1, 1},
    [OPERAND_MASK_HEAD_SCALE] = {"mask_head_scale", BIT(F32), 1, 1},
    [OPERAND_Q_DESCALE] = {"q_descale", BIT(F32), 0, 4},
};
static const kind_t O = {"O", NUMBERS, 3, 4};
static const kind_t LSE = {"LSE", BIT(F32), 2, 3};
static const kind_t WORKSPACE = {"the workspace", BIT(U8), 1, 1};
static const kind_t D_O = {"the gradient of O", NUMBERS, 3, 4};
static const kind_t D_LSE = {"the gradient of LSE", BIT(F32), 2, 3};
static const kind_t D_Q = {"the gradient of q", NUMBERS, 3, 4};
static const kind_t D_K = {"the gradient of k", NUMBERS, 3, 4};
static const kind_t D_V = {"the gradient of v", NUMBERS, 3, 4};
static const kind_t D_SINKS = {"the gradient of sinks", BIT(F32), 1, 1};

static flash_status_t check_kind(const XLA_FFI_Buffer *buffer, const kind_t *kind) {
    FLASH_REQUIRE(buffer->dtype < 64 && (kind->dtypes >> buffer->dtype & 1),
                  FLASH_ERROR_INVALID_ARGUMENT, "%s has elements of XLA's type %d", kind->name,
                  (int)buffer->dtype);
    FLASH_REQUIRE(buffer->rank >= kind->least_rank && buffer->rank <= kind->most_rank,
                  FLASH_ERROR_INVALID_ARGUMENT, "%s has %lld axes: not %lld to %lld", kind->name,
                  (long long)buffer->rank, (long long)kind->least_rank, (long long)kind->most_rank);
    return FLASH_SUCCESS;
}

/* Takes the first operands, but for `others` that follow. */
static flash_status_t take_operands(const XLA_FFI_Args *args, int64_t present, int64_t others,
                                    operands_t *operands) {
    int64_t taken = 0;
    FLASH_REQUIRE((present & 7) == 7, FLASH_ERROR_INVALID_ARGUMENT,
                  "the operands, %#llx, are without q, k or v", (long long)present);
    for (int i = 0; i < OPERANDS; i++) {
        if ((present >> i & 1) == 0)
            continue;
        FLASH_REQUIRE(taken < args->size, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s is one of the operands, %#llx, of which there are only %lld",
                      KINDS[i].name, (long long)present, (long long)args->size);
        operands->of[i] = args->args[taken++];
        FLASH_TRY(check_kind(operands->of[i], &KINDS[i]));
    }
    FLASH_REQUIRE(present >> OPERANDS == 0 && taken + others == args->size, FLASH_ERROR_UNSUPPORTED,
                  "there are %lld operands, %#llx: more than this library, version %s, knows",
                  (long long)args->size, (long long)present, flash_version());
    return FLASH_SUCCESS;
}

static flash_status_t take_results(const XLA_FFI_Rets *rets, operands_t *operands) {
    FLASH_REQUIRE(rets->size == 2 || rets->size == 3, FLASH_ERROR_INVALID_ARGUMENT,
                  "there are %lld results: not O, LSE if it is wanted, and the workspace",
                  (long long)rets->size);
    operands->o = rets->rets[0];
    operands->lse = rets->size == 3 ? rets->rets[1] : NULL;
    operands->workspace = rets->rets[rets->size - 1];
    FLASH_TRY(check_kind(operands->o, &O));
    if (operands->lse != NULL)
        FLASH_TRY(check_kind(operands->lse, &LSE));
    return check_kind(operands->workspace, &WORKSPACE);
}

flash_status_t operands_take(const XLA_FFI_Args *args, const XLA_FFI_Rets *rets, int64_t present,
                             operands_t *operands) {
    *operands = (operands_t){{NULL}, NULL, NULL, NULL};
    FLASH_TRY(take_operands(args, present, 0, operands));
    return take_results(rets, operands);
}

/* ---- Backward calls ---- */

/* Takes a buffer of a kind, and steps to the next one. */
static flash_status_t take(void *const **next, const kind_t *kind, const XLA_FFI_Buffer **buffer) {
    *buffer = *(*next)++;
    return check_kind(*buffer, kind);
}

static flash_status_t take_gradients(const XLA_FFI_Rets *rets, operands_t *operands,
                                     gradients_t *gradients) {
    const bool has_sinks = operands->of[OPERAND_SINKS] != NULL;
    const int64_t n = has_sinks ? 5 : 4;
    void *const *next = rets->rets;
    FLASH_REQUIRE(rets->size == n, FLASH_ERROR_INVALID_ARGUMENT,
                  "there are %lld results: not the gradients of q, k, v%s and the workspace",
                  (long long)rets->size, has_sinks ? ", sinks" : "");
    FLASH_TRY(take(&next, &D_Q, &gradients->dq));
    FLASH_TRY(take(&next, &D_K, &gradients->dk));
    FLASH_TRY(take(&next, &D_V, &gradients->dv));
    if (has_sinks)
        FLASH_TRY(take(&next, &D_SINKS, &gradients->d_sinks));
    return take(&next, &WORKSPACE, &operands->workspace);
}

flash_status_t operands_take_backward(const XLA_FFI_Args *args, const XLA_FFI_Rets *rets,
                                      int64_t present, operands_t *operands,
                                      gradients_t *gradients) {
    const int64_t of_forward = __builtin_popcountll((unsigned long long)present);
    const int64_t others = args->size - of_forward;
    void *const *next = args->args + of_forward;
    *operands = (operands_t){{NULL}, NULL, NULL, NULL};
    *gradients = (gradients_t){NULL, NULL, NULL, NULL, NULL, NULL};
    FLASH_REQUIRE(others == 3 || others == 4, FLASH_ERROR_INVALID_ARGUMENT,
                  "there are %lld operands, %#llx and %lld more: not O, LSE, the gradient of O and "
                  "perhaps that of LSE",
                  (long long)args->size, (long long)present, (long long)others);
    FLASH_TRY(take_operands(args, present, others, operands));
    FLASH_TRY(take(&next, &O, &operands->o));
    FLASH_TRY(take(&next, &LSE, &operands->lse));
    FLASH_TRY(take(&next, &D_O, &gradients->d_o));
    if (others == 4)
        FLASH_TRY(take(&next, &D_LSE, &gradients->d_lse));
    return take_gradients(rets, operands, gradients);
}

const char *operand_name(enum operand operand) {
    return KINDS[operand].name;
}

void *operand_data(const operands_t *operands, enum operand operand) {
    static int64_t nowhere; /* an array without elements is given all the same */
    const XLA_FFI_Buffer *buffer = operands->of[operand];
    return buffer == NULL ? NULL : buffer->data != NULL ? buffer->data : &nowhere;
}

int64_t buffer_length(const XLA_FFI_Buffer *buffer, int axis) {
    return buffer->dims[axis < 0 ? buffer->rank + axis : axis];
}

int32_t buffer_dtype(const XLA_FFI_Buffer *buffer) {
    switch (buffer->dtype) {
    case XLA_FFI_DataType_F16:
        return FLASH_DTYPE_FP16;
    case XLA_FFI_DataType_BF16:
        return FLASH_DTYPE_BF16;
    case XLA_FFI_DataType_F32:
        return FLASH_DTYPE_FP32;
    case XLA_FFI_DataType_F8E4M3FN:
        return FLASH_DTYPE_E4M3;
    default:
        return 0;
    }
}
