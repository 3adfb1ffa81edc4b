/*
 * Decodes with K and V in pages: a batch of sequences grows by a token per step. On a GPU a step is
 * captured once in a CUDA graph, which is replayed while lengths and pages change.
 *
 *     paged_decode [BATCH [CONTEXT [STEPS]]]
 *
 * On the processor, and on a GPU:
 *
 *     cd examples/paged_decode
 *     cc main.c cache.c machine_cpu.c $(pkg-config --cflags --libs flashattn) -o paged_decode
 *     cc main.c cache.c machine_cuda.c $(pkg-config --cflags --libs flashattn) \
 *         -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart -o paged_decode
 *
 * There is no model. Q, K and V are random numbers, and a copy of as much memory as a layer's
 * weights take stands for the rest of the layer, which would compute Q, and K and V of the new
 * token. A layer appends these to its cache, and attends.
 */
#include "cache.h"
#include "machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_HEADS = 32, N_HEADS_KV = 8, D_HEAD = 128 };

typedef struct layer {
    void *q, *k_new, *v_new; /* of the step's tokens */
    void *k, *v;             /* the cache */
    void *o;
} layer_t;

/* Everything that a step touches; the pointers stay what they are while the batch grows. */
typedef struct engine {
    machine_defaults_t sizes;
    cache_t cache;
    int32_t *table, *lengths; /* in memory of the device */
    int64_t *slots;           /* likewise */
    layer_t *layers;
    void *weights[2]; /* from one to the other stands for reading them */
    void *workspace;
    uint64_t workspace_size;
    const flash_kernel_t *kernel;
} engine_t;

/* Ends the program with the library's own message unless the call succeeded. */
static void check(flash_status_t status) {
    if (status != FLASH_SUCCESS) {
        fprintf(stderr, "%s: %s\n", flash_status_string(status), flash_last_error());
        exit(EXIT_FAILURE);
    }
}

/* ---- A step ---- */

static flash_paging_t paging_of(const engine_t *engine) {
    flash_paging_t paging = FLASH_PAGING_INIT;
    paging.page_size = PAGE_SIZE;
    paging.n_pages = engine->cache.n_pages;
    paging.page_table = engine->table;
    paging.page_table_stride = engine->cache.row_ids;
    return paging;
}

/* Describes one query of each sequence. Sizes are those of the longest context: lengths are looked
 * at only by the device, so that the same arguments serve every step. */
static flash_forward_args_t arguments(const engine_t *engine, const layer_t *layer,
                                      const flash_paging_t *paging) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.device = machine_device();
    args.dtype = machine_dtype();
    args.q = flash_tensor_bshd(layer->q, 1, N_HEADS, D_HEAD);
    args.k = flash_tensor_bshd(layer->k, PAGE_SIZE, N_HEADS_KV, D_HEAD);
    args.v = flash_tensor_bshd(layer->v, PAGE_SIZE, N_HEADS_KV, D_HEAD);
    args.o = flash_tensor_bshd(layer->o, 1, N_HEADS, D_HEAD);
    args.batch = engine->cache.batch;
    args.seqlen_q = 1;
    args.seqlen_k = engine->cache.row_ids * PAGE_SIZE;
    args.n_heads = N_HEADS;
    args.n_heads_kv = N_HEADS_KV;
    args.d_head = D_HEAD;
    args.paging = paging;
    args.seqused_k = engine->lengths;
    args.workspace = engine->workspace;
    args.workspace_size = engine->workspace_size;
    return args;
}

/* Each sequence's token goes to its slot. */
static void append(const engine_t *engine, const layer_t *layer) {
    flash_paging_t pool = FLASH_PAGING_INIT;
    flash_kv_append_args_t args = FLASH_KV_APPEND_ARGS_INIT;
    pool.page_size = PAGE_SIZE;
    pool.n_pages = engine->cache.n_pages;
    args.device = machine_device();
    args.dtype = machine_dtype();
    args.k_new = flash_tensor_bshd(layer->k_new, 1, N_HEADS_KV, D_HEAD);
    args.v_new = flash_tensor_bshd(layer->v_new, 1, N_HEADS_KV, D_HEAD);
    args.k = flash_tensor_bshd(layer->k, PAGE_SIZE, N_HEADS_KV, D_HEAD);
    args.v = flash_tensor_bshd(layer->v, PAGE_SIZE, N_HEADS_KV, D_HEAD);
    args.slot_mapping = engine->slots;
    args.batch = engine->cache.batch;
    args.seqlen_new = 1;
    args.n_heads_kv = N_HEADS_KV;
    args.d_head = D_HEAD;
    args.paging = &pool;
    check(flash_kv_append(&args, machine_stream()));
}

static void attend(const engine_t *engine, const layer_t *layer) {
    const flash_paging_t paging = paging_of(engine);
    const flash_forward_args_t args = arguments(engine, layer, &paging);
    check(flash_forward(&args, engine->kernel, machine_stream()));
}

static void run_layers(const engine_t *engine, int with_attention) {
    const cache_t *cache = &engine->cache;
    machine_copy_from_host(engine->table, cache->table, cache_table_bytes(cache));
    machine_copy_from_host(engine->lengths, cache->lengths, cache_lengths_bytes(cache));
    machine_copy_from_host(engine->slots, cache->slots, cache_slots_bytes(cache));
    for (int64_t i = 0; i < engine->sizes.n_layers; i++) {
        append(engine, &engine->layers[i]);
        if (with_attention)
            attend(engine, &engine->layers[i]);
        machine_copy(engine->weights[1], engine->weights[0], engine->sizes.weight_bytes);
    }
}

