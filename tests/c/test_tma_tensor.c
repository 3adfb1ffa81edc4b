/*
 * TMA can address some ragged batches, and finds their tokens; see also test_select.c.
 */
#include "cuda/tma/paging_sm90.h"
#include "cuda/tma/tma_tensor.h"
#include "kernels/sm90/sm90_kernel.h"
#include "support.h"

enum { BATCH = 3, SEQLEN = 100, HEADS = 2, D_HEAD = 64, TOKEN = HEADS * D_HEAD };

static unsigned char data[SM90_CHUNK_BYTES] __attribute__((aligned(SM90_CHUNK_BYTES)));

static const int32_t lengths[BATCH + 1];

/* The kernel has elements of 16 bits and ragged maps. */
static const flash_config_t varlen = {.dtype = FLASH_DTYPE_BF16, .features = FLASH_FEATURE_VARLEN};

/* Makes a contiguous [batch, seq, head, d_head], as in a cache of K beside seqused_k. */
static flash_params_t cached(void) {
    const flash_strides_t contiguous = {
        .batch = (int64_t)SEQLEN * TOKEN, .seq = TOKEN, .head = D_HEAD};
    return (flash_params_t){.k = data,
                            .k_stride = contiguous,
                            .batch = BATCH,
                            .seqlen_k = SEQLEN,
                            .n_heads_kv = HEADS,
                            .d_head = D_HEAD,
                            .d_head_v = D_HEAD};
}

/* Makes a contiguous [tokens, head, d_head]. */
static flash_params_t packed(void) {
    flash_params_t p = cached();
    p.cu_seqlens_k = lengths;
    p.k_stride.batch = 0;
    return p;
}

static void check_addressed(const flash_params_t *p, int64_t entry_tokens) {
    const tma_tensor_t tensor = tma_tensor_k(&varlen, p);
    assert_null(tma_tensor_obstacle(&tensor));
    assert_int_equal(tensor.entry_tokens, entry_tokens);
}

static void check_refused(const flash_params_t *p, const char *words) {
    const tma_tensor_t tensor = tma_tensor_k(&varlen, p);
    const char *obstacle = tma_tensor_obstacle(&tensor);
    assert_non_null(obstacle);
    assert_non_null(strstr(obstacle, words));
}

/* Row r of a sequence of `length` tokens from token b on has the address base + (END - length + r)
 * * stride[1] + (b + length) * stride[3] + END * stride[4], mod 2^64. */
TEST(an_address_wraps_round_to_the_token) {
    const flash_params_t p = packed();
    const tma_tensor_t t = tma_tensor_k(&varlen, &p);
    const uint64_t begin = 1000000, length = 77, row = 5;
    const uint64_t elements = (SM90_RAGGED_END - length + row) * (uint64_t)t.stride[1] +
                              (begin + length) * (uint64_t)t.stride[3] +
                              SM90_RAGGED_END * (uint64_t)t.stride[4];
    assert_int_equal(t.n_axes, TMA_MOST_AXES);
    assert_int_equal(t.extent[1], SM90_RAGGED_END);
    assert_int_equal(t.element_bytes, 2);
    assert_true(elements * 2 == (begin + row) * TOKEN * 2);
}

TEST(entries_are_whole_numbers_of_tokens_apart) {
    flash_params_t p = cached();
    check_addressed(&p, SEQLEN);
    p.k_stride.batch = 0;
    check_addressed(&p, 0);
    p.k_stride.batch = (int64_t)SEQLEN * TOKEN + 8;
    check_refused(&p, "whole numbers of tokens");
    p.batch = 1;
    check_addressed(&p, 0);
    p = packed();
    check_addressed(&p, 0);
}

/* Each entry has one token, however far the next would be. */
TEST(a_single_token_is_counted_by_entries) {
    flash_params_t p = cached();
    p.seqlen_k = 1;
    p.k_stride.seq = 3;
    check_addressed(&p, 1);
    p.batch = 1;
    check_addressed(&p, 0);
}

