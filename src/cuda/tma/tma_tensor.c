/*
 * This file says which tensors TMA can address, by the rules of cuTensorMapEncodeTiled().
 */
#include "cuda/tma/tma_tensor.h"

#include "kernels/sm90/sm90_kernel.h"

#include <stddef.h>

/* TMA takes strides below 2^40 bytes. */
static const int64_t STRIDE_LIMIT_BYTES = (int64_t)1 << 40;

/* A step of a ragged map's last axis and a step of its rows make 2^34 bytes together, so that
 * SM90_RAGGED_END of both wrap an address round. */
static const int64_t WRAPPING_STRIDE_BYTES = (int64_t)1 << 34;

/* The properties in which Q, K, V and O differ. */
typedef struct layout {
    const void *data;
    const flash_strides_t *stride;
    const int32_t *cu_seqlens;
    int32_t entries; /* along the outermost axis: sequences, or pages of the pool */
    int32_t seqlen;  /* of an entry, at most */
    int32_t n_heads;
    int32_t columns; /* of a head */
    int32_t element_bytes;
} layout_t;

static tma_tensor_t batched(const layout_t *l) {
    return (tma_tensor_t){.data = l->data,
                          .element_bytes = l->element_bytes,
                          .n_axes = 4,
                          .extent = {l->columns, l->seqlen, l->n_heads, l->entries},
                          .stride = {1, l->stride->seq, l->stride->head, l->stride->batch}};
}

/* Returns the elements from one token to the next. If every batch entry has one token, the stride
 * is that of entries; for a single token any stride will do. */
static int64_t token_stride(const layout_t *l) {
    if (l->cu_seqlens != NULL || l->seqlen > 1)
        return l->stride->seq;
    return l->entries > 1 ? l->stride->batch : SM90_CHUNK_BYTES / l->element_bytes;
}

/* Returns the tokens from one batch entry to the next; -1 if no whole number, or beyond 32 bits. */
static int64_t entry_tokens(const layout_t *l, int64_t token) {
    if (l->cu_seqlens != NULL || l->entries == 1)
        return 0;
    if (token <= 0 || l->stride->batch % token != 0)
        return -1;
    const int64_t tokens = l->stride->batch / token;
    return tokens <= (INT32_MAX - l->seqlen) / (l->entries - 1) ? tokens : -1;
}

static tma_tensor_t ragged(const layout_t *l) {
    const int64_t token = token_stride(l);
    const int64_t wrapping = WRAPPING_STRIDE_BYTES / l->element_bytes;
    if (l->entries == 0 || l->seqlen == 0)
        return batched(l);
    return (tma_tensor_t){.data = l->data,
                          .element_bytes = l->element_bytes,
                          .n_axes = 5,
                          .extent = {l->columns, SM90_RAGGED_END, l->n_heads, INT32_MAX, INT32_MAX},
                          .stride = {1, token, l->stride->head, token, wrapping - token},
                          .entry_tokens = entry_tokens(l, token)};
}

static tma_tensor_t tensor_of(const flash_config_t *c, const layout_t *l) {
    return sm90_has_varlen(c) ? ragged(l) : batched(l);
}

static layout_t query_layout(const flash_params_t *p, const void *data,
                             const flash_strides_t *stride, int32_t columns,
                             int32_t element_bytes) {
    return (layout_t){data,        stride,     p->cu_seqlens_q, p->batch,
                      p->seqlen_q, p->n_heads, columns,         element_bytes};
}

tma_tensor_t tma_tensor_q(const flash_config_t *config, const flash_params_t *p) {
    const layout_t q = query_layout(p, p->q, &p->q_stride, p->d_head, sm90_element_bytes(config));
    return tensor_of(config, &q);
}