static void whole_step(const void *engine) {
    run_layers(engine, 1);
}

static void step_without_attention(const void *engine) {
    run_layers(engine, 0);
}

/* ---- Many steps ---- */

/* Returns the seconds of a step. The host waits for each: it has to choose a token before the next
 * one. */
static double generate(engine_t *engine, machine_step_t step, int grows) {
    machine_program_t *program = machine_record(step, engine);
    machine_run(program); /* the first one is not timed */
    machine_wait();
    const double begin = machine_now();
    for (int64_t i = 0; i < engine->sizes.n_steps; i++) {
        if (grows)
            cache_grow(&engine->cache, 1);
        machine_run(program);
        machine_wait();
    }
    const double seconds = machine_now() - begin;
    machine_free_program(program);
    return seconds / (double)engine->sizes.n_steps;
}

/* ---- Setting up ---- */

static void *random_tensor(int64_t tokens, int64_t n_heads) {
    const size_t count = (size_t)(tokens * n_heads) * D_HEAD;
    void *memory = machine_allocate(count * machine_element_bytes());
    machine_fill_randomly(memory, count);
    return memory;
}

static layer_t make_layer(const cache_t *cache) {
    return (layer_t){.q = random_tensor(cache->batch, N_HEADS),
                     .k_new = random_tensor(cache->batch, N_HEADS_KV),
                     .v_new = random_tensor(cache->batch, N_HEADS_KV),
                     .k = random_tensor(cache->n_pages * PAGE_SIZE, N_HEADS_KV),
                     .v = random_tensor(cache->n_pages * PAGE_SIZE, N_HEADS_KV),
                     .o = random_tensor(cache->batch, N_HEADS)};
}

/* The kernel and the workspace are those of every layer and step. */
static void prepare_calls(engine_t *engine) {
    const flash_paging_t paging = paging_of(engine);
    const flash_forward_args_t args = arguments(engine, &engine->layers[0], &paging);
    check(flash_select_kernel(&args, &engine->kernel, NULL, 0));
    check(flash_workspace_size(&args, engine->kernel, &engine->workspace_size));
    engine->workspace = machine_allocate(engine->workspace_size);
    check(flash_prepare(&args, engine->kernel));
}

static engine_t make_engine(machine_defaults_t sizes) {
    engine_t engine = {.sizes = sizes,
                       .cache = cache_make(sizes.batch, sizes.context + sizes.n_steps)};
    engine.table = machine_allocate(cache_table_bytes(&engine.cache));
    engine.lengths = machine_allocate(cache_lengths_bytes(&engine.cache));
    engine.slots = machine_allocate(cache_slots_bytes(&engine.cache));
    engine.layers = malloc((size_t)sizes.n_layers * sizeof *engine.layers);
    if (!engine.layers)
        exit(EXIT_FAILURE);
    for (int64_t i = 0; i < sizes.n_layers; i++)
        engine.layers[i] = make_layer(&engine.cache);
    for (int i = 0; i < 2; i++)
        engine.weights[i] = machine_allocate(sizes.weight_bytes);
    machine_fill_randomly(engine.weights[0], sizes.weight_bytes / machine_element_bytes());
    prepare_calls(&engine);
    cache_grow(&engine.cache, sizes.context);
    return engine;
}

static void free_engine(engine_t *engine) {
    for (int64_t i = 0; i < engine->sizes.n_layers; i++) {
        const layer_t *layer = &engine->layers[i];
        machine_free(layer->q);
        machine_free(layer->k_new);
        machine_free(layer->v_new);
        machine_free(layer->k);
        machine_free(layer->v);
        machine_free(layer->o);
    }
    free(engine->layers);
    for (int i = 0; i < 2; i++)
        machine_free(engine->weights[i]);
    machine_free(engine->table);
    machine_free(engine->lengths);
    machine_free(engine->slots);
    machine_free(engine->workspace);
    cache_free(&engine->cache);
}

/* ---- The program ---- */

static int64_t number(const char *text, const char *name) {
    char *end;
    const long value = strtol(text, &end, 10);
    if (*end != '\0' || value < 1 || value > 10000000) {
        fprintf(stderr, "%s is %s: not a number from 1 to 10000000\n", name, text);
        exit(EXIT_FAILURE);
    }
    return value;
}

static machine_defaults_t sizes_of(int argc, char **argv) {
    machine_defaults_t sizes = machine_defaults();
    if (argc > 1)
        sizes.batch = number(argv[1], "BATCH");
    if (argc > 2)
        sizes.context = number(argv[2], "CONTEXT");
    if (argc > 3)
        sizes.n_steps = number(argv[3], "STEPS");
    return sizes;
}

int main(int argc, char **argv) {
    machine_open();
    const machine_defaults_t sizes = sizes_of(argc, argv);
    engine_t engine = make_engine(sizes);
    const double whole = generate(&engine, whole_step, 1);
    const double rest = generate(&engine, step_without_attention, 0);

    printf("libflashattn %s, kernel %s\n", flash_version(), flash_kernel_name(engine.kernel));
    printf("%" PRId64 " sequences of %" PRId64 " to %" PRId64 " keys, %" PRId64 " layers\n",
           sizes.batch, sizes.context, sizes.context + sizes.n_steps, sizes.n_layers);
    printf("%.0f tokens/s, %.3f ms per step, of which attention has %.0f %%\n",
           (double)sizes.batch / whole, whole * 1e3, 100 * (1 - rest / whole));
    free_engine(&engine);
    return EXIT_SUCCESS;
}
