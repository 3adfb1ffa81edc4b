/*
 * The arguments of flash_kv_append() are validated here.
 */
#include "arguments/append_arguments.h"

#include "arguments/append_arrays.h"
#include "arguments/append_rotary.h"
#include "arguments/checks.h"
#include "arguments/latent_arguments.h"
#include "arguments/paging.h"
#include "arguments/quant.h"
#include "arguments/quant_block_arguments.h"
#include "arguments/regions.h"
#include "arguments/tensor.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/key.h"

#include <inttypes.h>

/* ---- Types and sizes ---- */

/* A tensor that names no type has that of the call. */
static void set_default_types(flash_kv_append_args_t *a) {
    flash_tensor_t *const tensors[] = {&a->k_new, &a->v_new, &a->k, &a->v, &a->q, &a->q_out};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        if (tensors[i]->dtype == 0)
            tensors[i]->dtype = a->dtype;
}

/* V has the head dimension of K, unless it has one of its own. */
static void set_default_d_head_v(flash_kv_append_args_t *a) {
    if (a->d_head_v == 0)
        a->d_head_v = a->d_head;
}

/* Says whether the cache has V of its own. */
static bool has_v(const flash_kv_append_args_t *a) {
    return a->v_new.data != NULL || a->v.data != NULL;
}

static flash_status_t check_new_types(int32_t k_new, int32_t v_new) {
    FLASH_TRY(argument_check_dtype("k_new.dtype", k_new));
    FLASH_TRY(argument_check_dtype("v_new.dtype", v_new));
    FLASH_REQUIRE(k_new == v_new, FLASH_ERROR_UNSUPPORTED,
                  "k_new.dtype is %" PRId32 " and v_new.dtype is %" PRId32
                  ": new tokens of K and V must have one type",
                  k_new, v_new);
    return FLASH_SUCCESS;
}

static flash_status_t check_cache_types(int32_t k, int32_t v) {
    FLASH_TRY(argument_check_dtype("k.dtype", k));
    FLASH_TRY(argument_check_dtype("v.dtype", v));
    return argument_check_mixed("k.dtype", k, "v.dtype", v);
}

static flash_status_t check_query_type(const char *name, int32_t dtype) {
    FLASH_TRY(argument_check_dtype(name, dtype));
    return dtype == FLASH_DTYPE_E4M3 ? FLASH_SUCCESS : argument_check_not_of_keys(name, dtype);
}

static flash_status_t check_types(const flash_kv_append_args_t *a) {
    const int32_t v_new = has_v(a) ? a->v_new.dtype : a->k_new.dtype;
    const int32_t v = has_v(a) ? a->v.dtype : a->k.dtype;
    FLASH_TRY(argument_check_dtype("dtype", a->dtype));
    FLASH_TRY(check_new_types(a->k_new.dtype, v_new));
    FLASH_TRY(check_cache_types(a->k.dtype, v));
    FLASH_REQUIRE(a->k_new.dtype != FLASH_DTYPE_E4M3 || a->k.dtype == FLASH_DTYPE_E4M3,
                  FLASH_ERROR_UNSUPPORTED,
                  "k_new.dtype is FLASH_DTYPE_E4M3 and k.dtype is %" PRId32
                  ": new tokens of e4m3 go into a cache of e4m3 alone",
                  a->k.dtype);
    if (a->seqlen_q == 0)
        return FLASH_SUCCESS;
    FLASH_TRY(check_query_type("q.dtype", a->q.dtype));
    return check_query_type("q_out.dtype", a->q_out.dtype);
}

/* Requires a number of tokens, and of elements of a token, that 31 bits count. */
static flash_status_t check_tokens(const char *name, int64_t seqlen, int64_t batch,
                                   const int32_t *cu_seqlens) {
    int64_t total = 0;
    FLASH_TRY(argument_check_size(name, seqlen));
    FLASH_REQUIRE(cu_seqlens != NULL ||
                      (!__builtin_mul_overflow(seqlen, batch, &total) && total <= INT32_MAX),
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 " and batch %" PRId64 ": more than %" PRId32 " tokens", name,
                  seqlen, batch, INT32_MAX);
    return FLASH_SUCCESS;
}

