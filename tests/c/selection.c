#include "selection.h"

const device_t ampere = {.number = FLASH_DEVICE_CUDA,
                         .compute_capability = 80,
                         .n_multiprocessors = 108,
                         .shared_memory_per_block = 163 * 1024};

const device_t hopper = {.number = FLASH_DEVICE_CUDA,
                         .compute_capability = 90,
                         .n_multiprocessors = 132,
                         .shared_memory_per_block = 227 * 1024};

const device_t blackwell = {.number = FLASH_DEVICE_CUDA,
                            .compute_capability = 100,
                            .n_multiprocessors = 148,
                            .shared_memory_per_block = 227 * 1024};

const device_t small_gpu = {.number = FLASH_DEVICE_CUDA,
                            .compute_capability = 86,
                            .n_multiprocessors = 82,
                            .shared_memory_per_block = 99 * 1024};

const device_t small_blackwell = {.number = FLASH_DEVICE_CUDA,
                                  .compute_capability = 120,
                                  .n_multiprocessors = 170,
                                  .shared_memory_per_block = 99 * 1024};

problem_t problem_of(int32_t dtype, int32_t features) {
    problem_t problem;
    memset(&problem, 0, sizeof problem);
    problem.dtype = problem.params.v_dtype = dtype;
    problem.params.q_dtype = dtype >= FLASH_DTYPE_E4M3 ? FLASH_DTYPE_BF16 : dtype;
    problem.params.o_dtype = problem.params.q_dtype;
    problem.features = features;
    problem.params.batch = problem.params.n_heads = problem.params.n_heads_kv = 1;
    problem.params.group = 1;
    problem.params.window_left = problem.params.window_right = -1;
    problem.params.seqlen_q = problem.params.seqlen_k = 512;
    problem.params.d_head = problem.params.d_head_v = 64;
    return problem;
}

void set_pages(problem_t *problem) {
    static const int32_t table[1];
    if (problem->features & FLASH_FEATURE_PAGED)
        problem->params.pages = (flash_pages_t){
            .table = table, .v_table = table, .table_stride = 1, .page_size = 16, .n_pages = 1};
}

void set_mask_of_blocks(problem_t *problem) {
    static const int32_t mask[1];
    if (problem->features & FLASH_FEATURE_BIAS)
        problem->params.bias = (flash_bias_t){.mask = mask,
                                              .kind = FLASH_MASK_BLOCKS,
                                              .block = {.queries = 128, .keys = 128},
                                              .n_keys = problem->params.seqlen_k};
}

void make_ragged(problem_t *problem) {
    static const int32_t on_device[4];
    problem->features |= FLASH_FEATURE_VARLEN;
    problem->params.cu_seqlens_q = on_device;
    problem->params.q_stride.batch = problem->params.o_stride.batch = 0;
}

bool has_cuda_kernels(void) {
    return kernel_table[kernel_table_count - 1].config.arch >= FLASH_ARCH_SM80;
}

const flash_kernel_t *selected(const problem_t *problem, const device_t *device) {
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    assert_success(select_kernel(problem, device, &kernel, reason));
    assert_success(select_check(kernel, problem, device));
    return kernel;
}

problem_t hopper_problem(int32_t d_head, int32_t features) {
    problem_t problem = problem_of(FLASH_DTYPE_BF16, features);
    flash_params_t *p = &problem.params;
    const flash_strides_t contiguous = {
        .batch = (int64_t)2 * p->seqlen_q * d_head, .seq = 2 * d_head, .head = d_head};
    p->d_head = p->d_head_v = d_head;
    p->batch = p->n_heads = p->n_heads_kv = 2;
    p->q_stride = p->k_stride = p->v_stride = p->o_stride = contiguous;
    return problem;
}

problem_t decode_problem(int32_t d_head, int32_t rows, int32_t features) {
    problem_t problem = problem_of(FLASH_DTYPE_FP16, features);
    flash_params_t *p = &problem.params;
    p->d_head = p->d_head_v = d_head;
    p->batch = 3;
    p->seqlen_q = 1;
    p->seqlen_k = 8192;
    p->n_heads_kv = 4;
    p->group = rows;
    p->n_heads = rows * p->n_heads_kv;
    p->q_stride = p->o_stride = (flash_strides_t){
        .batch = (int64_t)p->n_heads * d_head, .seq = (int64_t)p->n_heads * d_head, .head = d_head};
    p->k_stride = p->v_stride = (flash_strides_t){
        .batch = (int64_t)p->seqlen_k * 4 * d_head, .seq = (int64_t)4 * d_head, .head = d_head};
    set_pages(&problem);
    return problem;
}

bool decodes(const device_t *device, int32_t d_head) {
    return d_head <= 128 || device->shared_memory_per_block > 128 * 1024;
}

problem_t prefill_in_pages(int32_t d_head) {
    problem_t p = decode_problem(d_head, 4, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    p.params.seqlen_q = 2048;
    return p;
}

problem_t mixed_problem(int32_t d_head, int32_t group, int32_t seqlen_q, int32_t features) {
    problem_t p = decode_problem(d_head, group, features);
    make_ragged(&p);
    p.params.seqlen_q = seqlen_q;
    p.params.seqused_k = p.params.cu_seqlens_q;
    p.params.pages.n_pages *= 10;
    return p;
}

problem_t chunk_problem(int32_t batch, int32_t seqlen_q, int32_t seqlen_k, int32_t features) {
    problem_t problem = problem_of(FLASH_DTYPE_BF16, features);
    flash_params_t *p = &problem.params;
    p->d_head = p->d_head_v = 128;
    p->batch = batch;
    p->seqlen_q = seqlen_q;
    p->seqlen_k = seqlen_k;
    p->n_heads_kv = 8;
    p->group = 4;
    p->n_heads = 32;
    p->window_right = features & FLASH_FEATURE_CAUSAL ? 0 : -1;
    p->q_stride = p->o_stride = (flash_strides_t){
        .batch = (int64_t)seqlen_q * 32 * 128, .seq = (int64_t)32 * 128, .head = 128};
    p->k_stride = p->v_stride = (flash_strides_t){
        .batch = (int64_t)seqlen_k * 8 * 128, .seq = (int64_t)8 * 128, .head = 128};
    set_pages(&problem);
    if (features & FLASH_FEATURE_PAGED)
        p->k_stride.batch = p->v_stride.batch = (int64_t)16 * 8 * 128;
    return problem;
}
