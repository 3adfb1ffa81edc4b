#include "cuda/decode/query_rows.h"

#include "kernels/common/decode.h"
#include "kernels/common/dtype.h"

bool rows_aligned(const void *data, const flash_strides_t *stride, int32_t columns,
                  int32_t element_bytes) {
    const uint64_t elements = (uint64_t)stride->batch | (uint64_t)stride->seq |
                              (uint64_t)stride->head | (uint64_t)(uint32_t)columns;
    return (uintptr_t)data % DECODE_CHUNK_BYTES == 0 &&
           elements % (uint64_t)(DECODE_CHUNK_BYTES / element_bytes) == 0;
}

bool query_rows_aligned(const flash_params_t *p) {
    return rows_aligned(p->q, &p->q_stride, p->d_head, dtype_size(p->q_dtype));
}