TEST(coordinates_have_32_bits) {
    flash_params_t p = cached();
    const int64_t most = (INT32_MAX - SEQLEN) / (BATCH - 1);
    p.k_stride.seq = 8;
    p.k_stride.batch = 8 * most;
    check_addressed(&p, most);
    p.k_stride.batch = 8 * (most + 1);
    check_refused(&p, "2^31 tokens");
}

TEST(tokens_are_apart_but_not_too_far) {
    flash_params_t p = packed();
    p.k_stride.seq = ((int64_t)1 << 33) - 8;
    check_addressed(&p, 0);
    p.k_stride.seq += 8;
    check_refused(&p, "2^34");
    p.k_stride.seq = 0;
    check_refused(&p, "more than 0");
    p.k_stride.seq = TOKEN + 4;
    check_refused(&p, "multiples of 16 bytes");
}

/* A look-up may know neither address nor strides. */
TEST(a_tensor_without_address_and_strides_is_no_obstacle) {
    flash_params_t p = cached();
    p.k = NULL;
    p.k_stride = (flash_strides_t){0};
    check_addressed(&p, -1);
}

/* The entries of a pool are pages, whatever the batch is. */
TEST(pages_of_a_pool_are_whole_numbers_of_tokens_apart) {
    enum { PAGE = 16, POOL = 1000 };
    flash_params_t p = cached();
    p.pages = (flash_pages_t){.table = lengths, .v_table = lengths, .page_size = PAGE};
    p.pages.n_pages = POOL;
    p.k_stride.batch = (int64_t)PAGE * TOKEN;
    check_addressed(&p, PAGE);
    p.cu_seqlens_k = lengths; /* which says nothing of places */
    check_addressed(&p, PAGE);
    p.k_stride.batch *= 2; /* K and V interleaved */
    check_addressed(&p, 2 * PAGE);
    p.k_stride = (flash_strides_t){.batch = PAGE * TOKEN, .seq = D_HEAD, .head = PAGE * D_HEAD};
    check_addressed(&p, (int64_t)HEADS * PAGE);
    p.k_stride.batch += 8;
    check_refused(&p, "whole numbers of tokens");
    p.pages.page_size = 1;
    check_addressed(&p, 1);
}

/* Boxes lie in one page and in one block, and begin where blocks may begin; those of less than 8
 * keys are read key by key. */
TEST(pages_are_read_in_boxes_or_key_by_key) {
    static const flash_config_t config = {
        .dtype = FLASH_DTYPE_BF16,
        .B_c = 128,
        .features = FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED,
    };
    static const int32_t cases[][3] = {{1, 128, 0},     {3, 128, 0},   {4, 128, 0},
                                       {8, 128, 8},     {16, 128, 16}, {48, 128, 16},
                                       {19, 128, 0},    {80, 128, 16}, {64, 128, 64},
                                       {128, 128, 128}, {256, 64, 64}, {768, 128, 128}};
    flash_params_t p = cached();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        p.pages = (flash_pages_t){.table = lengths, .v_table = lengths, .n_pages = 10};
        p.pages.page_size = cases[i][0];
        p.k_stride.batch = (int64_t)p.pages.page_size * TOKEN;
        p.v_stride = p.k_stride;
        assert_null(paging_sm90_obstacle(&config, &p));
        const sm90_paging_t paging = paging_sm90(&config, &p, cases[i][1]);
        const int32_t keys = cases[i][2];
        assert_int_equal(paging.box_keys, keys);
        assert_int_equal(paging_sm90_box_keys(&config, &paging), keys > 0 ? keys : config.B_c);
        assert_int_equal(paging.k_token_bytes, 2 * TOKEN);
        assert_int_equal(paging.v_token_bytes, 2 * TOKEN);
    }
}

TEST(pages_are_refused_with_their_reason) {
    static const flash_config_t config = {
        .dtype = FLASH_DTYPE_BF16,
        .B_c = 128,
        .features = FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED,
    };
    flash_params_t p = cached();
    assert_string_equal(paging_sm90_obstacle(&config, &p),
                        "SM90 kernels with paged read K and V only in pages");
    p.pages = (flash_pages_t){.table = lengths, .v_table = lengths, .page_size = 16};
    assert_string_equal(paging_sm90_obstacle(&config, &p),
                        "SM90 kernels with paged need a page at least");
    p.pages.n_pages = 10;
    p.v_stride.seq = (int64_t)1 << 31;
    assert_string_equal(paging_sm90_obstacle(&config, &p),
                        "SM90 kernels with paged need tokens less than 2^32 bytes apart");
}