static layout_t kv_layout(const flash_config_t *c, const flash_params_t *p, const void *data,
                          const flash_strides_t *stride, int32_t columns) {
    const bool paged = p->pages.page_size > 0;
    return (layout_t){data,
                      stride,
                      paged ? NULL : p->cu_seqlens_k,
                      paged ? p->pages.n_pages : p->batch,
                      paged ? p->pages.page_size : p->seqlen_k,
                      p->n_heads_kv,
                      columns,
                      sm90_kv_element_bytes(c)};
}

tma_tensor_t tma_tensor_k(const flash_config_t *config, const flash_params_t *p) {
    const int32_t columns = flash_is_latent(config) ? FLASH_LATENT_TOKEN_BYTES : p->d_head;
    const layout_t k = kv_layout(config, p, p->k, &p->k_stride, columns);
    return tensor_of(config, &k);
}

tma_tensor_t tma_tensor_v(const flash_config_t *config, const flash_params_t *p) {
    const int32_t columns = flash_is_latent(config) ? LATENT_ROTARY_AT : p->d_head_v;
    const layout_t v = kv_layout(config, p, p->v, &p->v_stride, columns);
    return tensor_of(config, &v);
}

tma_tensor_t tma_tensor_o(const flash_config_t *config, const flash_params_t *p) {
    const layout_t o =
        query_layout(p, p->o, &p->o_stride, p->d_head_v, sm90_o_element_bytes(config));
    return tensor_of(config, &o);
}

bool tma_tensor_is_empty(const tma_tensor_t *tensor) {
    for (int axis = 0; axis < tensor->n_axes; axis++)
        if (tensor->extent[axis] == 0)
            return true;
    return false;
}

static const char *stride_obstacle(const tma_tensor_t *tensor, int64_t stride) {
    if (stride % (SM90_CHUNK_BYTES / tensor->element_bytes) != 0)
        return "TMA needs the strides of Q, K, V and O to be multiples of 16 bytes";
    if (stride < 0 || stride >= STRIDE_LIMIT_BYTES / tensor->element_bytes)
        return "TMA needs the strides of Q, K, V and O to be below 2^40 bytes";
    return NULL;
}

/* A look-up of a kernel may leave a tensor's address and strides open, as 0. */
static const char *raggedness_obstacle(const tma_tensor_t *tensor) {
    const int64_t token = tensor->stride[1];
    if (tensor->data == NULL && token == 0)
        return NULL;
    if (token <= 0 || token >= WRAPPING_STRIDE_BYTES / tensor->element_bytes)
        return "TMA needs tokens of a ragged batch to be less than 2^34 bytes apart, and more than "
               "0";
    if (tensor->entry_tokens < 0)
        return "TMA needs entries of a ragged batch to be whole numbers of tokens apart, and less "
               "than 2^31 tokens in all";
    return NULL;
}

const char *tma_tensor_obstacle(const tma_tensor_t *tensor) {
    if (tma_tensor_is_empty(tensor))
        return NULL;
    if ((uintptr_t)tensor->data % SM90_CHUNK_BYTES != 0)
        return "TMA needs Q, K, V and O at 16-byte aligned addresses";
    if (tensor->extent[0] % (SM90_CHUNK_BYTES / tensor->element_bytes) != 0)
        return "TMA needs the d_head elements of a row of Q and K, and the d_head_v of V and O, to "
               "be multiples of 16 bytes";
    for (int axis = 1; axis < tensor->n_axes; axis++) { /* TMA ignores strides of extent 1 */
        const char *obstacle =
            tensor->extent[axis] > 1 ? stride_obstacle(tensor, tensor->stride[axis]) : NULL;
        if (obstacle != NULL)
            return obstacle;
    }
    return tensor->n_axes == TMA_MOST_AXES ? raggedness_obstacle(tensor) : NULL;
}

const char *tma_tensor_kv_obstacle(const flash_config_t *config, const flash_params_t *p) {
    const tma_tensor_t k = tma_tensor_k(config, p), v = tma_tensor_v(config, p);
    const char *of_k = tma_tensor_obstacle(&k);
    return of_k != NULL ? of_k : tma_tensor_obstacle(&v);
}
