/*
 * Selection is a pure function: these tests check which kernel it chooses on described machines,
 * whatever this machine is. They link the library's objects, because these functions are hidden.
 */
#include "support.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "select/select.h"
#include "select/serves.h"

/* Makes a problem with this type of K, V, Q and O; Q and O are never of 8 bits. */
static problem_t problem_of(int32_t dtype, int32_t features) {
    problem_t problem;
    memset(&problem, 0, sizeof problem);
    problem.dtype = dtype;
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

/* Describes an A100. */
static const device_t ampere = {.number = FLASH_DEVICE_CUDA,
                                .compute_capability = 80,
                                .n_multiprocessors = 108,
                                .shared_memory_per_block = 163 * 1024};

/* Describes an H200. */
static const device_t hopper = {.number = FLASH_DEVICE_CUDA,
                                .compute_capability = 90,
                                .n_multiprocessors = 132,
                                .shared_memory_per_block = 227 * 1024};

/* Describes a B200, which has no wgmma nor others of the instructions of 9.0 alone. */
static const device_t blackwell = {.number = FLASH_DEVICE_CUDA,
                                   .compute_capability = 100,
                                   .n_multiprocessors = 148,
                                   .shared_memory_per_block = 227 * 1024};

/* Describes a device with the least shared memory that the SM80 family serves: 8.6, 8.9, 12.0. */
static const device_t small_gpu = {.number = FLASH_DEVICE_CUDA,
                                   .compute_capability = 86,
                                   .n_multiprocessors = 82,
                                   .shared_memory_per_block = 99 * 1024};

/* Describes a GeForce RTX 5090, the newest of these devices. */
static const device_t small_blackwell = {.number = FLASH_DEVICE_CUDA,
                                         .compute_capability = 120,
                                         .n_multiprocessors = 170,
                                         .shared_memory_per_block = 99 * 1024};

/* Gives the problem's K and V pages, which no test reads, if its features say so. */
static void set_pages(problem_t *problem) {
    static const int32_t table[1];
    if (problem->features & FLASH_FEATURE_PAGED)
        problem->params.pages = (flash_pages_t){
            .table = table, .v_table = table, .table_stride = 1, .page_size = 16, .n_pages = 1};
}

/* Gives the problem ragged queries, whose lengths no test reads. */
static void make_ragged(problem_t *problem) {
    static const int32_t on_device[4];
    problem->features |= FLASH_FEATURE_VARLEN;
    problem->params.cu_seqlens_q = on_device;
    problem->params.q_stride.batch = problem->params.o_stride.batch = 0;
}

static bool has_cuda_kernels(void) {
    return kernel_table[kernel_table_count - 1].config.arch >= FLASH_ARCH_SM80;
}

static const flash_kernel_t *selected(const problem_t *problem, const device_t *device) {
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    assert_success(select_kernel(problem, device, &kernel, reason));
    assert_success(select_check(kernel, problem, device));
    return kernel;
}

static void check_family(int32_t dtype, uint32_t isa, const char *prefix) {
    const device_t device = {.number = FLASH_DEVICE_CPU, .isa = isa};
    const problem_t problem = problem_of(dtype, FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN);
    assert_memory_equal(selected(&problem, &device)->name, prefix, strlen(prefix));
}

static void a_bare_machine_gets_the_reference(void **state) {
    (void)state;
    check_family(FLASH_DTYPE_FP16, 0, "flash_fwd_reference_fp16_");
    check_family(FLASH_DTYPE_BF16, 0, "flash_fwd_reference_bf16_");
    check_family(FLASH_DTYPE_FP32, 0, "flash_fwd_reference_fp32_");
    check_family(FLASH_DTYPE_E4M3, 0, "flash_fwd_reference_e4m3_");
}

#if defined(__x86_64__)
static bool has_rows_of(int32_t arch) {
    for (int32_t i = 0; i < kernel_table_count; i++)
        if (kernel_table[i].config.arch == arch)
            return true;
    return false;
}

static bool has_all_cpu_families(void) {
    return has_rows_of(FLASH_ARCH_AVX2) && has_rows_of(FLASH_ARCH_AVX512) &&
           has_rows_of(FLASH_ARCH_AMX) && has_rows_of(FLASH_ARCH_AVX512_BF16);
}

static void the_fastest_instruction_set_wins(void **state) {
    const uint32_t both = FLASH_ISA_AVX2 | FLASH_ISA_AVX512;
    (void)state;
    if (!has_all_cpu_families())
        skip();
    check_family(FLASH_DTYPE_FP16, FLASH_ISA_AVX2, "flash_fwd_avx2_fp16_");
    check_family(FLASH_DTYPE_BF16, FLASH_ISA_AVX2, "flash_fwd_avx2_bf16_");
    check_family(FLASH_DTYPE_FP32, FLASH_ISA_AVX2, "flash_fwd_avx2_fp32_");
    check_family(FLASH_DTYPE_FP16, both, "flash_fwd_avx512_fp16_");
    check_family(FLASH_DTYPE_BF16, both, "flash_fwd_avx512_bf16_");
    check_family(FLASH_DTYPE_FP32, both, "flash_fwd_avx512_fp32_");
    check_family(FLASH_DTYPE_FP16, both | FLASH_ISA_AMX, "flash_fwd_amx_fp16_");
    check_family(FLASH_DTYPE_BF16, both | FLASH_ISA_AMX, "flash_fwd_amx_bf16_");
    check_family(FLASH_DTYPE_FP32, both | FLASH_ISA_AMX, "flash_fwd_avx512_fp32_");
    check_family(FLASH_DTYPE_E4M3, FLASH_ISA_AVX2, "flash_fwd_avx2_e4m3_");
    check_family(FLASH_DTYPE_E4M3, both, "flash_fwd_avx512_e4m3_");
    check_family(FLASH_DTYPE_E4M3, UINT32_MAX, "flash_fwd_avx512_e4m3_");
    check_family(FLASH_DTYPE_LATENT_E4M3, UINT32_MAX, "flash_fwd_avx512_latente4m3_");
}

/* Products of bf16 pairs are selected only where they are fast, and never before AMX. */
static void products_of_pairs_must_pay(void **state) {
    device_t device = {.number = FLASH_DEVICE_CPU,
                       .isa = FLASH_ISA_AVX2 | FLASH_ISA_AVX512 | FLASH_ISA_AVX512_BF16};
    const problem_t bf16 = problem_of(FLASH_DTYPE_BF16, 0), fp16 = problem_of(FLASH_DTYPE_FP16, 0);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    (void)state;
    if (!has_all_cpu_families())
        skip();
    assert_success(select_kernel(&bf16, &device, &kernel, reason));
    assert_int_equal(kernel->config.arch, FLASH_ARCH_AVX512);
    assert_non_null(strstr(reason, "slow"));
    device.dots_pay = true;
    assert_int_equal(selected(&bf16, &device)->config.arch, FLASH_ARCH_AVX512_BF16);
    assert_int_equal(selected(&fp16, &device)->config.arch, FLASH_ARCH_AVX512);
    device.isa |= FLASH_ISA_AMX;
    device.dots_pay = false;
    assert_success(select_kernel(&bf16, &device, &kernel, reason));
    assert_int_equal(kernel->config.arch, FLASH_ARCH_AMX);
    assert_null(strstr(reason, "slow"));
}

static void a_refused_permission_is_named(void **state) {
    const device_t device = {
        .number = FLASH_DEVICE_CPU, .isa = FLASH_ISA_AVX2 | FLASH_ISA_AVX512, .amx_refused = true};
    const problem_t problem = problem_of(FLASH_DTYPE_BF16, 0);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    (void)state;
    if (!has_all_cpu_families())
        skip();
    assert_success(select_kernel(&problem, &device, &kernel, reason));
    assert_memory_equal(kernel->name, "flash_fwd_avx512_", strlen("flash_fwd_avx512_"));
    assert_non_null(strstr(reason, "refused"));
    assert_non_null(strstr(family_lack(&family_amx, &device), "refused"));
}
#endif

static void an_absent_family_of_the_environment_is_named(void **state) {
    device_t device = {.number = FLASH_DEVICE_CPU, .isa_absent = true};
    const problem_t problem = problem_of(FLASH_DTYPE_BF16, 0);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    (void)state;
    assert_success(select_kernel(&problem, &device, &kernel, reason));
    assert_non_null(strstr(reason, "lacks the family that FLASHATTN_CPU_ISA names"));
    device.isa_absent = false;
    assert_success(select_kernel(&problem, &device, &kernel, reason));
    assert_null(strstr(reason, "FLASHATTN_CPU_ISA"));
}

/* Says whether rows of other families must compute what this row serves, and none do. */
static bool needs_rows_that_are_not_there(const flash_kernel_t *kernel, const problem_t *problem,
                                          const device_t *device) {
    return kernel->config.arch == FLASH_ARCH_MIXED &&
           select_part(problem, device, FAMILY_FORWARD_PART) == NULL;
}

/* Each row of the table is tried for a problem that it is not for. */
static void a_row_serves_its_own_problems_only(void **state) {
    const device_t best_cpu = {.number = FLASH_DEVICE_CPU, .isa = UINT32_MAX};
    const device_t bare_cpu = {.number = FLASH_DEVICE_CPU, .isa = 0};
    const device_t old_gpu = {.number = FLASH_DEVICE_CUDA, .compute_capability = 75};
    (void)state;
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *kernel = &kernel_table[i];
        if (!is_forward_row(kernel))
            continue;
        const bool cuda = kernel->config.arch >= FLASH_ARCH_SM80;
        const device_t all = cuda ? hopper : best_cpu;
        const device_t none = cuda ? old_gpu : bare_cpu;
        problem_t problem = problem_of(kernel->config.dtype, kernel->config.features);
        problem.params.d_head = cuda ? kernel->config.d_head : 64;
        problem.params.d_head_v = cuda ? config_d_head_v(&kernel->config) : 64;
        problem.params.seqlen_q = 1; /* which decode kernels serve, too */
        set_pages(&problem);
        if (kernel->config.arch == FLASH_ARCH_MIXED)
            make_ragged(&problem);
        if (needs_rows_that_are_not_there(kernel, &problem, &all))
            continue;
        assert_refused(select_check(kernel, &problem, cuda ? &best_cpu : &hopper),
                       FLASH_ERROR_UNSUPPORTED, "only");
        assert_refused(select_check(kernel, &problem, cuda ? &best_cpu : &hopper),
                       FLASH_ERROR_UNSUPPORTED, cuda ? "on the CPU: " : "on CUDA device 0: ");
        assert_success(select_check(kernel, &problem, &all));
        if (kernel->config.arch != FLASH_ARCH_REFERENCE)
            assert_refused(select_check(kernel, &problem, &none), FLASH_ERROR_UNSUPPORTED, "need");
        problem.dtype = kernel->config.dtype % FLASH_DTYPE_LATENT_E4M3 + 1;
        assert_refused(select_check(kernel, &problem, &all), FLASH_ERROR_UNSUPPORTED, "dtype");
        problem.dtype = kernel->config.dtype;
        problem.features = 64;
        assert_refused(select_check(kernel, &problem, &all), FLASH_ERROR_UNSUPPORTED, "features");
    }
}

