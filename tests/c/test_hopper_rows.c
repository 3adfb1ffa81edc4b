/*
 * The rows without machine code for compute capability 9.0 (codegen/machine_code.py) must be those
 * that no call chooses there, and the others those that some call does. This is asked of the
 * selection on a described device, with random problems: always the same ones.
 */
#include "selection.h"

enum { N_PROBLEMS = 60000, MOST_ROWS = 1024 };

typedef struct draw {
    uint32_t state;
} draw_t;

static int32_t draw_below(draw_t *draw, int32_t n) {
    draw->state = draw->state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(draw->state >> 8) * (uint32_t)n >> 24);
}

#define DRAW_OF(draw, values)                                                                      \
    ((values)[draw_below(draw, (int32_t)(sizeof(values) / sizeof *(values)))])

static flash_strides_t contiguous(int64_t tokens, int64_t heads, int64_t d_head) {
    return (flash_strides_t){
        .batch = tokens * heads * d_head, .seq = heads * d_head, .head = d_head};
}

static void draw_types(draw_t *draw, problem_t *problem) {
    static const int32_t types[] = {FLASH_DTYPE_FP16, FLASH_DTYPE_BF16, FLASH_DTYPE_E4M3};
    flash_params_t *p = &problem->params;
    problem->dtype = p->v_dtype = DRAW_OF(draw, types);
    p->q_dtype = problem->dtype == FLASH_DTYPE_E4M3 ? FLASH_DTYPE_BF16 : problem->dtype;
    p->o_dtype = draw_below(draw, 4) ? p->q_dtype : FLASH_DTYPE_FP32;
    if (problem->dtype == FLASH_DTYPE_E4M3 && draw_below(draw, 3) == 0)
        p->q_dtype = FLASH_DTYPE_E4M3;
}

static void draw_head_dimensions(draw_t *draw, problem_t *problem) {
    static const int32_t d_heads[] = {32, 64, 80, 96, 128, 160, 192, 256, 512, 576};
    flash_params_t *p = &problem->params;
    p->d_head = p->d_head_v = DRAW_OF(draw, d_heads);
    if (p->d_head == 192 && draw_below(draw, 2))
        p->d_head_v = 128;
    if (p->d_head == 512)
        p->v = (const void *)(uintptr_t)4096; /* another tensor than K */
    if (p->d_head == 576) {
        p->d_head_v = 512;
        if (problem->dtype == FLASH_DTYPE_E4M3 && draw_below(draw, 2)) {
            problem->dtype = p->v_dtype = FLASH_DTYPE_LATENT_E4M3;
            p->q_dtype = p->o_dtype = FLASH_DTYPE_BF16;
        }
    }
}

static void draw_lengths(draw_t *draw, problem_t *problem) {
    static const int32_t batches[] = {1, 2, 4, 16, 64, 300};
    static const int32_t queries[] = {1, 1, 2, 4, 16, 64, 128, 512, 2048, 16384};
    static const int32_t keys[] = {128, 512, 2048, 8192, 65536};
    static const int32_t groups[] = {1, 2, 4, 8, 16, 32, 128};
    flash_params_t *p = &problem->params;
    p->batch = DRAW_OF(draw, batches);
    p->seqlen_q = DRAW_OF(draw, queries);
    p->seqlen_k = draw_below(draw, 2) ? p->seqlen_q : DRAW_OF(draw, keys);
    p->n_heads_kv = p->d_head == 576 ? 1 : 1 << draw_below(draw, 6);
    p->group = DRAW_OF(draw, groups);
    p->n_heads = p->n_heads_kv * p->group;
}

static void draw_features(draw_t *draw, problem_t *problem) {
    static const int32_t on_device[4];
    static const int32_t windows[] = {63, 127, 1023, 4095};
    flash_params_t *p = &problem->params;
    problem->features = draw_below(draw, 3) ? draw_below(draw, 64) : FLASH_FEATURE_CAUSAL;
    p->window_left = p->window_right = -1;
    if (problem->dtype != FLASH_DTYPE_E4M3 && draw_below(draw, 4) == 0)
        problem->features = (problem->features & ~FLASH_FEATURE_PAGED) | FLASH_FEATURE_DROPOUT;
    if (problem->features & FLASH_FEATURE_CAUSAL)
        p->window_right = 0;
    if (problem->features & FLASH_FEATURE_WINDOW)
        p->window_left = DRAW_OF(draw, windows);
    if (problem->features & FLASH_FEATURE_PAGED) {
        problem->features |= FLASH_FEATURE_VARLEN;
        p->pages = (flash_pages_t){.table = on_device,
                                   .v_table = on_device,
                                   .table_stride = 1,
                                   .page_size = draw_below(draw, 2) ? 16 : 1,
                                   .n_pages = 100000};
    }
    if (problem->features & FLASH_FEATURE_VARLEN && draw_below(draw, 2))
        p->cu_seqlens_q = on_device;
    if (problem->features & FLASH_FEATURE_VARLEN && draw_below(draw, 2))
        p->seqused_k = on_device;
    problem->batch_invariant = draw_below(draw, 8) == 0;
    if (draw_below(draw, 2))
        set_mask_of_blocks(problem);
}

