/*
 * Launches on a CUDA device are timed by events. They are enqueued by the hundred while a gate
 * holds the stream, so that the device then runs them without waiting for the host.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "cuda/runtime/measure.h"
#include "cuda/runtime/error.h"
#include "cuda/runtime/scope.h"

#include <stdatomic.h>
#include <time.h>

/* The stream's queue has room for a whole batch while the gate is shut. */
enum { BATCH_LAUNCHES = 128 };

/* ---- The gate ---- */

typedef struct gate {
    atomic_bool open;
} gate_t;

/* Holds the stream until the gate opens. It gives up after a while, because where launches block
 * (CUDA_LAUNCH_BLOCKING, some debuggers) nobody would ever open the gate. */
static void CUDART_CB wait_at_gate(void *argument) {
    enum { POLLS = 4000 };
    const struct timespec pause = {.tv_nsec = 50000};
    gate_t *gate = argument;
    for (int i = 0; i < POLLS && !atomic_load(&gate->open); i++)
        nanosleep(&pause, NULL);
}

/* ---- A batch of launches ---- */

typedef struct events {
    cudaEvent_t begin[BATCH_LAUNCHES];
    cudaEvent_t end[BATCH_LAUNCHES];
} events_t;

static flash_status_t enqueue(const measurement_t *m, int64_t first, int count,
                              const events_t *events) {
    for (int i = 0; i < count; i++) {
        FLASH_TRY_CUDA(cudaEventRecord(events->begin[i], m->stream));
        FLASH_TRY(measurement_launch(m, measurement_kernel(m, first + i)));
        FLASH_TRY_CUDA(cudaEventRecord(events->end[i], m->stream));
    }
    return FLASH_SUCCESS;
}

/* Waits for the stream even after an error, because the gate is on this function's stack. */
static flash_status_t run_batch(const measurement_t *m, int64_t first, int count,
                                const events_t *events) {
    gate_t gate = {.open = false};
    FLASH_TRY_CUDA(cudaLaunchHostFunc(m->stream, wait_at_gate, &gate));
    const flash_status_t status = enqueue(m, first, count, events);
    atomic_store(&gate.open, true);
    const cudaError_t error = cudaStreamSynchronize(m->stream);
    FLASH_TRY(status);
    FLASH_TRY_CUDA(error);
    return FLASH_SUCCESS;
}

static flash_status_t read_times(const events_t *events, int count, double *times) {
    for (int i = 0; i < count; i++) {
        float milliseconds = 0;
        FLASH_TRY_CUDA(cudaEventElapsedTime(&milliseconds, events->begin[i], events->end[i]));
        times[i] = 1e-3 * (double)milliseconds;
    }
    return FLASH_SUCCESS;
}

static flash_status_t run_batches(const measurement_t *m, const events_t *events, double *times) {
    const int64_t total = measurement_launches(m);
    for (int64_t first = 0; first < total; first += BATCH_LAUNCHES) {
        const int64_t left = total - first;
        const int count = left < BATCH_LAUNCHES ? (int)left : BATCH_LAUNCHES;
        FLASH_TRY(run_batch(m, first, count, events));
        FLASH_TRY(read_times(events, count, times + first));
    }
    return FLASH_SUCCESS;
}

/* ---- The measurement ---- */

/* Every kernel is loaded before a gate is shut, because loading may wait for the device. */
static flash_status_t warm_up(const measurement_t *m) {
    for (int32_t i = 0; i < m->n_kernels; i++)
        FLASH_TRY(measurement_launch(m, m->kernels[i]));
    FLASH_TRY_CUDA(cudaStreamSynchronize(m->stream));
    return FLASH_SUCCESS;
}

static flash_status_t create_events(events_t *events) {
    for (int i = 0; i < BATCH_LAUNCHES; i++) {
        FLASH_TRY_CUDA(cudaEventCreate(&events->begin[i]));
        FLASH_TRY_CUDA(cudaEventCreate(&events->end[i]));
    }
    return FLASH_SUCCESS;
}

static void destroy_events(const events_t *events) {
    for (int i = 0; i < BATCH_LAUNCHES; i++) {
        if (events->begin[i] != NULL)
            cudaEventDestroy(events->begin[i]);
        if (events->end[i] != NULL)
            cudaEventDestroy(events->end[i]);
    }
}

/* A captured stream runs nothing, and waiting for it would invalidate the capture. */
static flash_status_t check_stream(flash_stream_t stream) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    FLASH_TRY_CUDA(cudaStreamIsCapturing(stream, &capture));
    FLASH_REQUIRE(capture == cudaStreamCaptureStatusNone, FLASH_ERROR_INVALID_ARGUMENT,
                  "stream is capturing: nothing that could be measured runs on it");
    return FLASH_SUCCESS;
}

/* Measures on the current device, to which the events then belong. */
static flash_status_t measure_on_current(const measurement_t *m, double *times) {
    events_t events = {{0}, {0}};
    FLASH_TRY(check_stream(m->stream));
    flash_status_t status = create_events(&events);
    if (status == FLASH_SUCCESS)
        status = warm_up(m);
    if (status == FLASH_SUCCESS)
        status = run_batches(m, &events, times);
    destroy_events(&events);
    return status;
}

flash_status_t measure_cuda(const measurement_t *m, double *times) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(m->device, &scope));
    const flash_status_t status = measure_on_current(m, times);
    cuda_scope_leave(&scope);
    return status;
}
