/*
 * The example needs of a device memory, work that is recorded once and run again and again, and a
 * clock. machine_cuda.c has it with a CUDA graph, machine_cpu.c for the processor. Functions end
 * the program with a message where the device refuses.
 */
#ifndef MACHINE_H
#define MACHINE_H

#include <flashattn.h>

#include <stddef.h>
#include <stdint.h>

/* These sizes make a problem that takes the device a second or so. */
typedef struct machine_defaults {
    int64_t batch, context, n_steps, n_layers;
    size_t weight_bytes; /* of a layer */
} machine_defaults_t;

typedef struct machine_program machine_program_t;
typedef void (*machine_step_t)(const void *context);

/* This is the first call. */
void machine_open(void);

machine_defaults_t machine_defaults(void);
int32_t machine_device(void);        /* FLASH_DEVICE_... */
int32_t machine_dtype(void);         /* FLASH_DTYPE_... of Q, K, V and O */
size_t machine_element_bytes(void);  /* of that type */
flash_stream_t machine_stream(void); /* on which all work is */

/* These allocate, free and fill memory of the device. */
void *machine_allocate(size_t bytes);
void machine_free(void *memory);
void machine_fill_randomly(void *memory, size_t n_elements); /* within +-1 */

/* This is memory of the host that the device can copy from while the host goes on. */
void *machine_allocate_host(size_t bytes);
void machine_free_host(void *memory);

/* These copy in the order of the stream. from: memory of the host, or of the device. */
void machine_copy_from_host(void *to, const void *from, size_t bytes);
void machine_copy(void *to, const void *from, size_t bytes);

/* Records the work that step(context) gives the device, to be run later. step is called once, or
 * each time, so that it may depend on nothing but context's addresses. */
machine_program_t *machine_record(machine_step_t step, const void *context);
void machine_run(machine_program_t *program);
void machine_free_program(machine_program_t *program);

void machine_wait(void);  /* returns when all work is done */
double machine_now(void); /* seconds */

#endif