static void check_cuda_row(int32_t d_head, int32_t features, const char *name) {
    problem_t problem = problem_of(FLASH_DTYPE_BF16, features);
    problem.params.d_head = problem.params.d_head_v = d_head;
    assert_string_equal(selected(&problem, &ampere)->name, name);
}

static void the_row_with_the_fewest_features_wins(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    check_cuda_row(64, 0,
                   "flash_fwd_sm80_bf16_d64_128x128_w4_async_eager_swizzled_load_2_2_2_optsoftmax");
    check_cuda_row(120, 0,
                   "flash_fwd_sm80_bf16_d128_128x64_w4_async_eager_swizzled_load_2_2_2_optsoftmax");
    check_cuda_row(128, FLASH_FEATURE_CAUSAL,
                   "flash_fwd_sm80_bf16_d128_128x64_w4_async_eager_swizzled_load_2_2_2_optsoftmax_"
                   "causal_varlen");
    check_cuda_row(128, FLASH_FEATURE_SOFTCAP,
                   "flash_fwd_sm80_bf16_d128_128x64_w4_async_eager_swizzled_load_2_2_2_optsoftmax_"
                   "causal_window_softcap_varlen");
}

/* Returns the row of the device for another head dimension of V. */
static const flash_config_t *selected_with_d_head_v(problem_t problem, int32_t d_head,
                                                    int32_t d_head_v, const device_t *device) {
    problem.params.d_head = d_head;
    problem.params.d_head_v = d_head_v;
    return &selected(&problem, device)->config;
}

/* The smallest row serves in which both head dimensions fit. */
static void head_dimensions_of_k_and_v_may_differ(void **state) {
    static const int32_t dims[][3] = {{192, 128, 192}, {128, 192, 192}, {64, 256, 256},
                                      {96, 8, 96},     {8, 96, 96},     {128, 64, 128}};
    const problem_t problem = problem_of(FLASH_DTYPE_BF16, FLASH_FEATURE_CAUSAL);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        const flash_config_t *config =
            selected_with_d_head_v(problem, dims[i][0], dims[i][1], &ampere);
        assert_int_equal(config->arch, FLASH_ARCH_SM80);
        assert_int_equal(config->d_head, dims[i][2]);
        assert_int_equal(config->async_copy, 1);
    }
}

static void unaligned_rows_of_v_load_through_registers(void **state) {
    const problem_t problem = problem_of(FLASH_DTYPE_BF16, 0);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    assert_int_equal(selected_with_d_head_v(problem, 64, 36, &ampere)->async_copy, 0);
    assert_int_equal(selected_with_d_head_v(problem, 36, 64, &ampere)->async_copy, 0);
    assert_int_equal(selected_with_d_head_v(problem, 64, 40, &ampere)->async_copy, 1);
}

static void d_head_v_above_that_of_a_row_is_refused_by_name(void **state) {
    problem_t problem = problem_of(FLASH_DTYPE_BF16, 0);
    const flash_kernel_t *kernel;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    const flash_kernel_t *row = selected(&problem, &ampere);
    problem.params.d_head_v = 72;
    assert_refused(select_check(row, &problem, &ampere), FLASH_ERROR_UNSUPPORTED,
                   "d_head_v. The kernel has dtype BF16");
    problem.params.d_head_v = 264;
    assert_refused(select_kernel(&problem, &ampere, &kernel, NULL), FLASH_ERROR_UNSUPPORTED,
                   "d_head 64, d_head_v 264");
}

static void long_sequences_take_small_steps_at_d_head_256(void **state) {
    problem_t problem = problem_of(FLASH_DTYPE_FP16, 0);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    problem.params.d_head = problem.params.d_head_v = 256;
    assert_int_equal(selected(&problem, &ampere)->config.B_c, 64);
    problem.params.seqlen_k = 4096;
    assert_int_equal(selected(&problem, &ampere)->config.B_c, 32);
    problem.params.seqlen_k = 512;
    problem.batch_invariant = true;
    assert_int_equal(selected(&problem, &ampere)->config.B_c, 32);
}

static void what_is_chosen_fits_a_small_device(void **state) {
    static const int32_t d_heads[] = {8, 32, 64, 96, 128, 192, 256};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++)
        for (int32_t features = 0; features < 16; features++) {
            problem_t problem = problem_of(FLASH_DTYPE_FP16, features);
            problem.params.d_head = problem.params.d_head_v = d_heads[i];
            selected(&problem, &small_gpu);
        }
}

static void unaligned_tensors_load_through_registers(void **state) {
    problem_t problem = problem_of(FLASH_DTYPE_FP16, 0);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    assert_int_equal(selected(&problem, &ampere)->config.async_copy, 1);
    const flash_kernel_t *aligned = selected(&problem, &ampere);
    problem.params.k_stride.head = 68;
    assert_int_equal(selected(&problem, &ampere)->config.async_copy, 0);
    assert_refused(select_check(aligned, &problem, &ampere), FLASH_ERROR_UNSUPPORTED,
                   "16-byte aligned");
}

/* ---- SM90 ---- */

/* Makes contiguous tensors, with several of everything, which TMA can address. */
static problem_t hopper_problem(int32_t d_head, int32_t features) {
    problem_t problem = problem_of(FLASH_DTYPE_BF16, features);
    flash_params_t *p = &problem.params;
    const flash_strides_t contiguous = {
        .batch = (int64_t)2 * p->seqlen_q * d_head, .seq = 2 * d_head, .head = d_head};
    p->d_head = p->d_head_v = d_head;
    p->batch = p->n_heads = p->n_heads_kv = 2;
    p->q_stride = p->k_stride = p->v_stride = p->o_stride = contiguous;
    return problem;
}

static void hopper_takes_the_rows_of_its_own_family(void **state) {
    const int32_t all =
        FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW | FLASH_FEATURE_SOFTCAP | FLASH_FEATURE_VARLEN;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (int32_t features = 0; features <= all; features++) {
        const problem_t problem = hopper_problem(120, features);
        assert_int_equal(selected(&problem, &hopper)->config.arch, FLASH_ARCH_SM90);
        assert_int_equal(selected(&problem, &hopper)->config.d_head, 128);
        assert_int_equal(selected(&problem, &ampere)->config.arch, FLASH_ARCH_SM80);
        assert_int_equal(selected(&problem, &blackwell)->config.arch, FLASH_ARCH_SM80);
    }
}

/* Makes a problem whose V and O have a head dimension of their own. */
static problem_t hopper_pair(int32_t d_head, int32_t d_head_v, int32_t features) {
    problem_t problem = hopper_problem(d_head, features);
    flash_params_t *p = &problem.params;
    p->d_head_v = d_head_v;
    p->v_stride = p->o_stride = (flash_strides_t){.batch = (int64_t)2 * p->seqlen_q * d_head_v,
                                                  .seq = (int64_t)2 * d_head_v,
                                                  .head = d_head_v};
    return problem;
}

/* Ragged batches with a window or a softcap have no row of 192/128: that of 192 is as fast. */
static bool has_row_of_192_128(int32_t features) {
    return !(features & FLASH_FEATURE_VARLEN) ||
           !(features & (FLASH_FEATURE_WINDOW | FLASH_FEATURE_SOFTCAP));
}