/* K and V of e4m3 have elements of one byte, and Q and O of two. */
TEST(elements_of_a_cache_may_have_a_byte) {
    static const flash_config_t config = {.dtype = FLASH_DTYPE_E4M3,
                                          .features = FLASH_FEATURE_VARLEN};
    flash_params_t p = packed();
    const tma_tensor_t k = tma_tensor_k(&config, &p), q = tma_tensor_q(&config, &p);
    assert_int_equal(k.element_bytes, 1);
    assert_int_equal(q.element_bytes, 2);
    assert_true(k.stride[1] + k.stride[4] == (int64_t)1 << 34);
    assert_null(tma_tensor_obstacle(&k));
    p.k_stride.seq += 8; /* 16 bytes of 16 bits each, 8 of 8 */
    const tma_tensor_t shifted = tma_tensor_k(&config, &p);
    assert_non_null(strstr(tma_tensor_obstacle(&shifted), "multiples of 16 bytes"));
    check_addressed(&p, 0);
}

/* K of latent tokens has all of their bytes, and V those up to the end of their scales. */
TEST(tokens_are_bytes) {
    static const flash_config_t config = {.dtype = FLASH_DTYPE_LATENT_E4M3,
                                          .features = FLASH_FEATURE_VARLEN};
    flash_params_t p = packed();
    p.d_head = 576;
    p.d_head_v = 512;
    p.k_stride.seq = p.v_stride.seq = FLASH_LATENT_TOKEN_BYTES;
    const tma_tensor_t k = tma_tensor_k(&config, &p), v = tma_tensor_v(&config, &p);
    assert_int_equal(k.extent[0], 656);
    assert_int_equal(v.extent[0], 528);
    assert_int_equal(k.stride[1], 656);
    assert_null(tma_tensor_obstacle(&k));
    assert_null(tma_tensor_obstacle(&v));
    p.k_stride.seq += 8;
    const tma_tensor_t shifted = tma_tensor_k(&config, &p);
    assert_non_null(strstr(tma_tensor_obstacle(&shifted), "multiples of 16 bytes"));
}

/* Rows of Q and K have d_head elements, those of V and O d_head_v. */
TEST(v_and_o_have_a_head_dimension_of_their_own) {
    flash_params_t p = cached();
    p.d_head_v = 40;
    p.v_stride =
        (flash_strides_t){.batch = (int64_t)SEQLEN * HEADS * 40, .seq = HEADS * 40, .head = 40};
    for (int32_t features = 0; features <= FLASH_FEATURE_VARLEN; features += FLASH_FEATURE_VARLEN) {
        const flash_config_t config = {.dtype = FLASH_DTYPE_BF16, .features = features};
        const tma_tensor_t q = tma_tensor_q(&config, &p), k = tma_tensor_k(&config, &p);
        const tma_tensor_t v = tma_tensor_v(&config, &p), o = tma_tensor_o(&config, &p);
        assert_int_equal(q.extent[0], D_HEAD);
        assert_int_equal(k.extent[0], D_HEAD);
        assert_int_equal(v.extent[0], 40);
        assert_int_equal(o.extent[0], 40);
        assert_null(tma_tensor_obstacle(&v));
    }
    p.d_head_v = 36;
    const tma_tensor_t v = tma_tensor_v(&varlen, &p), k = tma_tensor_k(&varlen, &p);
    assert_non_null(strstr(tma_tensor_obstacle(&v), "d_head_v"));
    assert_null(tma_tensor_obstacle(&k));
}

TEST(an_empty_tensor_is_no_obstacle) {
    flash_params_t p = cached();
    p.k = (const void *)(uintptr_t)2;
    p.k_stride.seq = 1;
    p.batch = 0;
    check_addressed(&p, 0);
    p.batch = 2;
    p.seqlen_k = 0;
    check_addressed(&p, 0);
}
