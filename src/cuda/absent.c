/*
 * These stand for the CUDA functions in a library that was built without CUDA. Describing a device
 * fails, so that the others are never reached.
 */
#include "core/status.h"
#include "cuda/backward/begin_backward.h"
#include "cuda/family.h"
#include "cuda/runtime/cuda_append.h"
#include "cuda/runtime/cuda_combine.h"
#include "cuda/runtime/cuda_device.h"
#include "cuda/runtime/cuda_quantise.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/measure.h"

static flash_status_t absent(int32_t number) {
    FLASH_REQUIRE(number != FLASH_DEVICE_CUDA_CURRENT, FLASH_ERROR_UNSUPPORTED,
                  "device is the current CUDA device, and this library was built without CUDA");
    return status_fail(FLASH_ERROR_UNSUPPORTED,
                       "device is CUDA device %d, and this library was built without CUDA",
                       number - FLASH_DEVICE_CUDA);
}

flash_status_t cuda_device_describe(int32_t number, device_t *device) {
    (void)device;
    return absent(number);
}

void cuda_device_name(const device_t *device, char name[64]) {
    (void)device;
    name[0] = '\0';
}

static flash_status_t no_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                   const device_t *device, uint64_t *size) {
    (void)kernel;
    (void)problem;
    (void)size;
    return absent(device->number);
}

static flash_status_t no_prepare(const flash_kernel_t *kernel, const problem_t *problem,
                                 const device_t *device) {
    (void)kernel;
    (void)problem;
    return absent(device->number);
}

static flash_status_t no_launch(const flash_kernel_t *kernel, const problem_t *problem,
                                const device_t *device, flash_stream_t stream) {
    (void)kernel;
    (void)problem;
    (void)stream;
    return absent(device->number);
}

#define ABSENT_CALLS                                                                               \
    {                                                                                              \
        .workspace = no_workspace, .prepare = no_prepare, .check_workspace = no_prepare,           \
        .launch = no_launch, .launch_dq_of_ds = no_launch                                          \
    }

const family_calls_t sm80_forward_calls = ABSENT_CALLS;
const family_calls_t sm80_decode_calls = ABSENT_CALLS;
const family_calls_t sm80_backward_calls = ABSENT_CALLS;
const family_calls_t sm90_backward_calls = ABSENT_CALLS;
const family_calls_t sm90_forward_calls = ABSENT_CALLS;
const family_calls_t sm90_decode_calls = ABSENT_CALLS;

const family_calls_t copy_q_calls = ABSENT_CALLS;

flash_status_t cuda_backward_prepare(const device_t *device) {
    return absent(device->number);
}

flash_status_t cuda_backward_begin(problem_t *problem, const device_t *device,
                                   flash_stream_t stream) {
    (void)problem;
    (void)stream;
    return absent(device->number);
}

flash_status_t cuda_append(const append_params_t *params, const device_t *device,
                           flash_stream_t stream) {
    (void)params;
    (void)stream;
    return absent(device->number);
}

flash_status_t cuda_combine(const flash_combine_args_t *args, const device_t *device,
                            flash_stream_t stream) {
    (void)args;
    (void)stream;
    return absent(device->number);
}

flash_status_t cuda_quantise(const flash_quantise_args_t *args, const device_t *device,
                             flash_stream_t stream) {
    (void)args;
    (void)stream;
    return absent(device->number);
}

flash_status_t cuda_resources(const flash_kernel_t *kernel, const device_t *device,
                              flash_kernel_resources_t *resources) {
    (void)kernel;
    (void)resources;
    return absent(device->number);
}

flash_status_t measure_cuda(const measurement_t *m, double *times) {
    (void)times;
    return absent(m->device->number);
}