/* A row of d_head 192 has a d_head_v of 128 or 192; others have one head dimension. */
static void hopper_takes_the_smallest_row_for_both_head_dimensions(void **state) {
    static const int32_t cases[][4] = {
        /* those of the problem, d_head and d_head_v of the row */
        {192, 128, 192, 128}, {136, 64, 192, 128}, {192, 192, 192, 0}, {192, 136, 192, 0},
        {64, 128, 128, 0},    {128, 64, 128, 0},   {64, 192, 192, 0},  {200, 128, 256, 0},
        {96, 40, 96, 0},      {8, 256, 256, 0}};
    const int32_t all =
        FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW | FLASH_FEATURE_SOFTCAP | FLASH_FEATURE_VARLEN;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features <= all; features++) {
            const problem_t problem = hopper_pair(cases[i][0], cases[i][1], features);
            const flash_config_t *config = &selected(&problem, &hopper)->config;
            assert_int_equal(config->arch, FLASH_ARCH_SM90);
            assert_int_equal(config->d_head, cases[i][2]);
            assert_int_equal(config->d_head_v, has_row_of_192_128(features) ? cases[i][3] : 0);
        }
}

static void a_row_serves_no_more_than_its_head_dimensions(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    const problem_t pair = hopper_pair(192, 128, 0);
    const flash_kernel_t *kernel = selected(&pair, &hopper);
    const problem_t narrow = hopper_pair(8, 8, 0), wide = hopper_pair(200, 128, 0);
    const problem_t wide_v = hopper_pair(192, 136, 0), odd = hopper_pair(192, 124, 0);
    assert_success(select_check(kernel, &narrow, &hopper));
    assert_refused(select_check(kernel, &wide, &hopper), FLASH_ERROR_UNSUPPORTED, "d_head. ");
    assert_refused(select_check(kernel, &wide_v, &hopper), FLASH_ERROR_UNSUPPORTED, "d_head_v. ");
    assert_refused(select_check(kernel, &odd, &hopper), FLASH_ERROR_UNSUPPORTED,
                   "d_head_v of V and O, to be multiples of 16 bytes");
}

static void the_other_families_say_what_hopper_kernels_need(void **state) {
    const problem_t problem = hopper_problem(64, 0);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    const flash_kernel_t *kernel = selected(&problem, &hopper);
    assert_refused(select_check(kernel, &problem, &ampere), FLASH_ERROR_UNSUPPORTED, "9.0");
    assert_refused(select_check(kernel, &problem, &blackwell), FLASH_ERROR_UNSUPPORTED, "9.0");
}

/* Checks that the kernel for Hopper refuses with these words, and that another one serves. */
static void check_tma_refuses(const problem_t *problem, const char *words) {
    const problem_t addressable = hopper_problem(64, 0);
    const flash_kernel_t *kernel = selected(&addressable, &hopper);
    assert_refused(select_check(kernel, problem, &hopper), FLASH_ERROR_UNSUPPORTED, words);
    assert_int_equal(selected(problem, &hopper)->config.arch, FLASH_ARCH_SM80);
}

static void what_tma_cannot_address_goes_to_sm80(void **state) {
    const problem_t good = hopper_problem(64, 0);
    problem_t p;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p = good, p.params.q = (const void *)(uintptr_t)8, check_tma_refuses(&p, "16-byte aligned");
    p = good, p.params.v = (const void *)(uintptr_t)2, check_tma_refuses(&p, "16-byte aligned");
    p = good, p.params.o = (void *)(uintptr_t)8, check_tma_refuses(&p, "16-byte aligned");
    p = good, p.params.o_stride.seq = 131, check_tma_refuses(&p, "multiples of 16 bytes");
    p = good, p.params.d_head = p.params.d_head_v = 60,
    check_tma_refuses(&p, "d_head elements of a row of Q and K");
    p = good, p.params.k_stride.head = 68, check_tma_refuses(&p, "multiples of 16 bytes");
    p = good, p.params.q_stride.seq = 129, check_tma_refuses(&p, "multiples of 16 bytes");
    p = good, p.params.v_stride.batch = 4, check_tma_refuses(&p, "multiples of 16 bytes");
    p = good, p.params.q_stride.seq = (int64_t)1 << 39, check_tma_refuses(&p, "2^40");
    p = good, p.params.q_stride.seq = -8, check_tma_refuses(&p, "2^40");
}

/* O of fp32 is stored from registers, and needs less than O of 16 bits. */
static void an_o_of_fp32_needs_no_tma(void **state) {
    const problem_t narrow = hopper_problem(64, 0);
    problem_t wide = narrow, p;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    wide.params.o_dtype = FLASH_DTYPE_FP32;
    assert_ptr_equal(selected(&wide, &hopper), selected(&narrow, &hopper));
    p = wide, p.params.o = (void *)(uintptr_t)8, p.params.o_stride.seq = 130;
    assert_ptr_equal(selected(&p, &hopper), selected(&narrow, &hopper));
    p = wide, p.params.o = (void *)(uintptr_t)4, check_tma_refuses(&p, "8-byte aligned rows");
    p = wide, p.params.o_stride.head = 65, check_tma_refuses(&p, "8-byte aligned rows");
    p = wide, p.params.q_dtype = FLASH_DTYPE_FP32;
    assert_refused(select_check(selected(&narrow, &hopper), &p, &hopper), FLASH_ERROR_UNSUPPORTED,
                   "q.dtype");
}

/* Strides are the largest and smallest, or unused; or there are no keys. */
static void what_tma_can_address_stays(void **state) {
    problem_t p = hopper_problem(64, 0);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p.params.q_stride.batch = ((int64_t)1 << 39) - 8;
    p.params.k_stride.batch = p.params.v_stride.head = 0;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
    p.params.batch = 1;
    p.params.v_stride.batch = 3;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
    p.params.seqlen_k = 0;
    p.params.k_stride.head = 1;
    p.params.k = (const void *)(uintptr_t)2;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
}

static void more_tiles_than_a_launch_takes_are_refused(void **state) {
    problem_t problem = hopper_problem(64, 0);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (int32_t features = 0; features <= FLASH_FEATURE_CAUSAL; features++) {
        problem = hopper_problem(64, features);
        const flash_kernel_t *kernel = selected(&problem, &hopper);
        problem.params.n_heads = problem.params.n_heads_kv = INT32_MAX;
        problem.params.batch = problem.params.seqlen_q = 1;
        assert_int_equal(select_check(kernel, &problem, &hopper), FLASH_SUCCESS);
        problem.params.batch = 2;
        assert_refused(select_check(kernel, &problem, &hopper), FLASH_ERROR_UNSUPPORTED, "tiles");
    }
}

/* At d_head 64 there are tiles of 128 and of 192 rows. */
static void hopper_takes_tiles_of_fewer_rows_where_there_are_few(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    problem_t problem = hopper_problem(64, 0);
    problem.params.seqlen_q = 33; /* more than decode kernels take */
    assert_int_equal(selected(&problem, &hopper)->config.B_r, 128);
    problem.params.batch = 1000;
    assert_int_equal(selected(&problem, &hopper)->config.B_r, 128);
    problem.params.seqlen_q = 4096;
    assert_int_equal(selected(&problem, &hopper)->config.B_r, 192);
    problem.batch_invariant = true;
    assert_int_equal(selected(&problem, &hopper)->config.B_r, 192);
}

static void a_batch_invariant_choice_looks_at_no_batch(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (int32_t features = 0; features < 8; features++) {
        problem_t problem = hopper_problem(128, features);
        problem.batch_invariant = true;
        const flash_kernel_t *kernel = selected(&problem, &hopper);
        for (problem.params.batch = 1; problem.params.batch < 100; problem.params.batch *= 3)
            assert_ptr_equal(selected(&problem, &hopper), kernel);
    }
}

/* ---- Decode ---- */

/* Makes a problem of one query over many keys, with `rows` query heads per K/V head. */
static problem_t decode_problem(int32_t d_head, int32_t rows, int32_t features) {
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

/* Rows of d_head 256 take 128 KB of shared memory, others 96 KB. */
static bool decodes(const device_t *device, int32_t d_head) {
    return d_head <= 128 || device->shared_memory_per_block > 128 * 1024;
}

static void check_decode_choice(const device_t *device, int32_t d_head, int32_t rows,
                                int32_t features) {
    const problem_t problem = decode_problem(d_head, rows, features);
    const bool paged = (features & FLASH_FEATURE_PAGED) != 0;
    const flash_kernel_t *kernel = selected(&problem, device);
    assert_int_equal((kernel->config.features & FLASH_FEATURE_PAGED) != 0, paged);
    if (decodes(device, d_head)) {
        assert_int_equal(kernel->config.arch, FLASH_ARCH_SM80_DECODE);
        assert_int_equal(kernel->config.d_head, d_head <= 64 ? 64 : d_head <= 128 ? 128 : 256);
        assert_int_equal(kernel->config.B_r, rows <= 8 || d_head > 128 ? 8 : 16);
    } else {
        assert_int_not_equal(kernel->config.arch, FLASH_ARCH_SM80_DECODE);
    }
}

static void few_rows_over_many_keys_are_decoded(void **state) {
    static const int32_t d_heads[] = {8, 64, 80, 128, 192, 256};
    const device_t *const devices[] = {&ampere, &small_gpu, &hopper, &blackwell, &small_blackwell};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t device = 0; device < sizeof devices / sizeof devices[0]; device++)
        for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++)
            for (int32_t rows = 1; rows <= 32; rows++)
                for (int32_t features = 0; features < 32; features++)
                    check_decode_choice(devices[device], d_heads[i], rows, features);
}

