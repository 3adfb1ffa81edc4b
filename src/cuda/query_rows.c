#include "cuda/query_rows.h"

#include "kernels/common/dtype.h"
#include "kernels/sm90/sm90_kernel.h"

bool query_rows_aligned(const flash_params_t *p) {
    const flash_strides_t *stride = &p->q_stride;
    const uint64_t elements = (uint64_t)stride->batch | (uint64_t)stride->seq |
                              (uint64_t)stride->head | (uint64_t)(uint32_t)p->d_head;
    return (uintptr_t)p->q % SM90_CHUNK_BYTES == 0 &&
           elements % (uint64_t)(SM90_CHUNK_BYTES / dtype_size(p->q_dtype)) == 0;
}
