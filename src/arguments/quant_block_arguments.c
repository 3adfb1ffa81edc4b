#include "arguments/quant_block_arguments.h"

#include "arguments/checks.h"
#include "core/device.h"
#include "core/status.h"
#include "kernels/common/key.h"

#include <inttypes.h>

static const char *type_name(int32_t dtype) {
    return dtype == FLASH_DTYPE_Q8_0 ? "FLASH_DTYPE_Q8_0" : "FLASH_DTYPE_Q4_0";
}

static flash_status_t check_columns(const char *name, int64_t columns, int32_t dtype) {
    FLASH_REQUIRE(columns % FLASH_QUANT_BLOCK == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 ": not a multiple of %d, the columns of a block of %s", name,
                  columns, FLASH_QUANT_BLOCK, type_name(dtype));
    return FLASH_SUCCESS;
}

/* ---- K and V of attention ---- */

typedef struct keys {
    const char *name;
    const char *columns_name;
    int32_t columns;
    int32_t dtype;
    const flash_strides_t *stride;
} keys_t;

/* A stride of 0 is unused, or repeats a row on purpose. Strides of no rows mean nothing. */
static flash_status_t check_stride(const keys_t *keys, const char *axis, int64_t stride) {
    const int64_t bytes = key_bytes(keys->dtype, keys->columns);
    FLASH_REQUIRE(stride <= 0 || stride >= bytes, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s.stride_%s is %" PRId64 " bytes: a row of %s of %s %" PRId32 " has %" PRId64,
                  keys->name, axis, stride, type_name(keys->dtype), keys->columns_name,
                  keys->columns, bytes);
    return FLASH_SUCCESS;
}

static flash_status_t check_keys(const keys_t *keys, bool some) {
    if (!has_quant_blocks(keys->dtype))
        return FLASH_SUCCESS;
    FLASH_TRY(check_columns(keys->columns_name, keys->columns, keys->dtype));
    if (!some)
        return FLASH_SUCCESS;
    FLASH_TRY(check_stride(keys, "batch", keys->stride->batch));
    FLASH_TRY(check_stride(keys, "seq", keys->stride->seq));
    return check_stride(keys, "head", keys->stride->head);
}

flash_status_t arguments_check_quant_blocks(int32_t dtype, const flash_params_t *p) {
    const keys_t k = {"k", "d_head", p->d_head, dtype, &p->k_stride};
    const keys_t v = {"v", "d_head_v", p->d_head_v, p->v_dtype, &p->v_stride};
    const bool some = p->batch > 0 && p->seqlen_k > 0;
    FLASH_TRY(check_keys(&k, some));
    return check_keys(&v, some);
}

/* ---- A cache to append to ---- */

static flash_status_t check_new(const char *name, int32_t dtype) {
    FLASH_REQUIRE(!has_quant_blocks(dtype), FLASH_ERROR_UNSUPPORTED,
                  "%s is %s (%" PRId32 "): new tokens are of fp16, bf16 or fp32", name,
                  type_name(dtype), dtype);
    return FLASH_SUCCESS;
}

static flash_status_t check_cache(const char *name, const char *columns_name, int64_t columns,
                                  int32_t dtype, bool on_cpu) {
    if (!has_quant_blocks(dtype))
        return FLASH_SUCCESS;
    FLASH_REQUIRE(on_cpu, FLASH_ERROR_UNSUPPORTED,
                  "%s is %s (%" PRId32 "): only the CPU writes such a cache", name,
                  type_name(dtype), dtype);
    return check_columns(columns_name, columns, dtype);
}

flash_status_t arguments_check_quant_block_append(const flash_kv_append_args_t *a, bool has_v) {
    const bool on_cpu = a->device == FLASH_DEVICE_CPU;
    FLASH_TRY(check_new("k_new.dtype", a->k_new.dtype));
    FLASH_TRY(check_cache("k.dtype", "d_head", a->d_head, a->k.dtype, on_cpu));
    if (!has_v)
        return FLASH_SUCCESS;
    FLASH_TRY(check_cache("v.dtype", "d_head_v", a->d_head_v, a->v.dtype, on_cpu));
    FLASH_REQUIRE(on_cpu || a->k.dtype == a->v.dtype, FLASH_ERROR_UNSUPPORTED,
                  "k.dtype is %" PRId32 " and v.dtype is %" PRId32
                  ": only the CPU writes a cache of two types",
                  a->k.dtype, a->v.dtype);
    return FLASH_SUCCESS;
}