/* aligned: TMA can address the tensors. */
static problem_t draw_problem(draw_t *draw, bool aligned) {
    problem_t problem;
    flash_params_t *p = &problem.params;
    memset(&problem, 0, sizeof problem);
    draw_types(draw, &problem);
    draw_head_dimensions(draw, &problem);
    draw_lengths(draw, &problem);
    draw_features(draw, &problem);
    const int32_t spare = aligned ? 0 : 1;
    const int32_t keys = p->pages.page_size > 0 ? p->pages.page_size : p->seqlen_k;
    const int32_t token = problem.dtype == FLASH_DTYPE_LATENT_E4M3 ? 656 : p->d_head + spare;
    p->q_stride = contiguous(p->seqlen_q, p->n_heads, p->d_head + spare);
    p->o_stride = contiguous(p->seqlen_q, p->n_heads, p->d_head_v);
    p->k_stride = contiguous(keys, p->n_heads_kv, token);
    p->v_stride =
        p->d_head == 576 ? p->k_stride : contiguous(keys, p->n_heads_kv, p->d_head_v + spare);
    return problem;
}

static bool has_code_for_hopper(const flash_config_t *c) {
    if (c->arch == FLASH_ARCH_SM80)
        return !c->async_copy || (c->features & FLASH_FEATURE_DROPOUT) != 0;
    const bool is_small = c->B_r == 64 && c->B_c == 16;
    if (c->arch == FLASH_ARCH_SM80_MLA)
        return (c->features & FLASH_FEATURE_BIAS) != 0 &&
               ((c->dtype == FLASH_DTYPE_E4M3 && !is_small) || c->dtype == FLASH_DTYPE_LATENT_E4M3);
    if (c->arch == FLASH_ARCH_SM80_WIDE)
        return c->dtype == FLASH_DTYPE_E4M3;
    return true;
}

/* Notes the row that computes the problem, and of MIXED the rows that compute its parts. */
static void note_rows(const problem_t *problem, bool chosen[MOST_ROWS]) {
    const flash_kernel_t *kernel = select_part(problem, &hopper, FAMILY_NO_PART);
    if (kernel == NULL)
        return;
    chosen[kernel - kernel_table] = true;
    if (kernel->config.arch != FLASH_ARCH_MIXED)
        return;
    problem_t few = *problem;
    few.params.seqlen_q = few.params.most_queries = kernel->config.B_r / problem->params.group;
    chosen[select_part(&few, &hopper, FAMILY_DECODE_PART) - kernel_table] = true;
    chosen[select_part(problem, &hopper, FAMILY_FORWARD_PART) - kernel_table] = true;
}

static void note_rows_of_all(bool aligned, bool chosen[MOST_ROWS]) {
    draw_t draw = {aligned ? 1 : 2};
    for (int32_t i = 0; i < N_PROBLEMS; i++) {
        const problem_t problem = draw_problem(&draw, aligned);
        note_rows(&problem, chosen);
    }
}

TEST(what_tma_can_address_needs_no_row_without_code_for_hopper) {
    static bool chosen[MOST_ROWS];
    note_rows_of_all(true, chosen);
    for (int32_t i = 0; i < kernel_table_count; i++)
        if (chosen[i] && !has_code_for_hopper(&kernel_table[i].config))
            fail_msg("%s is chosen", kernel_table[i].name);
}

TEST(some_call_chooses_each_row_with_code_for_hopper) {
    static bool chosen[MOST_ROWS];
    note_rows_of_all(true, chosen);
    note_rows_of_all(false, chosen);
    for (int32_t i = 0; i < kernel_table_count; i++)
        if (is_forward_row(&kernel_table[i]) && kernel_table[i].config.arch >= FLASH_ARCH_SM80 &&
            !chosen[i] && has_code_for_hopper(&kernel_table[i].config))
            fail_msg("%s is never chosen", kernel_table[i].name);
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