static flash_status_t check_elements(const char *name, int64_t n_heads, const char *columns_name,
                                     int64_t columns) {
    int64_t elements = 0;
    FLASH_REQUIRE(!__builtin_mul_overflow(2 * n_heads, columns, &elements) && elements <= INT32_MAX,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 " and %s %" PRId64
                  ": twice their product, K and V of a token, is more than %" PRId32,
                  name, n_heads, columns_name, columns, INT32_MAX);
    return FLASH_SUCCESS;
}

static flash_status_t check_heads(const flash_kv_append_args_t *a) {
    FLASH_TRY(argument_check_count("d_head", a->d_head));
    FLASH_TRY(argument_check_count("d_head_v", a->d_head_v));
    FLASH_TRY(argument_check_count("n_heads_kv", a->n_heads_kv));
    FLASH_TRY(check_elements("n_heads_kv", a->n_heads_kv, "d_head", a->d_head));
    FLASH_TRY(check_elements("n_heads_kv", a->n_heads_kv, "d_head_v", a->d_head_v));
    if (a->seqlen_q == 0)
        return FLASH_SUCCESS;
    FLASH_TRY(argument_check_count("n_heads", a->n_heads));
    return check_elements("n_heads", a->n_heads, "d_head", a->d_head);
}

static flash_status_t check_sizes(const flash_kv_append_args_t *a) {
    const uint32_t known = FLASH_FLAG_BROADCAST | FLASH_FLAG_PAGE_SCALES;
    FLASH_REQUIRE((a->flags & ~known) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags is 0x%" PRIx32
                  ": only FLASH_FLAG_BROADCAST and FLASH_FLAG_PAGE_SCALES mean something here",
                  a->flags);
    FLASH_TRY(argument_check_size("batch", a->batch));
    FLASH_TRY(check_tokens("seqlen_new", a->seqlen_new, a->batch, a->cu_seqlens_new));
    FLASH_TRY(check_tokens("seqlen_q", a->seqlen_q, a->batch, a->cu_seqlens_q));
    FLASH_TRY(argument_check_size("seqlen_k", a->seqlen_k));
    FLASH_TRY(check_heads(a));
    FLASH_REQUIRE(a->seqlen_q == 0 || a->rotary != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "seqlen_q is %" PRId64 " without rotary, and nothing else is done to q",
                  a->seqlen_q);
    return FLASH_SUCCESS;
}

/* ---- Where the new tokens go ---- */

static flash_status_t check_lengths_out(const flash_kv_append_args_t *a) {
    FLASH_REQUIRE(a->seqused_k_out == NULL || a->slot_mapping == NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "seqused_k_out is given with slot_mapping: the call does not know how many keys "
                  "a sequence has");
    FLASH_REQUIRE(a->seqused_k_out == NULL || a->seqused_k != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "seqused_k_out is given without seqused_k");
    return FLASH_SUCCESS;
}

static flash_status_t read_places(const flash_kv_append_args_t *a, append_params_t *p) {
    FLASH_REQUIRE(a->slot_mapping == NULL || a->paging != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "slot_mapping is given without paging, which has page_size and n_pages");
    FLASH_REQUIRE(a->slot_mapping != NULL || a->seqused_k != NULL || p->tokens_new.total == 0,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "seqused_k and slot_mapping are NULL: one of them says where new tokens go");
    FLASH_TRY(check_lengths_out(a));
    if (a->paging == NULL)
        return FLASH_SUCCESS;
    return a->slot_mapping ? arguments_read_pool(a->paging, &p->pages)
                           : arguments_read_pages(a->paging, p->tokens_new.total > 0, &p->pages);
}

/* ---- Tensors ---- */

typedef struct shapes {
    tensor_shape_t k_new, v_new, k, v, q, q_out;
} shapes_t;