/* Several queries count as much as several heads. */
static void more_rows_are_not_decoded_by_sm80_decode(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    problem_t problem = decode_problem(128, 8, FLASH_FEATURE_CAUSAL);
    problem.params.seqlen_q = 4;
    assert_int_equal(selected(&problem, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
    problem.params.seqlen_q = 5;
    assert_int_equal(selected(&problem, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    assert_int_equal(selected(&problem, &small_gpu)->config.arch, FLASH_ARCH_SM80);
    problem = decode_problem(128, 33, 0);
    assert_int_equal(selected(&problem, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    assert_int_equal(selected(&problem, &ampere)->config.arch, FLASH_ARCH_SM80);
}

/* Checks that the decode kernel refuses with these words, and that another family serves. */
static void check_not_decoded(const problem_t *problem, const char *words) {
    const problem_t good = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = selected(&good, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_SM80_DECODE);
    assert_refused(select_check(kernel, problem, &hopper), FLASH_ERROR_UNSUPPORTED, words);
    assert_int_not_equal(selected(problem, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
}

static void what_decode_kernels_cannot_read_goes_to_others(void **state) {
    const problem_t good = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    problem_t p;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p = good, p.params.q = (const void *)(uintptr_t)8, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.k = (const void *)(uintptr_t)2, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.v = (const void *)(uintptr_t)4, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.q_stride.head = 68, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.k_stride.seq = 260, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.v_stride.batch = 4, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.d_head = p.params.d_head_v = 60, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.d_head_v = 60, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.k_stride.seq = (int64_t)1 << 30, check_not_decoded(&p, "below 2^31 bytes");
    p = good, p.params.v_stride.seq = (int64_t)1 << 30, check_not_decoded(&p, "below 2^31 bytes");
    p = good, p.params.seqlen_q = 9, check_not_decoded(&p, "at most 32 rows");
}

/* O may lie anywhere, and tokens may be 2^31 bytes less a chunk apart. */
static void what_decode_kernels_can_read_stays(void **state) {
    problem_t p = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p.params.o = (void *)(uintptr_t)2;
    p.params.o_stride.head = 67;
    p.params.k_stride.seq = p.params.v_stride.seq = ((int64_t)1 << 30) - 8;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
}

/* Whether a decode kernel serves a ragged batch depends on its longest sequence of queries. */
static void batch_invariant_calls_are_decoded_unless_queries_are_ragged(void **state) {
    static const int32_t on_device[4];
    problem_t p = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p.params.cu_seqlens_q = on_device;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
    p.batch_invariant = true;
    check_not_decoded(&p, "FLASH_FLAG_BATCH_INVARIANT");
    p.params.cu_seqlens_q = NULL;
    p.params.seqused_k = on_device;
    const flash_kernel_t *kernel = selected(&p, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_SM80_DECODE);
    for (p.params.batch = 1; p.params.batch <= 3000; p.params.batch *= 7)
        assert_ptr_equal(selected(&p, &hopper), kernel);
}

static void more_blocks_than_a_launch_takes_are_refused(void **state) {
    problem_t p = decode_problem(64, 1, FLASH_FEATURE_VARLEN);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    const flash_kernel_t *kernel = selected(&p, &hopper);
    p.params.n_heads = p.params.n_heads_kv = INT32_MAX;
    p.params.batch = 1;
    assert_success(select_check(kernel, &p, &hopper));
    p.params.batch = 2;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "more tiles");
    p = decode_problem(64, 1, FLASH_FEATURE_VARLEN);
    p.batch_invariant = true;
    p.params.batch = 1 << 20;
    p.params.seqlen_k = 512 * 512; /* 512 pieces at most, of each of 4 heads */
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "more pieces");
    p.params.seqlen_k = 511 * 512;
    assert_success(select_check(kernel, &p, &hopper));
}

/* Looking up pages costs time, and without pages there is no table. */
static void rows_with_pages_serve_pages_alone(void **state) {
    const problem_t paged = decode_problem(64, 4, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    const problem_t contiguous = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    assert_refused(select_check(selected(&paged, &hopper), &contiguous, &hopper),
                   FLASH_ERROR_UNSUPPORTED, "in pages alone");
}

/* ---- Latent attention ---- */

/* Makes a problem of one query over many keys of 576 columns, of which V is the first 512. */
static problem_t latent_problem(int32_t rows, int32_t features) {
    problem_t problem = decode_problem(576, rows, features);
    problem.params.d_head_v = 512;
    return problem;
}

/* Makes the same over a cache of e4m3. */
static problem_t latent_cache(int32_t rows, int32_t features) {
    problem_t problem = latent_problem(rows, features);
    problem.dtype = FLASH_DTYPE_E4M3;
    problem.params.q_dtype = problem.params.o_dtype = FLASH_DTYPE_BF16;
    return problem;
}

/* SM90_MLA adds no bias where it converts K. */
static bool is_for_sm90_mla(const device_t *device, const problem_t *problem) {
    const bool has_bias = (problem->features & FLASH_FEATURE_BIAS) != 0;
    return device->compute_capability == 90 && !(has_bias && problem->dtype == FLASH_DTYPE_E4M3);
}

static void check_latent_choice(const device_t *device, const problem_t *problem) {
    const int32_t rows = problem->params.group;
    const int32_t own_features = FLASH_FEATURE_PAGED | FLASH_FEATURE_BIAS;
    const flash_config_t *config = &selected(problem, device)->config;
    const bool has_long_steps = device->shared_memory_per_block > 128 * 1024;
    assert_int_equal(config->dtype, problem->dtype);
    assert_int_equal(config->features & own_features, problem->features & own_features);
    if (is_for_sm90_mla(device, problem)) {
        assert_int_equal(config->arch, FLASH_ARCH_SM90_MLA);
        return;
    }
    assert_int_equal(config->arch, FLASH_ARCH_SM80_MLA);
    assert_int_equal(config->B_r, rows <= 32 ? 32 : 64);
    assert_int_equal(config->B_c, rows > 32 && has_long_steps ? 32 : 16);
}

static void latent_attention_has_kernels_on_every_device(void **state) {
    static const int32_t heads[] = {1, 16, 20, 32, 33, 64, 128};
    const device_t *const devices[] = {&ampere, &small_gpu, &hopper, &blackwell, &small_blackwell};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t device = 0; device < sizeof devices / sizeof devices[0]; device++)
        for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
            for (int32_t features = 0; features < 64; features++) {
                const problem_t problem = latent_problem(heads[i], features);
                const problem_t cache = latent_cache(heads[i], features);
                check_latent_choice(devices[device], &problem);
                check_latent_choice(devices[device], &cache);
            }
}

static void check_not_latent_on(const device_t *device, const problem_t *problem,
                                const char *words) {
    const problem_t good = latent_problem(16, FLASH_FEATURE_VARLEN);
    assert_refused(select_check(selected(&good, device), problem, device), FLASH_ERROR_UNSUPPORTED,
                   words);
}

static void check_not_latent(const problem_t *problem, const char *words) {
    check_not_latent_on(&ampere, problem, words);
    check_not_latent_on(&hopper, problem, words);
}

static void what_is_no_latent_attention_is_refused(void **state) {
    const problem_t good = latent_problem(16, FLASH_FEATURE_VARLEN);
    problem_t p;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p = good, p.params.v = (const void *)(uintptr_t)128, check_not_latent(&p, "first columns of K");
    p = good, p.params.v_stride.seq += 8, check_not_latent(&p, "first columns of K");
    p = good, p.params.d_head = 504, check_not_latent(&p, "first columns of K");
    p = good, p.params.d_head_v = 510, check_not_latent(&p, "multiple of 4");
    p = good, p.params.k = p.params.v = (const void *)(uintptr_t)2;
    check_not_latent_on(&ampere, &p, "16-byte aligned");
    p = good, p.params.q_stride.head = 580, check_not_latent_on(&ampere, &p, "16-byte aligned");
    p = good, p.params.d_head = 572, check_not_latent_on(&ampere, &p, "16-byte aligned");
    p = latent_problem(16, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    assert_refused(select_check(selected(&p, &ampere), &good, &ampere), FLASH_ERROR_UNSUPPORTED,
                   "in pages alone");
}

/* Elements have one byte, so that alignment for 16 bits does not suffice. */
static void latent_caches_of_e4m3_that_are_not_aligned_are_refused(void **state) {
    const problem_t good = latent_cache(16, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = NULL;
    problem_t p;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    kernel = selected(&good, &ampere);
    p = good, p.params.d_head = 568;
    assert_refused(select_check(kernel, &p, &ampere), FLASH_ERROR_UNSUPPORTED, "16-byte aligned");
    p = good, p.params.k_stride.seq += 8, p.params.v_stride.seq += 8;
    assert_refused(select_check(kernel, &p, &ampere), FLASH_ERROR_UNSUPPORTED, "16-byte aligned");
    p = good, p.params.d_head = 560;
    assert_success(select_check(kernel, &p, &ampere));
}

/* Small tensors are read faster by kernels for any K and V. */
static void small_keys_that_are_values_too_take_other_families(void **state) {
    const problem_t p = decode_problem(256, 16, FLASH_FEATURE_VARLEN);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    assert_int_equal(selected(&p, &ampere)->config.arch, FLASH_ARCH_SM80_DECODE);
    assert_int_equal(selected(&p, &small_gpu)->config.arch, FLASH_ARCH_SM80);
}

static void latent_attention_that_tma_cannot_address_takes_sm80_mla(void **state) {
    problem_t p = latent_problem(16, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p.params.pages.n_pages = 10;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_MLA);
    p.params.k_stride.batch += 8; /* no whole number of tokens */
    p.params.v_stride.batch += 8;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_MLA);
    p = latent_cache(16, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    p.params.pages.n_pages = 10;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_MLA);
    p.params.k_stride.batch += 16;
    p.params.v_stride.batch += 16;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_MLA);
}

/* The queries of other sequences must not decide which row computes a sequence. */
static void batch_invariant_latent_attention_takes_one_row_in_every_batch(void **state) {
    static const int32_t on_device[4];
    problem_t p = latent_problem(16, FLASH_FEATURE_VARLEN);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p.params.cu_seqlens_q = on_device;
    p.params.seqlen_q = 4;
    assert_int_equal(selected(&p, &ampere)->config.B_r, 64);
    p.batch_invariant = true;
    const flash_kernel_t *kernel = selected(&p, &ampere);
    for (p.params.seqlen_q = 1; p.params.seqlen_q <= 3000; p.params.seqlen_q *= 7)
        assert_ptr_equal(selected(&p, &ampere), kernel);
}

/* Makes a problem with enough rows for forward kernels to fill a device. */
static problem_t prefill_in_pages(int32_t d_head) {
    problem_t p = decode_problem(d_head, 4, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    p.params.seqlen_q = 2048;
    return p;
}

static void check_paged_choice(const problem_t *p, const device_t *device, int32_t arch) {
    const flash_kernel_t *kernel = selected(p, device);
    problem_t contiguous = *p;
    assert_int_equal(kernel->config.arch, arch);
    assert_true((kernel->config.features & FLASH_FEATURE_PAGED) != 0);
    contiguous.features &= ~FLASH_FEATURE_PAGED;
    contiguous.params.pages = (flash_pages_t){0};
    assert_refused(select_check(kernel, &contiguous, device), FLASH_ERROR_UNSUPPORTED,
                   "in pages alone");
    assert_refused(select_check(selected(&contiguous, device), p, device), FLASH_ERROR_UNSUPPORTED,
                   "features");
}

static void more_rows_over_pages_take_other_families(void **state) {
    static const int32_t d_heads[] = {8, 64, 80, 128, 192, 256};
    problem_t few = decode_problem(64, 4, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++) {
        const problem_t p = prefill_in_pages(d_heads[i]);
        check_paged_choice(&p, &hopper, FLASH_ARCH_SM90);
        check_paged_choice(&p, &ampere, FLASH_ARCH_SM80);
        check_paged_choice(&p, &small_gpu, FLASH_ARCH_SM80);
        check_paged_choice(&p, &blackwell, FLASH_ARCH_SM80);
    }
    const flash_kernel_t *decode = selected(&few, &hopper);
    few.params.seqlen_q = 9;
    assert_refused(select_check(decode, &few, &hopper), FLASH_ERROR_UNSUPPORTED, "at most 32 rows");
}

/* The size of pages decides how a kernel reads them, and not which kernel does. */
static void pages_of_every_size_take_the_same_kernels(void **state) {
    static const int32_t page_sizes[] = {1, 3, 8, 16, 19, 24, 48, 64, 256};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof page_sizes / sizeof page_sizes[0]; i++) {
        problem_t p = prefill_in_pages(128);
        p.params.pages.page_size = page_sizes[i];
        p.params.pages.n_pages = 1000;
        check_paged_choice(&p, &hopper, FLASH_ARCH_SM90);
        p.params.seqlen_q = 128;
        assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    }
}

/* Kernels without TMA read pools that TMA cannot address. Pools must be aligned for any kernel. */
static void pools_that_tma_refuses_take_sm80(void **state) {
    problem_t p = prefill_in_pages(64);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p.params.pages.n_pages = 10;
    check_paged_choice(&p, &hopper, FLASH_ARCH_SM90);
    p.params.v_stride.batch += 8; /* no whole number of tokens */
    check_paged_choice(&p, &hopper, FLASH_ARCH_SM80);
    p = prefill_in_pages(64);
    p.params.pages.n_pages = 2;
    p.params.v_stride.seq = (int64_t)1 << 31; /* elements, of 2 bytes */
    p.params.v_stride.batch = p.params.v_stride.seq * p.params.pages.page_size;
    check_paged_choice(&p, &hopper, FLASH_ARCH_SM80);
    p = prefill_in_pages(64);
    p.params.pages.n_pages = 0;
    check_paged_choice(&p, &hopper, FLASH_ARCH_SM80);
    p = prefill_in_pages(64);
    p.params.k_stride.seq += 1;
    assert_refused(select_kernel(&p, &hopper, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "no kernel in this library");
}

/* ---- Mixed batches ---- */

/* Makes sequences of up to seqlen_q queries, with `group` query heads per K/V head. */
static problem_t mixed_problem(int32_t d_head, int32_t group, int32_t seqlen_q, int32_t features) {
    problem_t p = decode_problem(d_head, group, features);
    make_ragged(&p);
    p.params.seqlen_q = seqlen_q;
    p.params.seqused_k = p.params.cu_seqlens_q;
    p.params.pages.n_pages *= 10;
    return p;
}

static void check_mixed_choice(const problem_t *p, const device_t *device) {
    const flash_kernel_t *kernel = selected(p, device);
    const bool paged = (p->features & FLASH_FEATURE_PAGED) != 0;
    assert_int_equal(kernel->config.arch, FLASH_ARCH_MIXED);
    assert_int_equal((kernel->config.features & FLASH_FEATURE_PAGED) != 0, paged);
    assert_null(kernel->function);
}

static void ragged_batches_with_long_sequences_are_mixed(void **state) {
    static const int32_t d_heads[] = {8, 64, 80, 128, 192, 256};
    const device_t *const devices[] = {&ampere, &small_gpu, &hopper, &blackwell, &small_blackwell};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t device = 0; device < sizeof devices / sizeof devices[0]; device++)
        for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++)
            for (int32_t features = 0; features < 32; features++) {
                problem_t p = mixed_problem(d_heads[i], 4, 2048, features);
                if (!decodes(devices[device], d_heads[i]))
                    assert_int_not_equal(selected(&p, devices[device])->config.arch,
                                         FLASH_ARCH_MIXED);
                else
                    check_mixed_choice(&p, devices[device]);
            }
}

/* Decode kernels serve the whole batch or none of it, or there is only one sequence. */
/* Rows of both parts serve them. */
static void mixed_batches_may_have_other_heads_of_v(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    problem_t p = mixed_problem(192, 4, 2048, FLASH_FEATURE_CAUSAL | FLASH_FEATURE_PAGED);
    p.params.d_head_v = 128;
    check_mixed_choice(&p, &ampere);
}

static void other_batches_are_not_mixed(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    problem_t p = mixed_problem(128, 4, 8, FLASH_FEATURE_CAUSAL);
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
    p.params.seqlen_q = 9;
    check_mixed_choice(&p, &ampere);
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    p.params.batch = 1;
    assert_int_equal(selected(&p, &ampere)->config.arch, FLASH_ARCH_SM80);
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    p.params.batch = 0;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
    p = mixed_problem(128, 33, 2048, 0);
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
}

/* One tile of decode kernels is decoded, or two if a query has more rows. */
static void rows_that_are_decoded_follow_from_the_group(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (int32_t group = 1; group <= 32; group++) {
        const problem_t p = mixed_problem(128, group, 2048, FLASH_FEATURE_CAUSAL);
        check_mixed_choice(&p, &hopper);
        assert_int_equal(selected(&p, &hopper)->config.B_r, group <= 16 ? 16 : 32);
    }
}

/* Checks that a row of MIXED refuses with these words, and that another family serves. */
static void check_not_mixed(const problem_t *problem, const char *words) {
    const problem_t good = mixed_problem(64, 4, 2048, 0);
    const flash_kernel_t *kernel = selected(&good, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_MIXED);
    assert_refused(select_check(kernel, problem, &hopper), FLASH_ERROR_UNSUPPORTED, words);
    assert_int_not_equal(selected(problem, &hopper)->config.arch, FLASH_ARCH_MIXED);
}

static void both_parts_of_a_mixed_batch_need_a_row(void **state) {
    const problem_t good = mixed_problem(64, 4, 2048, 0);
    problem_t p;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p = good, p.params.cu_seqlens_q = NULL, check_not_mixed(&p, "cu_seqlens_q");
    p = good, p.params.group = 33, check_not_mixed(&p, "more rows");
    p = good, p.params.k = (const void *)(uintptr_t)8, check_not_mixed(&p, "no decode kernel");
    p = good, p.params.k_stride.seq = (int64_t)1 << 30, check_not_mixed(&p, "no decode kernel");
    p = good, p.params.n_heads = INT32_MAX, p.params.batch = 2;
    assert_refused(select_check(selected(&good, &hopper), &p, &hopper), FLASH_ERROR_UNSUPPORTED,
                   "no decode kernel");
    /* In the part of many queries, SM80 stores O that TMA cannot store. */
    p = good, p.params.o = (void *)(uintptr_t)2;
    check_mixed_choice(&p, &hopper);
}

/* A row that the caller names serves what selection gives to others. */
static void a_row_of_mixed_serves_every_ragged_batch(void **state) {
    problem_t p = mixed_problem(64, 4, 2048, 0);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    const flash_kernel_t *kernel = selected(&p, &hopper);
    for (p.params.batch = 0; p.params.batch <= 1; p.params.batch++)
        for (p.params.seqlen_q = 1; p.params.seqlen_q < 3000; p.params.seqlen_q *= 3)
            assert_success(select_check(kernel, &p, &hopper));
}

static void the_reason_names_both_parts_of_a_mixed_batch(void **state) {
    const problem_t p = mixed_problem(128, 4, 2048, FLASH_FEATURE_CAUSAL);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    (void)state;
    if (!has_cuda_kernels())
        skip();
    assert_success(select_kernel(&p, &hopper, &kernel, reason));
    assert_non_null(strstr(reason, "MIXED"));
    assert_non_null(strstr(reason, "queries <= 4 by SM80_DECODE (128, 16, "));
    assert_non_null(strstr(reason, ", more by SM90 (128, "));
    assert_success(select_kernel(&p, &ampere, &kernel, reason));
    assert_non_null(strstr(reason, ", more by SM80 (128, "));
}

/* Neither the batch nor its longest sequence decides about other sequences. */
static void batch_invariant_ragged_batches_are_always_mixed(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (int32_t features = 0; features < 32; features++) {
        problem_t p = mixed_problem(128, 4, 1, features);
        p.batch_invariant = true;
        const flash_kernel_t *kernel = selected(&p, &hopper);
        assert_int_equal(kernel->config.arch, FLASH_ARCH_MIXED);
        for (p.params.seqlen_q = 1; p.params.seqlen_q < 9000; p.params.seqlen_q *= 5)
            for (p.params.batch = 1; p.params.batch <= 400; p.params.batch *= 7)
                assert_ptr_equal(selected(&p, &hopper), kernel);
    }
}

/* Makes the part of the sequences of up to `most` queries. */
static problem_t decoded_part(const problem_t *problem, int32_t most) {
    problem_t part = *problem;
    part.params.seqlen_q = part.params.most_queries = most;
    return part;
}

static void the_parts_of_a_batch_invariant_batch_take_the_same_rows(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    problem_t p = mixed_problem(128, 4, 1, FLASH_FEATURE_CAUSAL);
    p.batch_invariant = true;
    const problem_t part = decoded_part(&p, 4);
    const flash_kernel_t *decode = select_part(&part, &hopper, FAMILY_DECODE_PART);
    const flash_kernel_t *forward = select_part(&p, &hopper, FAMILY_FORWARD_PART);
    assert_int_equal(decode->config.arch, FLASH_ARCH_SM80_DECODE);
    assert_int_equal(forward->config.arch, FLASH_ARCH_SM90);
    for (p.params.seqlen_q = 1; p.params.seqlen_q < 9000; p.params.seqlen_q *= 5)
        for (p.params.batch = 1; p.params.batch <= 400; p.params.batch *= 7) {
            const problem_t own = decoded_part(&p, 4);
            assert_ptr_equal(select_part(&own, &hopper, FAMILY_DECODE_PART), decode);
            assert_ptr_equal(select_part(&p, &hopper, FAMILY_FORWARD_PART), forward);
        }
}

static uint64_t workspace_of(const flash_kernel_t *kernel, const problem_t *problem) {
    uint64_t size = 0;
    assert_success(kernel_calls(kernel)->workspace(kernel, problem, &hopper, &size));
    return size;
}

/* The decoded part alone decides, and smaller batches and shorter contexts need no more. */
static void the_workspace_of_a_mixed_batch_is_that_of_its_decoded_part(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (int32_t invariant = 0; invariant < 2; invariant++) {
        problem_t p = mixed_problem(128, 4, 2048, FLASH_FEATURE_CAUSAL);
        p.batch_invariant = invariant;
        p.params.batch = 300;
        const flash_kernel_t *kernel = selected(&p, &hopper);
        const problem_t part = decoded_part(&p, 4);
        const uint64_t size = workspace_of(select_part(&part, &hopper, FAMILY_DECODE_PART), &part);
        assert_true(size > 0);
        for (p.params.seqlen_q = 1; p.params.seqlen_q < 9000; p.params.seqlen_q *= 3)
            assert_int_equal(workspace_of(kernel, &p), size);
        for (p.params.batch = 300; p.params.batch > 0; p.params.batch /= 2)
            for (p.params.seqlen_k = 8192; p.params.seqlen_k > 0; p.params.seqlen_k /= 3)
                assert_true(workspace_of(kernel, &p) <= size);
    }
}

static void a_mixed_batch_without_its_workspace_is_refused(void **state) {
    problem_t p = mixed_problem(128, 4, 2048, FLASH_FEATURE_CAUSAL);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    const flash_kernel_t *kernel = selected(&p, &hopper);
    p.workspace = &p;
    p.workspace_size = workspace_of(kernel, &p);
    assert_success(kernel_calls(kernel)->check_workspace(kernel, &p, &hopper));
    p.workspace_size--;
    assert_refused(kernel_calls(kernel)->check_workspace(kernel, &p, &hopper),
                   FLASH_ERROR_WORKSPACE_TOO_SMALL, "needs");
    assert_refused(kernel_calls(kernel)->launch(kernel, &p, &hopper, NULL),
                   FLASH_ERROR_WORKSPACE_TOO_SMALL, "needs");
}

/* ---- SM90_DECODE: too many rows for SM80_DECODE, too few for SM90 ---- */

/* Makes queries of 8 K/V heads with 4 query heads each, as in a model of 8 billion parameters. */
static problem_t chunk_problem(int32_t batch, int32_t seqlen_q, int32_t seqlen_k,
                               int32_t features) {
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

static void chunks_over_long_caches_are_cut_into_pieces(void **state) {
    static const struct {
        int32_t batch, seqlen_q, seqlen_k, B_r;
    } cases[] = {
        {1, 128, 8192, 128}, {8, 16, 4096, 64},  {1, 9, 8192, 64},
        {1, 300, 8192, 128}, {32, 16, 4096, 64}, {4, 64, 2048, 128},
    };
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            const problem_t p =
                chunk_problem(cases[i].batch, cases[i].seqlen_q, cases[i].seqlen_k, features);
            const flash_config_t *config = &selected(&p, &hopper)->config;
            assert_int_equal(config->arch, FLASH_ARCH_SM90_DECODE);
            assert_int_equal(config->B_r, cases[i].B_r);
            assert_int_equal(selected(&p, &ampere)->config.arch, FLASH_ARCH_SM80);
            assert_int_equal(selected(&p, &blackwell)->config.arch, FLASH_ARCH_SM80);
        }
}

static void what_fills_the_device_is_left_to_forward_kernels(void **state) {
    static const int32_t cases[][3] = {/* batch, queries, keys */
                                       {1, 512, 8192}, {1, 2048, 2048},  {4, 512, 512},
                                       {16, 128, 128}, {64, 2048, 4096}, {2, 64, 64}};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            const problem_t p = chunk_problem(cases[i][0], cases[i][1], cases[i][2], features);
            assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
        }
}

/* Short queries take the rows in whose tiles query heads lie side by side, also without varlen. */
static void short_queries_take_rows_whose_tiles_heads_share(void **state) {
    static const int32_t cases[][2] = {/* queries, and whether their row has varlen */
                                       {16, 1},
                                       {64, 1},
                                       {96, 0},
                                       {512, 0}};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features < 8; features++) {
            const problem_t p = chunk_problem(300, cases[i][0], 1024, features);
            const flash_config_t *config = &selected(&p, &hopper)->config;
            assert_int_equal(config->arch, FLASH_ARCH_SM90);
            assert_int_equal((config->features & FLASH_FEATURE_VARLEN) != 0, cases[i][1]);
        }
}

/* Tiles that heads share see fewer keys in narrow windows. */
static void narrow_windows_take_the_row_for_them(void **state) {
    static const int32_t cases[][3] = {/* window_left, query heads of a K/V head, B_r */
                                       {127, 8, 192},
                                       {255, 4, 192},
                                       {127, 1, 128},
                                       {511, 8, 128},
                                       {1023, 8, 128}};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        problem_t p = hopper_problem(64, FLASH_FEATURE_WINDOW);
        p.params.batch = 4;
        p.params.seqlen_q = p.params.seqlen_k = 4096;
        p.params.n_heads = 64;
        p.params.group = cases[i][1];
        p.params.n_heads_kv = 64 / p.params.group;
        p.params.window_left = cases[i][0];
        p.params.window_right = 0;
        assert_int_equal(selected(&p, &hopper)->config.B_r, cases[i][2]);
    }
}

/* Rows of SM90_DECODE have one head dimension. */
static void chunks_with_a_d_head_v_are_cut_too(void **state) {
    static const int32_t cases[][3] = {{64, 128, 128}, {128, 64, 128}, {128, 256, 256}};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        problem_t p = chunk_problem(1, 128, 8192, FLASH_FEATURE_CAUSAL);
        p.params.d_head = cases[i][0];
        p.params.d_head_v = cases[i][1];
        const flash_config_t *config = &selected(&p, &hopper)->config;
        assert_int_equal(config->arch, FLASH_ARCH_SM90_DECODE);
        assert_int_equal(config->d_head, cases[i][2]);
    }
}

/* The same row, named by its configuration, serves problems for which it is not chosen. */
static void a_row_that_is_not_chosen_serves_all_the_same(void **state) {
    const problem_t few = chunk_problem(1, 128, 8192, 0), many = chunk_problem(1, 4096, 4096, 0);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    assert_int_equal(selected(&many, &hopper)->config.arch, FLASH_ARCH_SM90);
    assert_success(select_check(selected(&few, &hopper), &many, &hopper));
}

static void check_no_chunk(const problem_t *problem, const char *words) {
    const problem_t good = chunk_problem(1, 128, 8192, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = selected(&good, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_SM90_DECODE);
    assert_refused(select_check(kernel, problem, &hopper), FLASH_ERROR_UNSUPPORTED, words);
    assert_int_not_equal(selected(problem, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
}

static void what_sm90_decode_cannot_read_goes_to_others(void **state) {
    static const int32_t on_device[4];
    const problem_t good = chunk_problem(1, 128, 8192, FLASH_FEATURE_VARLEN);
    problem_t p;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p = good, p.params.q = (const void *)(uintptr_t)8, check_no_chunk(&p, "16-byte aligned rows");
    p = good, p.params.q_stride.head = 132, check_no_chunk(&p, "16-byte aligned rows");
    p = good, p.params.k = (const void *)(uintptr_t)8, check_no_chunk(&p, "16-byte aligned addr");
    p = good, p.params.v_stride.seq = 1028, check_no_chunk(&p, "multiples of 16 bytes");
    p = good, p.params.d_head = p.params.d_head_v = 124, check_no_chunk(&p, "16-byte aligned rows");
    p = good, p.batch_invariant = true, p.params.cu_seqlens_q = on_device;
    check_no_chunk(&p, "FLASH_FLAG_BATCH_INVARIANT");
    p = good, p.params.o = (void *)(uintptr_t)2, p.params.o_stride.head = 131;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
}

static void batch_invariant_chunks_take_one_row_in_every_batch(void **state) {
    problem_t p = chunk_problem(1, 128, 8192, FLASH_FEATURE_VARLEN);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    p.batch_invariant = true;
    const flash_kernel_t *kernel = selected(&p, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_SM90_DECODE);
    for (p.params.batch = 1; p.params.batch <= 3000; p.params.batch *= 7)
        assert_ptr_equal(selected(&p, &hopper), kernel);
}

/* Only the bounds of lengths count, not lengths that only the device knows. */
static void lengths_on_the_device_do_not_change_the_choice(void **state) {
    static const int32_t on_device[9];
    problem_t p = chunk_problem(8, 16, 4096, FLASH_FEATURE_VARLEN);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    const flash_kernel_t *kernel = selected(&p, &hopper);
    p.params.seqused_k = on_device;
    assert_ptr_equal(selected(&p, &hopper), kernel);
    p.params.cu_seqlens_q = p.params.seqused_q = on_device;
    assert_ptr_equal(selected(&p, &hopper), kernel);
}

/* ---- Caches in e4m3 ---- */

/* Makes a contiguous cache or one in pages, with Q of a 16-bit type. */
static problem_t cache_problem(int32_t d_head, int32_t seqlen_q, int32_t features) {
    problem_t problem = decode_problem(d_head, 4, features);
    problem.dtype = FLASH_DTYPE_E4M3;
    problem.params.q_dtype = problem.params.o_dtype = FLASH_DTYPE_BF16;
    problem.params.seqlen_q = seqlen_q;
    return problem;
}

static void check_cache_choice(const problem_t *p, const device_t *device, int32_t arch) {
    const flash_config_t *config = &selected(p, device)->config;
    assert_int_equal(config->arch, arch);
    assert_int_equal(config->dtype, FLASH_DTYPE_E4M3);
    assert_int_equal(config->features & FLASH_FEATURE_PAGED, p->features & FLASH_FEATURE_PAGED);
    assert_true(config->d_head >= p->params.d_head);
}

static void caches_of_e4m3_take_every_family(void **state) {
    static const int32_t d_heads[] = {16, 64, 80, 96, 128, 192, 256};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            const problem_t few = cache_problem(d_heads[i], 1, features);
            const problem_t many = cache_problem(d_heads[i], 512, features);
            check_cache_choice(&few, &hopper, FLASH_ARCH_SM80_DECODE);
            check_cache_choice(&many, &hopper, FLASH_ARCH_SM90);
            check_cache_choice(&many, &ampere, FLASH_ARCH_SM80);
            check_cache_choice(&many, &small_gpu, FLASH_ARCH_SM80);
            check_cache_choice(&many, &blackwell, FLASH_ARCH_SM80);
        }
}

/* Elements of K and V have one byte, so that alignment for 16 bits does not suffice. */
static void caches_that_are_not_aligned_take_sm80(void **state) {
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (int32_t paged = 0; paged <= FLASH_FEATURE_PAGED; paged += FLASH_FEATURE_PAGED) {
        const problem_t good = cache_problem(64, 512, FLASH_FEATURE_VARLEN | paged);
        problem_t p = good;
        p.params.k_stride.seq += 8, check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
        p = good, p.params.q_stride.head += 8, check_cache_choice(&p, &hopper, FLASH_ARCH_SM90);
        p = good, p.params.v_stride.head += 3, check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
        p = good, p.params.k = (const void *)(uintptr_t)8;
        check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
        p = good, p.params.d_head = p.params.d_head_v = 56,
        check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
        p = good, p.params.seqlen_q = 1, p.params.d_head = p.params.d_head_v = 56;
        check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
    }
}

static void caches_of_e4m3_go_with_types_of_q_and_o(void **state) {
    problem_t p = cache_problem(64, 512, 0);
    (void)state;
    if (!has_cuda_kernels())
        skip();
    const flash_kernel_t *kernel = selected(&p, &hopper);
    p.params.o_dtype = FLASH_DTYPE_FP32, assert_ptr_equal(selected(&p, &hopper), kernel);
    p.params.q_dtype = FLASH_DTYPE_FP16, assert_ptr_equal(selected(&p, &hopper), kernel);
    p.params.o_dtype = FLASH_DTYPE_FP16, assert_ptr_equal(selected(&p, &hopper), kernel);
    p.params.o_dtype = FLASH_DTYPE_BF16;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "o.dtype");
    p.params.q_dtype = p.params.o_dtype = FLASH_DTYPE_FP32;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "q.dtype");
}

/* ---- ALiBi and masks ---- */

/* Checks that a problem's family does not depend on a bias, and that its rows are for one alone. */
static void check_choice_with_bias(const problem_t *plain, const device_t *device) {
    const flash_config_t *without = &selected(plain, device)->config;
    problem_t biased = *plain;
    biased.features |= FLASH_FEATURE_BIAS;
    const flash_config_t *with = &selected(&biased, device)->config;
    assert_int_equal(with->arch, without->arch);
    assert_true((with->features & FLASH_FEATURE_BIAS) != 0);
    assert_true((without->features & FLASH_FEATURE_BIAS) == 0);
}

static void a_bias_does_not_change_the_family(void **state) {
    const device_t *const devices[] = {&ampere, &hopper, &blackwell};
    const int32_t paged = FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        const problem_t problems[] = {hopper_problem(64, 0),
                                      hopper_problem(120, FLASH_FEATURE_CAUSAL),
                                      hopper_problem(256, FLASH_FEATURE_SOFTCAP),
                                      prefill_in_pages(128),
                                      chunk_problem(1, 128, 8192, FLASH_FEATURE_CAUSAL),
                                      chunk_problem(8, 16, 4096, paged),
                                      decode_problem(64, 4, FLASH_FEATURE_VARLEN),
                                      mixed_problem(128, 4, 2048, FLASH_FEATURE_CAUSAL),
                                      mixed_problem(128, 4, 2048, paged)};
        for (size_t j = 0; j < sizeof problems / sizeof problems[0]; j++)
            check_choice_with_bias(&problems[j], devices[i]);
    }
}

