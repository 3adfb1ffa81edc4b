/*
 * Where a model runs: memory, a stream of work, and what a layer computes beside attention. There
 * is one for the processor, and one for a CUDA device where the program is compiled with
 * ENGINE_CUDA. What a device is told to do it does in order, and perhaps later: wait() returns when
 * all is done. A device that cannot do it ends the program with a message.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include <flashattn.h>

#include <stddef.h>

typedef struct matrix {
    void *data;
    int64_t rows, columns;
} matrix_t;

/* A product is stored in one of these ways. */
typedef enum result { IN_TYPE, IN_FP32, ADDED_TO_FP32 } result_t;

typedef struct device device_t;
struct device {
    int32_t number; /* FLASH_DEVICE_... */
    int32_t dtype;  /* FLASH_DTYPE_... of matrices and of factors */
    flash_stream_t stream;
    const flash_executor_t *executor;
    int records; /* whether run() repeats what it has recorded */

    /* Memory of zeros, which the device keeps until it is closed. The host can use only that of
     * allocate_host(), which the device reads and writes too. */
    void *(*allocate)(device_t *device, size_t bytes);
    void *(*allocate_host)(device_t *device, size_t bytes);
    /* Returns numbers where the device can read them, as fp32 or in its type. They may stay at
     * `from`. */
    void *(*place)(device_t *device, const float *from, int64_t count, int32_t dtype);

    /* Between the device and memory of allocate_host(), which stays as it is until wait(). */
    void (*copy)(device_t *device, void *to, const void *from, size_t bytes);
    void (*wait)(device_t *device);

    /* Notes when the work comes here, as one of the moments 0 ... MOST_MOMENTS - 1; after wait()
     * seconds() tells how far apart two of them were. */
    void (*note)(device_t *device, int moment);
    double (*seconds)(device_t *device, int from, int to);

    /* Calls work(context), which tells the device what to do and nothing else. Where the shape
     * (0 ... MOST_SHAPES - 1; -1: none) came before, the device may do the same as then without
     * asking: addresses and sizes must be those of the shape, while what lies there may change. */
    void (*run)(device_t *device, int shape, void (*work)(void *context), void *context);

    /* hidden [n, columns], fp32: the rows of the table that the tokens name. */
    void (*embed)(device_t *device, const int32_t *tokens, int64_t n, const matrix_t *table,
                  float *hidden);
    /* y [n, columns] = RMSNorm(x) * norm, of the rows of x that are named, or of the first n. */
    void (*normalize)(device_t *device, const float *x, const int32_t *rows, int64_t n,
                      const matrix_t *norm, float epsilon, void *y);
    /* y [n, rows of the matrix] = x [n, columns] matrix^T, or y += that. */
    void (*multiply)(device_t *device, const void *x, int64_t n, const matrix_t *matrix,
                     result_t result, void *y);
    /* y [n, inner] = gate * sigmoid(gate) * up, of x [n, 2 inner]. */
    void (*gate)(device_t *device, const void *x, int64_t n, int64_t inner, void *y);
    /* best [n]: the place of the largest in each row of x [n, columns], the first of equals. */
    void (*choose)(device_t *device, const float *x, int64_t n, int64_t columns, int32_t *best);

    void (*close)(device_t *device);
};

enum { MOST_MOMENTS = 512, MOST_SHAPES = 32 };

device_t *device_cpu(int n_threads);
device_t *device_cuda(void);

/* Takes "--device NAME" off the beginning of the arguments; returns the name, "cpu" without it. */
const char *device_argument(int *argc, char ***argv);

/* Returns the device of a name, "cpu" or "cuda". The threads are the processor's. */
device_t *device_open(const char *name, int n_threads);

#endif