static shapes_t shapes_of(const flash_kv_append_args_t *a, const append_params_t *p) {
    const bool paged = p->pages.page_size > 0;
    shapes_t s = {.k_new = {.batch = a->cu_seqlens_new ? 1 : a->batch,
                            .seq = a->seqlen_new,
                            .longest_seq = a->seqlen_new,
                            .heads = a->n_heads_kv,
                            .d_head = a->d_head,
                            .element_size = dtype_size(a->k_new.dtype),
                            .may_repeat = (a->flags & FLASH_FLAG_BROADCAST) != 0}};
    s.k = s.q = s.v_new = s.k_new;
    s.v_new.d_head = a->d_head_v;
    s.k.batch = p->tokens_new.total == 0 ? 0 : paged ? p->pages.n_pages : a->batch;
    s.k.seq = s.k.longest_seq = paged ? p->pages.page_size : a->seqlen_k;
    s.k.d_head = key_elements(a->k.dtype, a->d_head);
    s.k.element_size = dtype_size(a->k.dtype);
    s.k.is_output = true;
    s.v = s.k;
    s.v.d_head = key_elements(a->v.dtype, a->d_head_v);
    s.v.element_size = dtype_size(a->v.dtype);
    s.q.batch = a->cu_seqlens_q ? 1 : a->batch;
    s.q.seq = s.q.longest_seq = a->seqlen_q;
    s.q.heads = a->n_heads;
    s.q.element_size = dtype_size(a->q.dtype);
    s.q_out = s.q;
    s.q_out.element_size = dtype_size(a->q_out.dtype);
    s.q_out.is_output = true;
    return s;
}

static flash_status_t check_output(const char *name, const flash_tensor_t *tensor,
                                   const tensor_shape_t *shape) {
    FLASH_TRY(tensor_check(name, tensor, shape));
    return tensor_check_output(name, tensor, shape);
}

/* Numbers of regions that may overlap. */
enum { POOLS = 1, QUERIES = 2 };

/* Pools of K and V may share memory, because pages of both may be mixed in one. */
static flash_status_t check_cache(const flash_kv_append_args_t *a, const shapes_t *s,
                                  regions_t *regions) {
    const int32_t sharing = a->paging ? POOLS : 0;
    FLASH_TRY(tensor_check("k_new", &a->k_new, &s->k_new));
    FLASH_TRY(check_output("k", &a->k, &s->k));
    regions_add(regions, "k_new", &a->k_new, &s->k_new);
    regions_add_sharing(regions, "k", &a->k, &s->k, sharing);
    if (!has_v(a))
        return FLASH_SUCCESS;
    FLASH_TRY(tensor_check("v_new", &a->v_new, &s->v_new));
    FLASH_TRY(check_output("v", &a->v, &s->v));
    regions_add(regions, "v_new", &a->v_new, &s->v_new);
    regions_add_sharing(regions, "v", &a->v, &s->v, sharing);
    return FLASH_SUCCESS;
}

static flash_status_t check_queries(const flash_kv_append_args_t *a, const shapes_t *s,
                                    regions_t *regions) {
    const bool in_place = tensor_is_same(&a->q, &s->q, &a->q_out, &s->q_out);
    FLASH_TRY(tensor_check("q", &a->q, &s->q));
    FLASH_TRY(check_output("q_out", &a->q_out, &s->q_out));
    regions_add_sharing(regions, "q", &a->q, &s->q, in_place ? QUERIES : 0);
    regions_add_sharing(regions, "q_out", &a->q_out, &s->q_out, in_place ? QUERIES : 0);
    return FLASH_SUCCESS;
}

/* ---- Scales: those of a call of attention over the cache ---- */

static flash_status_t read_scales(const flash_kv_append_args_t *a, append_params_t *p,
                                  regions_t *regions) {
    const flash_forward_args_t over_cache = {.flags = a->flags,
                                             .quant = a->quant,
                                             .paging = a->paging,
                                             .q = a->q,
                                             .k = a->k,
                                             .batch = a->batch,
                                             .n_heads_kv = a->n_heads_kv};
    flash_params_t scales = {
        .batch = (int32_t)a->batch, .n_heads_kv = (int32_t)a->n_heads_kv, .pages = p->pages};
    FLASH_TRY(arguments_read_quant(&over_cache, &scales));
    FLASH_TRY(arguments_check_scales(&scales, regions));
    if (a->device != FLASH_DEVICE_CPU)
        FLASH_TRY(arguments_check_scale_alignments(&scales));
    p->parts[APPEND_K].scale = scales.k_scale;
    p->parts[APPEND_V].scale = scales.v_scale;
    return FLASH_SUCCESS;
}