/* ---- Latent tokens ---- */

static problem_t problem_of_tokens(int32_t rows, int32_t features) {
    problem_t problem = latent_problem(rows, features);
    flash_strides_t stride = {.batch = 656 * 512, .seq = 656};
    if (features & FLASH_FEATURE_PAGED)
        stride.batch = 656 * problem.params.pages.page_size;
    problem.dtype = FLASH_DTYPE_LATENT_E4M3;
    problem.params.q_dtype = problem.params.o_dtype = FLASH_DTYPE_BF16;
    problem.params.k_stride = problem.params.v_stride = stride;
    return problem;
}

static void latent_tokens_have_kernels_on_hopper(void **state) {
    static const int32_t heads[] = {1, 16, 33, 128};
    (void)state;
    if (!has_cuda_kernels())
        skip();
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            const problem_t p = problem_of_tokens(heads[i], features);
            const flash_config_t *config = &selected(&p, &hopper)->config;
            assert_int_equal(config->arch, FLASH_ARCH_SM90_MLA);
            assert_int_equal(config->dtype, FLASH_DTYPE_LATENT_E4M3);
            assert_int_equal(config->features & FLASH_FEATURE_PAGED,
                             features & FLASH_FEATURE_PAGED);
        }
}

static void what_hopper_cannot_do_with_latent_tokens_is_refused(void **state) {
    const problem_t good = problem_of_tokens(16, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel;
    char reason[SELECT_REASON_SIZE];
    problem_t p;
    (void)state;
    if (!has_cuda_kernels())
        skip();
    kernel = selected(&good, &hopper);
    p = good, p.params.o_dtype = FLASH_DTYPE_FP32, assert_ptr_equal(selected(&p, &hopper), kernel);
    p = good, p.params.q_dtype = p.params.o_dtype = FLASH_DTYPE_FP16;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "q.dtype");
    p = good, p.params.k_stride.seq = p.params.v_stride.seq = 660;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "16 bytes");
    p = good, p.params.k = p.params.v = (const void *)(uintptr_t)8;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "16-byte aligned");
    assert_refused(select_kernel(&good, &ampere, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "LATENT_E4M3");
}

