/*
 * The properties of this machine's CUDA devices never change, and are read once.
 */
#include "cuda/runtime/cuda_device.h"

#include "cuda/runtime/error.h"

#include <pthread.h>
#include <stdbool.h>

enum { MAX_DEVICES = 64 };

static struct {
    pthread_mutex_t lock;
    bool known[MAX_DEVICES];
    device_t devices[MAX_DEVICES];
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

static flash_status_t attribute(enum cudaDeviceAttr which, int ordinal, int32_t *value) {
    int v = 0;
    FLASH_TRY_CUDA(cudaDeviceGetAttribute(&v, which, ordinal));
    *value = v;
    return FLASH_SUCCESS;
}

static flash_status_t read_properties(int ordinal, device_t *device) {
    int32_t major = 0, minor = 0;
    *device = (device_t){.number = FLASH_DEVICE_CUDA + ordinal, .ordinal = ordinal};
    FLASH_TRY(attribute(cudaDevAttrComputeCapabilityMajor, ordinal, &major));
    FLASH_TRY(attribute(cudaDevAttrComputeCapabilityMinor, ordinal, &minor));
    FLASH_TRY(attribute(cudaDevAttrMultiProcessorCount, ordinal, &device->n_multiprocessors));
    FLASH_TRY(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal,
                        &device->shared_memory_per_block));
    device->compute_capability = 10 * major + minor;
    return FLASH_SUCCESS;
}

static flash_status_t look_up(int ordinal, device_t *device) {
    flash_status_t status = FLASH_SUCCESS;
    pthread_mutex_lock(&cache.lock);
    if (!cache.known[ordinal]) {
        status = read_properties(ordinal, &cache.devices[ordinal]);
        cache.known[ordinal] = status == FLASH_SUCCESS;
    }
    *device = cache.devices[ordinal];
    pthread_mutex_unlock(&cache.lock);
    return status;
}

/* Any error of cudaGetDeviceCount() means that there is no GPU, or no driver for it. */
static flash_status_t find_ordinal(int32_t number, int *ordinal) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    const bool any = error == cudaSuccess && count > 0,
               is_current = number == FLASH_DEVICE_CUDA_CURRENT;
    FLASH_REQUIRE(
        any || !is_current, FLASH_ERROR_NO_DEVICE,
        "device is the current CUDA device, and this machine has no usable CUDA device: %s",
        cudaGetErrorString(error));
    FLASH_REQUIRE(any, FLASH_ERROR_NO_DEVICE,
                  "device is CUDA device %d, and this machine has no usable CUDA device: %s",
                  number - FLASH_DEVICE_CUDA, cudaGetErrorString(error));
    if (is_current)
        FLASH_TRY_CUDA(cudaGetDevice(ordinal));
    else
        *ordinal = number - FLASH_DEVICE_CUDA;
    FLASH_REQUIRE(*ordinal < count && *ordinal < MAX_DEVICES, FLASH_ERROR_NO_DEVICE,
                  "device is CUDA device %d of %d", *ordinal, count);
    return FLASH_SUCCESS;
}

flash_status_t cuda_device_describe(int32_t number, device_t *device) {
    int ordinal;
    FLASH_TRY(find_ordinal(number, &ordinal));
    return look_up(ordinal, device);
}

void cuda_device_name(const device_t *device, char name[64]) {
    struct cudaDeviceProp properties;
    name[0] = '\0';
    if (cudaGetDeviceProperties(&properties, device->ordinal) == cudaSuccess)
        status_copy_text(properties.name, name, 64);
}