/* ---- Arrays ---- */

static void add_arrays(const flash_kv_append_args_t *a, const append_params_t *p,
                       regions_t *regions) {
    const int64_t size = sizeof(int32_t);
    regions_add_array(regions, "cu_seqlens_new", a->cu_seqlens_new, a->batch + 1, size);
    regions_add_array(regions, "cu_seqlens_q", a->cu_seqlens_q, a->batch + 1, size);
    regions_add_array(regions, "seqused_k", a->seqused_k, a->batch, size);
    regions_add_output_array(regions, "seqused_k_out", a->seqused_k_out, a->batch, size);
    regions_add_array(regions, "slot_mapping", a->slot_mapping, p->tokens_new.total,
                      sizeof *a->slot_mapping);
    arguments_add_pages(&p->pages, a->batch, p->n_ids, regions);
    arguments_add_rotary(p, regions);
}

/* ---- Alignment, for CUDA devices ---- */

static flash_status_t check_tensor_alignment(const char *name, const flash_tensor_t *tensor) {
    return argument_check_alignment(name, tensor->data, dtype_size(tensor->dtype));
}

/* Tensors that the call does not have may name any type. */
static flash_status_t check_tensor_alignments(const flash_kv_append_args_t *a) {
    FLASH_TRY(check_tensor_alignment("k_new.data", &a->k_new));
    FLASH_TRY(check_tensor_alignment("k.data", &a->k));
    if (has_v(a)) {
        FLASH_TRY(check_tensor_alignment("v_new.data", &a->v_new));
        FLASH_TRY(check_tensor_alignment("v.data", &a->v));
    }
    if (a->seqlen_q == 0)
        return FLASH_SUCCESS;
    FLASH_TRY(check_tensor_alignment("q.data", &a->q));
    return check_tensor_alignment("q_out.data", &a->q_out);
}

/* Tokens of a latent cache are written in words. */
static flash_status_t check_token_alignment(const flash_kv_append_args_t *a) {
    const int64_t strides = a->k.stride_batch | a->k.stride_seq | a->k.stride_head;
    if (a->k.dtype != FLASH_DTYPE_LATENT_E4M3)
        return FLASH_SUCCESS;
    FLASH_TRY(argument_check_alignment("k.data", a->k.data, LATENT_ALIGNMENT));
    FLASH_REQUIRE(strides % LATENT_ALIGNMENT == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "k has strides %" PRId64 ", %" PRId64 ", %" PRId64
                  ": no multiples of %d, as CUDA devices need them for latent tokens",
                  a->k.stride_batch, a->k.stride_seq, a->k.stride_head, LATENT_ALIGNMENT);
    return FLASH_SUCCESS;
}

static flash_status_t check_alignments(const flash_kv_append_args_t *a, const flash_pages_t *g) {
    const int64_t id = sizeof *g->table;
    FLASH_TRY(check_tensor_alignments(a));
    FLASH_TRY(check_token_alignment(a));
    FLASH_TRY(argument_check_alignment("cu_seqlens_new", a->cu_seqlens_new, id));
    FLASH_TRY(argument_check_alignment("cu_seqlens_q", a->cu_seqlens_q, id));
    FLASH_TRY(argument_check_alignment("seqused_k", a->seqused_k, id));
    FLASH_TRY(argument_check_alignment("seqused_k_out", a->seqused_k_out, id));
    FLASH_TRY(argument_check_alignment("slot_mapping", a->slot_mapping, sizeof *a->slot_mapping));
    return arguments_check_page_alignments(g);
}

/* ---- Parameters ---- */

static append_part_t part_of(const flash_tensor_t *from, const flash_tensor_t *to,
                             int64_t n_heads) {
    return (append_part_t){.from = from->data,
                           .to = to->data,
                           .from_dtype = from->dtype,
                           .to_dtype = to->dtype,
                           .n_heads = (int32_t)n_heads};
}

