/*
 * Sizes are at most 2^31 - 1: each is taken there, and refused one beyond.
 */
#include "support.h"

#include <math.h>

#define BOUND  ((int64_t)INT32_MAX)
#define BEYOND "2147483648: not within 0 ... 2147483647"

/* ---- Attention ---- */

/* The arguments of a call, and the structs that they point to. */
typedef struct call {
    flash_forward_args_t args;
    flash_paging_t paging;
    flash_mask_t mask;
} call_t;

static const int32_t lengths[2] = {1, 1};

/* Makes a valid call of one query and one key in one page, whose mask repeats one number. */
static void make_call(call_t *c) {
    static const float number;
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    flash_paging_t paging = FLASH_PAGING_INIT;
    flash_mask_t mask = FLASH_MASK_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.flags = FLASH_FLAG_BROADCAST;
    args.batch = args.seqlen_q = args.seqlen_k = 1;
    args.n_heads = args.n_heads_kv = args.d_head = 1;
    args.seqused_k = lengths;
    paging.page_size = paging.n_pages = paging.page_table_stride = 1;
    paging.page_table = lengths;
    mask.kind = FLASH_MASK_ADD;
    mask.data = &number;
    mask.n_keys = 1;
    *c = (call_t){args, paging, mask};
    c->args.paging = &c->paging;
    c->args.mask = &c->mask;
}

/* A size by its name in messages, and by where it lies in the call. Another one may have to be as
 * large. */
typedef struct size_member {
    const char *name;
    size_t offset;
    size_t companion; /* 0: none */
} size_member_t;

#define MEMBER(member) offsetof(call_t, member)

static const size_member_t SIZES[] = {
    {"batch", MEMBER(args.batch), 0},
    {"seqlen_q", MEMBER(args.seqlen_q), 0},
    {"seqlen_k", MEMBER(args.seqlen_k), 0},
    {"n_heads", MEMBER(args.n_heads), 0},
    {"n_heads_kv", MEMBER(args.n_heads_kv), MEMBER(args.n_heads)},
    {"d_head", MEMBER(args.d_head), 0},
    {"d_head_v", MEMBER(args.d_head_v), 0},
    {"paging.page_size", MEMBER(paging.page_size), 0},
    {"paging.n_pages", MEMBER(paging.n_pages), 0},
    {"paging.page_table_stride", MEMBER(paging.page_table_stride), 0},
    {"mask.n_keys", MEMBER(mask.n_keys), MEMBER(args.seqlen_k)},
    {"mask.first_key", MEMBER(mask.first_key), MEMBER(args.seqlen_k)},
};
enum { N_SIZES = sizeof SIZES / sizeof SIZES[0] };

static void set(call_t *c, size_t offset, int64_t size) {
    memcpy((char *)c + offset, &size, sizeof size);
}

TEST(sizes_of_attention) {
    call_t c;
    char words[96];
    uint64_t bytes;
    for (int i = 0; i < N_SIZES; i++) {
        const size_member_t *member = &SIZES[i];
        make_call(&c);
        set(&c, member->offset, BOUND);
        if (member->companion != 0)
            set(&c, member->companion, BOUND);
        assert_success(flash_query_support(&c.args, NULL, NULL, 0));
        assert_success(flash_workspace_size(&c.args, NULL, &bytes));
        set(&c, member->offset, BOUND + 1);
        snprintf(words, sizeof words, "%s is " BEYOND, member->name);
        assert_refused(flash_query_support(&c.args, NULL, NULL, 0), FLASH_ERROR_INVALID_ARGUMENT,
                       words);
    }
}

/* One query of 0 sees three keys, which all lie in one place. */
TEST(attention_over_the_longest_keys) {
    const int32_t three[1] = {3};
    const float q = 0, k = 1, v = 5;
    float o = -1, lse = -1;
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.flags = FLASH_FLAG_BROADCAST;
    args.batch = args.seqlen_q = args.n_heads = args.n_heads_kv = args.d_head = 1;
    args.seqlen_k = BOUND;
    args.seqused_k = three;
    args.q.data = (void *)(uintptr_t)&q;
    args.k.data = (void *)(uintptr_t)&k;
    args.v.data = (void *)(uintptr_t)&v;
    args.o.data = &o;
    args.lse = &lse;
    assert_success(flash_workspace_size(&args, NULL, &args.workspace_size));
    args.workspace = malloc((size_t)args.workspace_size);
    assert_non_null(args.workspace);
    assert_success(flash_forward(&args, NULL, NULL));
    free(args.workspace);
    assert_true(o == 5 && fabsf(lse - logf(3)) < 1e-6f);
}

/* ---- Merging ---- */

static void check_combine(int64_t *size, const char *name, flash_combine_args_t *args) {
    char words[96];
    *size = BOUND;
    assert_success(flash_combine(args, NULL));
    *size = BOUND + 1;
    snprintf(words, sizeof words, "%s is " BEYOND, name);
    assert_refused(flash_combine(args, NULL), FLASH_ERROR_INVALID_ARGUMENT, words);
    *size = 1;
}

/* The calls have no row, so that nothing but their sizes is looked at. */
TEST(sizes_of_merging) {
    flash_combine_args_t args = FLASH_COMBINE_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.n_partials = args.n_heads = args.d_head = 1;
    check_combine(&args.batch, "batch", &args);
    args.batch = 0;
    check_combine(&args.seqlen_q, "seqlen_q", &args);
    check_combine(&args.n_heads, "n_heads", &args);
    check_combine(&args.d_head, "d_head", &args);
    check_combine(&args.n_partials, "n_partials", &args);
}

/* ---- Appending ---- */

static void check_append(int64_t *size, int64_t bound, const char *words,
                         const flash_kv_append_args_t *args) {
    const int64_t before = *size;
    *size = bound;
    assert_success(flash_kv_append(args, NULL));
    *size = bound + 1;
    assert_refused(flash_kv_append(args, NULL), FLASH_ERROR_INVALID_ARGUMENT, words);
    *size = before;
}

/* The calls have no sequence. A token of K and V has at most 2^31 - 1 elements. */
TEST(sizes_of_appending) {
    static const float table;
    flash_kv_append_args_t args = FLASH_KV_APPEND_ARGS_INIT;
    flash_paging_t paging = FLASH_PAGING_INIT;
    flash_rotary_t rotary = FLASH_ROTARY_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.n_heads = args.n_heads_kv = 1;
    args.d_head = 2;
    args.seqused_k = lengths;
    check_append(&args.seqlen_new, BOUND, "seqlen_new is " BEYOND, &args);
    check_append(&args.seqlen_k, BOUND, "seqlen_k is " BEYOND, &args);
    check_append(&args.n_heads_kv, BOUND / 4, "n_heads_kv is 536870912 and d_head 2", &args);
    check_append(&args.d_head, BOUND / 2, "n_heads_kv is 1 and d_head 1073741824", &args);
    paging.page_size = paging.n_pages = paging.page_table_stride = 1;
    paging.page_table = lengths;
    args.paging = &paging;
    check_append(&paging.page_size, BOUND, "paging.page_size is " BEYOND, &args);
    check_append(&paging.n_pages, BOUND, "paging.n_pages is " BEYOND, &args);
    rotary.cos = rotary.sin = &table;
    rotary.n_positions = 1;
    rotary.rotary_dim = 2;
    rotary.stride_position = 1;
    args.rotary = &rotary;
    check_append(&rotary.n_positions, BOUND, "rotary.n_positions is " BEYOND, &args);
    check_append(&args.seqlen_q, BOUND, "seqlen_q is " BEYOND, &args);
}