static void no_kernel_is_a_refusal(void **state) {
    const device_t device = {.number = FLASH_DEVICE_CPU, .isa = 0};
    const problem_t problem = problem_of(FLASH_DTYPE_FP32, 64);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE];
    (void)state;
    assert_refused(select_kernel(&problem, &device, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "no kernel in this library");
}

/* Counts the rows of a range, which are of the family, the operation and the type. */
static int32_t count_rows(const family_t *family, int32_t op, int32_t dtype) {
    const kernel_range_t rows = kernel_table_rows(family, op, dtype);
    for (const flash_kernel_t *row = rows.begin; row < rows.end; row++) {
        assert_ptr_equal(row->family, family);
        assert_int_equal(row->config.op, op);
        assert_int_equal(row->config.dtype, dtype);
    }
    return (int32_t)(rows.end - rows.begin);
}

/* The range has every row of the family, the operation and the type, and no other. */
static void the_rows_of_a_family_and_a_type_are_together(void **state) {
    int32_t found = 0;
    (void)state;
    for (int32_t i = 0; i < family_list_count; i++)
        for (int32_t op = 0; op < CONFIG_N_OPS; op++)
            for (int32_t dtype = FLASH_DTYPE_FP16; dtype <= FLASH_DTYPE_LATENT_E4M3; dtype++)
                found += count_rows(family_list[i], op, dtype);
    assert_int_equal(found, kernel_table_count);
}