static append_tokens_t tokens_of(const int32_t *cu_seqlens, int64_t seqlen, int64_t batch) {
    return (append_tokens_t){.cu_seqlens = cu_seqlens,
                             .total = batch == 0   ? 0
                                      : cu_seqlens ? seqlen
                                                   : seqlen * batch,
                             .seqlen = (int32_t)seqlen};
}

/* Sets the part of K or of V, but for its scales. */
static void set_cache_part(const flash_kv_append_args_t *a, append_params_t *p, int part) {
    const bool is_k = part == APPEND_K;
    const flash_tensor_t *from = is_k ? &a->k_new : &a->v_new, *to = is_k ? &a->k : &a->v;
    const int64_t new_shape[3] = {a->batch, a->seqlen_new, a->n_heads_kv};
    const int64_t shape[3] = {a->batch, a->seqlen_k, a->n_heads_kv};
    append_part_t *set = &p->parts[part];
    *set = part_of(from, to, a->n_heads_kv);
    set->from_stride = tensor_strides(from, a->cu_seqlens_new != NULL, new_shape);
    set->to_stride = p->pages.page_size > 0 ? tensor_pool_strides(to, &p->pages, a->n_heads_kv)
                                            : tensor_strides(to, false, shape);
    set->table = is_k ? p->pages.table : p->pages.v_table;
    set->turns = is_k && p->rotary.n_pairs > 0;
}

static void set_q_part(const flash_kv_append_args_t *a, append_params_t *p) {
    const int64_t shape[3] = {a->batch, a->seqlen_q, a->n_heads};
    append_part_t *set = &p->parts[APPEND_Q];
    *set = part_of(&a->q, &a->q_out, a->n_heads);
    set->from_stride = tensor_strides(&a->q, a->cu_seqlens_q != NULL, shape);
    set->to_stride = tensor_strides(&a->q_out, a->cu_seqlens_q != NULL, shape);
    set->turns = 1;
}

static void set_params(const flash_kv_append_args_t *a, append_params_t *p) {
    set_cache_part(a, p, APPEND_K);
    if (has_v(a))
        set_cache_part(a, p, APPEND_V);
    if (a->seqlen_q > 0)
        set_q_part(a, p);
    p->seqused_k = a->seqused_k;
    p->seqused_k_out = a->seqused_k_out;
    p->slots = a->slot_mapping;
    p->seqlen_k = a->paging != NULL && a->seqlen_k == 0 ? INT32_MAX : (int32_t)a->seqlen_k;
    p->d_head = (int32_t)a->d_head;
    p->d_head_v = (int32_t)a->d_head_v;
}

flash_status_t arguments_read_append(const flash_kv_append_args_t *args,
                                     flash_kv_append_args_t *checked, append_params_t *params) {
    flash_kv_append_args_t *a = checked;
    FLASH_TRY(STRUCT_READ(flash_kv_append_args_t, a, args));
    if (a->q_out.data == NULL)
        a->q_out = a->q;
    set_default_types(a);
    set_default_d_head_v(a);
    FLASH_TRY(check_types(a));
    FLASH_TRY(check_sizes(a));
    FLASH_TRY(arguments_check_latent_append(a, has_v(a)));
    FLASH_TRY(arguments_check_quant_block_append(a, has_v(a)));
    *params = (append_params_t){.batch = (int32_t)a->batch,
                                .tokens_new = tokens_of(a->cu_seqlens_new, a->seqlen_new, a->batch),
                                .tokens_q = tokens_of(a->cu_seqlens_q, a->seqlen_q, a->batch)};
    FLASH_TRY(read_places(a, params));
    FLASH_TRY(arguments_read_rotary(a, params));
    set_params(a, params);
    const shapes_t shapes = shapes_of(a, params);
    regions_t regions = {.n = 0};
    FLASH_TRY(check_cache(a, &shapes, &regions));
    FLASH_TRY(check_queries(a, &shapes, &regions));
    FLASH_TRY(read_scales(a, params, &regions));
    FLASH_TRY(a->device == FLASH_DEVICE_CPU ? arguments_check_append_arrays(params)
                                            : check_alignments(a, &params->pages));
    add_arrays(a, params, &regions);
    return regions_check(&regions);
}
