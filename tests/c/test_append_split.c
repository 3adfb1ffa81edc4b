/*
 * The two calls that a call of flash_kv_append() becomes on CUDA devices, where V has another head
 * dimension than K, write together what the one call writes on the CPU. They run there too.
 */
#include "arguments/append_arguments.h"
#include "cpu/cpu_append.h"
#include "cuda/runtime/append_split.h"
#include "support.h"

enum { BATCH = 2, NEW = 3, HEADS = 4, HEADS_KV = 2, D = 8, D_V = 5, PAGE_SIZE = 4, N_PAGES = 6 };
enum { N_IDS = 3, N_POSITIONS = 20, PAIRS = 3 };

typedef struct outputs {
    float k[N_PAGES * PAGE_SIZE * HEADS_KV * D];
    uint16_t v[N_PAGES * PAGE_SIZE * HEADS_KV * D_V];
    float q[BATCH * NEW * HEADS * D];
    int32_t after[BATCH];
} outputs_t;

/* K and V lie in other pages, and V is of another type than K. */
typedef struct call {
    float k_new[BATCH * NEW * HEADS_KV * D];
    float v_new[BATCH * NEW * HEADS_KV * D_V];
    float q[BATCH * NEW * HEADS * D];
    float cos[N_POSITIONS * PAIRS];
    float sin[N_POSITIONS * PAIRS];
    outputs_t out;
    flash_kv_append_args_t args;
    flash_paging_t paging;
    flash_rotary_t rotary;
} call_t;

static const int32_t table[BATCH * N_IDS] = {4, 1, -1, -1, 5, 0},
                                   v_table[BATCH * N_IDS] = {0, 2, -1, -1, 3, 5},
                                   used[BATCH] = {2, 6};
static const int64_t slots[BATCH * NEW] = {0, 23, -1, 5, 6, 11};

static void fill(float *values, size_t n, float first) {
    for (size_t i = 0; i < n; i++)
        values[i] = first + (float)(i % 97) / 32;
}

static void set_places(call_t *c, bool has_slots) {
    c->paging = (flash_paging_t)FLASH_PAGING_INIT;
    c->paging.page_size = PAGE_SIZE;
    c->paging.n_pages = N_PAGES;
    c->paging.page_table = has_slots ? NULL : table;
    c->paging.v_page_table = has_slots ? NULL : v_table;
    c->paging.page_table_stride = has_slots ? 0 : N_IDS;
    c->args.paging = &c->paging;
    c->args.seqused_k = used;
    c->args.seqused_k_out = has_slots ? NULL : c->out.after;
    c->args.slot_mapping = has_slots ? slots : NULL;
}

static void set_rotary(call_t *c) {
    c->rotary = (flash_rotary_t)FLASH_ROTARY_INIT;
    c->rotary.cos = c->cos;
    c->rotary.sin = c->sin;
    c->rotary.stride_position = PAIRS;
    c->rotary.n_positions = N_POSITIONS;
    c->rotary.rotary_dim = 2 * PAIRS;
    c->args.rotary = &c->rotary;
}

static void set_tensors(call_t *c) {
    flash_kv_append_args_t *a = &c->args;
    a->k_new = flash_tensor_bshd(c->k_new, NEW, HEADS_KV, D);
    a->v_new = flash_tensor_bshd(c->v_new, NEW, HEADS_KV, D_V);
    a->k = flash_tensor_bshd(c->out.k, PAGE_SIZE, HEADS_KV, D);
    a->v = flash_tensor_bshd(c->out.v, PAGE_SIZE, HEADS_KV, D_V);
    a->v.dtype = FLASH_DTYPE_FP16;
    a->q = flash_tensor_bshd(c->q, NEW, HEADS, D);
    a->q_out = flash_tensor_bshd(c->out.q, NEW, HEADS, D);
    a->batch = BATCH;
    a->seqlen_new = a->seqlen_q = NEW;
    a->n_heads = HEADS;
    a->n_heads_kv = HEADS_KV;
    a->d_head = D;
    a->d_head_v = D_V;
}

static void create(call_t *c, bool has_slots) {
    memset(c, 0, sizeof *c);
    memset(&c->out, 0xff, sizeof c->out);
    fill(c->k_new, sizeof c->k_new / sizeof *c->k_new, 1);
    fill(c->v_new, sizeof c->v_new / sizeof *c->v_new, -1);
    fill(c->q, sizeof c->q / sizeof *c->q, 0);
    fill(c->cos, sizeof c->cos / sizeof *c->cos, -2);
    fill(c->sin, sizeof c->sin / sizeof *c->sin, 2);
    c->args = (flash_kv_append_args_t)FLASH_KV_APPEND_ARGS_INIT;
    c->args.dtype = FLASH_DTYPE_FP32;
    set_tensors(c);
    set_places(c, has_slots);
    set_rotary(c);
}

static append_params_t params_of(const call_t *c) {
    flash_kv_append_args_t checked;
    append_params_t params;
    assert_success(arguments_read_append(&c->args, &checked, &params));
    return params;
}

static void run(const append_params_t *params) {
    const executor_t own_threads = {.run = NULL};
    assert_success(cpu_append(params, &own_threads));
}

static void check_parts(bool has_slots) {
    static call_t whole, parts;
    create(&whole, has_slots);
    create(&parts, has_slots);
    const append_params_t all = params_of(&whole), of_parts = params_of(&parts);
    assert_true(append_is_split(&all));
    run(&all);
    const append_params_t v = append_v_alone(&of_parts), rest = append_without_v(&of_parts);
    assert_false(append_is_split(&v) || append_is_split(&rest));
    run(&v);
    assert_memory_equal(parts.out.v, whole.out.v, sizeof whole.out.v);
    for (size_t i = 0; i < sizeof parts.out.k / sizeof *parts.out.k; i++)
        assert_true(parts.out.k[i] != parts.out.k[i]); /* NaN still */
    run(&rest);
    assert_memory_equal(&parts.out, &whole.out, sizeof whole.out);
}

TEST(two_calls_write_what_one_does) {
    check_parts(false);
}

TEST(two_calls_write_to_slots_what_one_does) {
    check_parts(true);
}

/* All rows of a kernel of a CUDA device have d_head. */
TEST(v_alone_has_its_own_width_and_does_not_turn) {
    static call_t c;
    create(&c, false);
    const append_params_t all = params_of(&c), v = append_v_alone(&all);
    assert_int_equal(v.d_head, D_V);
    assert_int_equal(v.rotary.n_pairs, 0);
    assert_int_equal(v.tokens_q.total, 0);
    assert_int_equal(v.parts[APPEND_V].n_heads + v.parts[APPEND_Q].n_heads, 0);
    assert_null(v.seqused_k_out);
}

TEST(heads_of_one_width_are_one_call) {
    static call_t c;
    create(&c, false);
    c.args.d_head_v = 0;
    c.args.v_new = c.args.k_new;
    c.args.v.data = NULL;
    c.args.v_new.data = NULL;
    append_params_t params = params_of(&c);
    assert_false(append_is_split(&params));
    c.args.d_head_v = D_V; /* of a V that is not there */
    params = params_of(&c);
    assert_false(append_is_split(&params));
}