static void every_family_computes_the_operations_of_its_rows(void **state) {
    (void)state;
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const family_op_t *op = kernel_op(&kernel_table[i]);
        assert_non_null(op);
        assert_non_null(op->rank);
        assert_non_null(op->calls);
    }
}

static void a_row_serves_its_own_operation_alone(void **state) {
    const device_t device = {.number = FLASH_DEVICE_CPU};
    (void)state;
    for (int32_t i = 0; i < kernel_table_count; i++) {
        problem_t problem = {.op = kernel_table[i].config.op + 1,
                             .dtype = kernel_table[i].config.dtype};
        assert_refused(select_check(&kernel_table[i], &problem, &device), FLASH_ERROR_UNSUPPORTED,
                       "does not serve this problem: op");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bare_machine_gets_the_reference),
#if defined(__x86_64__)
        cmocka_unit_test(the_fastest_instruction_set_wins),
        cmocka_unit_test(products_of_pairs_must_pay),
        cmocka_unit_test(a_refused_permission_is_named),
#endif
        cmocka_unit_test(an_absent_family_of_the_environment_is_named),
        cmocka_unit_test(a_row_serves_its_own_problems_only),
        cmocka_unit_test(the_row_with_the_fewest_features_wins),
        cmocka_unit_test(head_dimensions_of_k_and_v_may_differ),
        cmocka_unit_test(unaligned_rows_of_v_load_through_registers),
        cmocka_unit_test(d_head_v_above_that_of_a_row_is_refused_by_name),
        cmocka_unit_test(long_sequences_take_small_steps_at_d_head_256),
        cmocka_unit_test(what_is_chosen_fits_a_small_device),
        cmocka_unit_test(unaligned_tensors_load_through_registers),
        cmocka_unit_test(hopper_takes_the_rows_of_its_own_family),
        cmocka_unit_test(hopper_takes_the_smallest_row_for_both_head_dimensions),
        cmocka_unit_test(a_row_serves_no_more_than_its_head_dimensions),
        cmocka_unit_test(the_other_families_say_what_hopper_kernels_need),
        cmocka_unit_test(what_tma_cannot_address_goes_to_sm80),
        cmocka_unit_test(an_o_of_fp32_needs_no_tma),
        cmocka_unit_test(what_tma_can_address_stays),
        cmocka_unit_test(more_tiles_than_a_launch_takes_are_refused),
        cmocka_unit_test(hopper_takes_tiles_of_fewer_rows_where_there_are_few),
        cmocka_unit_test(a_batch_invariant_choice_looks_at_no_batch),
        cmocka_unit_test(few_rows_over_many_keys_are_decoded),
        cmocka_unit_test(more_rows_are_not_decoded_by_sm80_decode),
        cmocka_unit_test(what_decode_kernels_cannot_read_goes_to_others),
        cmocka_unit_test(what_decode_kernels_can_read_stays),
        cmocka_unit_test(batch_invariant_calls_are_decoded_unless_queries_are_ragged),
        cmocka_unit_test(more_blocks_than_a_launch_takes_are_refused),
        cmocka_unit_test(rows_with_pages_serve_pages_alone),
        cmocka_unit_test(latent_attention_has_kernels_on_every_device),
        cmocka_unit_test(what_is_no_latent_attention_is_refused),
        cmocka_unit_test(small_keys_that_are_values_too_take_other_families),
        cmocka_unit_test(latent_caches_of_e4m3_that_are_not_aligned_are_refused),
        cmocka_unit_test(latent_attention_that_tma_cannot_address_takes_sm80_mla),
        cmocka_unit_test(batch_invariant_latent_attention_takes_one_row_in_every_batch),
        cmocka_unit_test(more_rows_over_pages_take_other_families),
        cmocka_unit_test(pages_of_every_size_take_the_same_kernels),
        cmocka_unit_test(pools_that_tma_refuses_take_sm80),
        cmocka_unit_test(ragged_batches_with_long_sequences_are_mixed),
        cmocka_unit_test(mixed_batches_may_have_other_heads_of_v),
        cmocka_unit_test(other_batches_are_not_mixed),
        cmocka_unit_test(rows_that_are_decoded_follow_from_the_group),
        cmocka_unit_test(both_parts_of_a_mixed_batch_need_a_row),
        cmocka_unit_test(a_row_of_mixed_serves_every_ragged_batch),
        cmocka_unit_test(the_reason_names_both_parts_of_a_mixed_batch),
        cmocka_unit_test(batch_invariant_ragged_batches_are_always_mixed),
        cmocka_unit_test(the_parts_of_a_batch_invariant_batch_take_the_same_rows),
        cmocka_unit_test(the_workspace_of_a_mixed_batch_is_that_of_its_decoded_part),
        cmocka_unit_test(a_mixed_batch_without_its_workspace_is_refused),
        cmocka_unit_test(chunks_over_long_caches_are_cut_into_pieces),
        cmocka_unit_test(short_queries_take_rows_whose_tiles_heads_share),
        cmocka_unit_test(narrow_windows_take_the_row_for_them),
        cmocka_unit_test(chunks_with_a_d_head_v_are_cut_too),
        cmocka_unit_test(what_fills_the_device_is_left_to_forward_kernels),
        cmocka_unit_test(a_row_that_is_not_chosen_serves_all_the_same),
        cmocka_unit_test(what_sm90_decode_cannot_read_goes_to_others),
        cmocka_unit_test(batch_invariant_chunks_take_one_row_in_every_batch),
        cmocka_unit_test(lengths_on_the_device_do_not_change_the_choice),
        cmocka_unit_test(caches_of_e4m3_take_every_family),
        cmocka_unit_test(caches_that_are_not_aligned_take_sm80),
        cmocka_unit_test(caches_of_e4m3_go_with_types_of_q_and_o),
        cmocka_unit_test(a_bias_does_not_change_the_family),
        cmocka_unit_test(latent_tokens_have_kernels_on_hopper),
        cmocka_unit_test(what_hopper_cannot_do_with_latent_tokens_is_refused),
        cmocka_unit_test(no_kernel_is_a_refusal),
        cmocka_unit_test(the_rows_of_a_family_and_a_type_are_together),
        cmocka_unit_test(every_family_computes_the_operations_of_its_rows),
        cmocka_unit_test(a_row_serves_its_own_operation_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
