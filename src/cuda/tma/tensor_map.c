/*
 * Tensor maps are encoded by cuTensorMapEncodeTiled(), which the runtime finds in the driver. The
 * function only computes, so it may be called while a stream is captured.
 */
#include "cuda/tma/tensor_map.h"

#include "cuda/runtime/error.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <pthread.h>
#include <string.h>

_Static_assert(sizeof(sm90_tensor_map_t) == sizeof(CUtensorMap),
               "sm90_tensor_map_t is not of the driver's size");

enum { FIRST_CUDA_WITH_MAPS = 12000 };

static struct {
    pthread_once_t once;
    cudaError_t error;
    enum cudaDriverEntryPointQueryResult result;
    PFN_cuTensorMapEncodeTiled_v12000 encode;
} driver = {.once = PTHREAD_ONCE_INIT};

static void look_up(void) {
    void *function = NULL;
    driver.result = cudaDriverEntryPointSymbolNotFound;
    driver.error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, FIRST_CUDA_WITH_MAPS,
                                         cudaEnableDefault, &driver.result);
    memcpy(&driver.encode, &function, sizeof function);
}

flash_status_t tensor_map_prepare(void) {
    pthread_once(&driver.once, look_up);
    if (driver.error != cudaSuccess)
        return cuda_error_status(driver.error, "cudaGetDriverEntryPointByVersion");
    FLASH_REQUIRE(driver.result == cudaDriverEntryPointSuccess && driver.encode != NULL,
                  FLASH_ERROR_CUDA,
                  "the driver has no cuTensorMapEncodeTiled of CUDA 12.0 (query result %d)",
                  (int)driver.result);
    return FLASH_SUCCESS;
}

/* Extents and strides as the driver takes them; the innermost stride is implied. */
typedef struct shape {
    cuuint64_t extent[TMA_MOST_AXES];
    cuuint64_t stride_bytes[TMA_MOST_AXES - 1];
} shape_t;

static shape_t shape_of(const tma_tensor_t *tensor) {
    shape_t shape;
    for (int axis = 0; axis < tensor->n_axes; axis++) {
        const int32_t extent = tensor->extent[axis];
        shape.extent[axis] = (cuuint64_t)extent;
        if (axis > 0) /* with an extent of 1 any stride will do, but the caller's may be invalid */
            shape.stride_bytes[axis - 1] =
                extent > 1 ? (cuuint64_t)tensor->stride[axis] * (cuuint64_t)tensor->element_bytes
                           : (cuuint64_t)SM90_CHUNK_BYTES;
    }
    return shape;
}

/* Finds the driver's type for elements of every type that a kernel of the family may have. */
static flash_status_t find_type(int32_t dtype, CUtensorMapDataType *type) {
    switch (dtype) {
    case FLASH_DTYPE_FP16:
        *type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
        return FLASH_SUCCESS;
    case FLASH_DTYPE_BF16:
        *type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
        return FLASH_SUCCESS;
    case FLASH_DTYPE_E4M3:
    case FLASH_DTYPE_LATENT_E4M3:
        *type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
        return FLASH_SUCCESS;
    default:
        return status_fail(FLASH_ERROR_INTERNAL, "dtype is %d: it has no tensor map", dtype);
    }
}

static flash_status_t encode(const tma_tensor_t *tensor, CUtensorMapDataType type,
                             tensor_map_box_t box, CUtensorMap *map) {
    const shape_t shape = shape_of(tensor);
    const cuuint32_t columns = (cuuint32_t)(SM90_PANEL_BYTES / tensor->element_bytes);
    const cuuint32_t extent[TMA_MOST_AXES] = {columns, (cuuint32_t)box.rows, (cuuint32_t)box.heads,
                                              1, 1};
    const cuuint32_t step[TMA_MOST_AXES] = {1, 1, 1, 1, 1};
    const CUresult result = driver.encode(
        map, type, (cuuint32_t)tensor->n_axes, (void *)(uintptr_t)tensor->data, shape.extent,
        shape.stride_bytes, extent, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    FLASH_REQUIRE(
        result == CUDA_SUCCESS, FLASH_ERROR_CUDA,
        "cuTensorMapEncodeTiled: error %d (%d axes; extents %d, %d, %d, %d; strides %lld, "
        "%lld, %lld elements; boxes of %d rows of %d heads)",
        (int)result, tensor->n_axes, tensor->extent[0], tensor->extent[1], tensor->extent[2],
        tensor->extent[3], (long long)tensor->stride[1], (long long)tensor->stride[2],
        (long long)tensor->stride[3], box.rows, box.heads);
    return FLASH_SUCCESS;
}

flash_status_t tensor_map_encode(const tma_tensor_t *tensor, int32_t dtype, tensor_map_box_t box,
                                 sm90_tensor_map_t *map) {
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    CUtensorMap encoded;
    memset(map, 0, sizeof *map);
    if (tma_tensor_is_empty(tensor))
        return FLASH_SUCCESS;
    FLASH_TRY(find_type(dtype, &type));
    FLASH_TRY(tensor_map_prepare());
    FLASH_TRY(encode(tensor, type, box, &encoded));
    memcpy(map, &encoded, sizeof encoded);
    return FLASH_SUCCESS;
}
