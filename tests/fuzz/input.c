/*
 * This file makes arguments of the fuzzer's bytes.
 */
#include "input.h"

#include "check.h"

#include <string.h>

void take(input_t *in, void *value, size_t size) {
    const size_t n = in->size < size ? in->size : size;
    memcpy(value, in->data, n);
    in->data += n;
    in->size -= n;
}

uint8_t take_byte(input_t *in) {
    uint8_t byte = 0;
    take(in, &byte, 1);
    return byte;
}

int64_t take_number(input_t *in, int64_t small) {
    const uint8_t byte = take_byte(in);
    int64_t value = byte % (small + 1);
    if (byte >= 250)
        take(in, &value, sizeof value);
    return value;
}

float take_float(input_t *in) {
    float value = 0;
    if (take_byte(in) >= 128)
        take(in, &value, sizeof value);
    return value;
}

int32_t take_any_dtype(input_t *in) {
    return (int32_t)take_number(in, FLASH_DTYPE_Q4_0 + 1);
}

int32_t take_dtype(input_t *in) {
    return take_byte(in) < 160 ? 0 : take_any_dtype(in);
}

int64_t take_d_head(input_t *in, int64_t most, int64_t latent) {
    const uint8_t kind = take_byte(in);
    if (kind >= 240)
        return latent;
    return kind < 160 ? take_number(in, most) : FLASH_QUANT_BLOCK * (take_byte(in) % 5);
}

/* Head dimensions of any size make no overflow. */
static int64_t bytes_of_blocks(int64_t d_head, int64_t block) {
    return (d_head & 0xffff) / FLASH_QUANT_BLOCK * block;
}

int64_t row_elements(int64_t d_head, int32_t dtype) {
    switch (dtype) {
    case FLASH_DTYPE_LATENT_E4M3:
        return FLASH_LATENT_TOKEN_BYTES;
    case FLASH_DTYPE_Q8_0:
        return bytes_of_blocks(d_head, FLASH_Q8_0_BYTES);
    case FLASH_DTYPE_Q4_0:
        return bytes_of_blocks(d_head, FLASH_Q4_0_BYTES);
    default:
        return d_head;
    }
}

int64_t element_size(int32_t call_dtype, int32_t dtype) {
    switch (dtype ? dtype : call_dtype) {
    case FLASH_DTYPE_FP32:
        return 4;
    case FLASH_DTYPE_E4M3:
    case FLASH_DTYPE_LATENT_E4M3:
    case FLASH_DTYPE_Q8_0:
    case FLASH_DTYPE_Q4_0:
        return 1;
    default:
        return 2;
    }
}

flash_tensor_t take_tensor(input_t *in, int64_t seqlen, int64_t heads, int64_t row) {
    flash_tensor_t t = FLASH_TENSOR_INIT;
    t.stride_head = take_byte(in) < 200 ? row : take_number(in, 100);
    t.stride_seq = take_byte(in) < 200 ? (heads & 63) * (row & 1023) : take_number(in, 200);
    t.stride_batch =
        take_byte(in) < 200 ? (seqlen & 63) * (heads & 63) * (row & 1023) : take_number(in, 250);
    if (take_byte(in) == 255)
        take(in, t.reserved, sizeof t.reserved);
    return t;
}

void take_ascending(input_t *in, int32_t cu[MOST_BATCH + 1]) {
    cu[0] = 0;
    for (int i = 1; i <= MOST_BATCH; i++)
        cu[i] = cu[i - 1] + take_byte(in) % 12;
    if (take_byte(in) >= 240)
        cu[take_byte(in) % (MOST_BATCH + 1)] = (int8_t)take_byte(in);
}

/* Takes mostly a small number, and sometimes a negative one. */
static int32_t take_id(input_t *in, int32_t most) {
    const uint8_t byte = take_byte(in);
    return byte < 250 ? byte % most : (int8_t)byte;
}

const flash_paging_t *take_pages(input_t *in, pages_t *g) {
    const uint8_t given = take_byte(in);
    int32_t begin = 0;
    g->paging = (flash_paging_t)FLASH_PAGING_INIT;
    if (given % 2 == 0)
        return NULL;
    g->paging.page_size = take_number(in, 9);
    g->paging.n_pages = take_number(in, MOST_IDS);
    for (int i = 0; i < MOST_BATCH * MOST_IDS; i++) {
        g->table[i] = take_id(in, MOST_IDS);
        g->v_table[i] = take_id(in, MOST_IDS);
    }
    for (int b = 0; b < MOST_BATCH; b++) {
        g->rows[b] = take_id(in, MOST_BATCH);
        g->rows64[b] = (int64_t)((uint64_t)g->rows[b] << (given & 2 ? 32 : 0));
        g->indptr[b] = begin;
        begin += take_byte(in) % (MOST_IDS + 1);
    }
    g->indptr[MOST_BATCH] = begin;
    if (given & 2)
        g->indptr[take_byte(in) % (MOST_BATCH + 1)] = take_id(in, MOST_BATCH * MOST_IDS);
    g->paging.page_table = given & 4 ? g->table : NULL;
    g->paging.page_indptr = given & 8 ? g->indptr : NULL;
    g->paging.page_rows = (given & 16) && !(given & 128) ? g->rows : NULL;
    g->paging.page_rows64 = (given & 128) && (given & 24) ? g->rows64 : NULL;
    g->paging.v_page_table = given & 32 ? g->v_table : NULL;
    g->paging.page_table_stride = given & 64 ? take_byte(in) % (MOST_IDS + 1) : 0;
    return &g->paging;
}

static void take_q_scales(input_t *in, scales_t *s, float scale) {
    const uint8_t given = take_byte(in);
    for (size_t i = 0; i < sizeof s->q / sizeof s->q[0]; i++)
        s->q[i] = scale;
    s->quant.q_scale = given & 1 ? s->q : NULL;
    s->quant.q_scale_stride_batch = given & 2 ? take_byte(in) % MOST_STRIDE : 0;
    s->quant.q_scale_stride_head = given & 4 ? take_byte(in) % MOST_STRIDE : 0;
    s->quant.q_token_scale = given & 8 ? s->q : NULL;
    s->quant.q_token_scale_stride_batch = given & 16 ? take_byte(in) % MOST_STRIDE : 0;
    s->quant.q_token_scale_stride_seq = given & 32 ? take_byte(in) % MOST_STRIDE : 0;
    s->quant.q_token_scale_stride_head = given & 64 ? take_byte(in) % MOST_STRIDE : 0;
}

const flash_quant_t *take_scales(input_t *in, scales_t *s) {
    const uint8_t given = take_byte(in);
    s->quant = (flash_quant_t)FLASH_QUANT_INIT;
    if (given % 2 == 0)
        return NULL;
    const float k = take_float(in), v = take_float(in);
    for (size_t i = 0; i < sizeof s->k / sizeof s->k[0]; i++) {
        s->k[i] = k;
        s->v[i] = v;
    }
    s->quant.k_scale = given & 2 ? s->k : NULL;
    s->quant.v_scale = given & 4 ? s->v : NULL;
    s->quant.k_scale_stride_batch = given & 8 ? take_byte(in) % MOST_STRIDE : 0;
    s->quant.k_scale_stride_head = given & 16 ? take_byte(in) % MOST_STRIDE : 0;
    s->quant.v_scale_stride_batch = given & 32 ? take_byte(in) % MOST_STRIDE : 0;
    s->quant.v_scale_stride_head = given & 64 ? take_byte(in) % MOST_STRIDE : 0;
    s->quant.reserved32 = given & 128 ? take_byte(in) % 2 : 0;
    take_q_scales(in, s, k);
    return &s->quant;
}

bool get_extent(const flash_tensor_t *tensor, const int64_t sizes[3], int64_t row, int64_t stride,
                int64_t n, int64_t *elements) {
    const int64_t strides[4] = {tensor->stride_batch, tensor->stride_seq, tensor->stride_head,
                                stride};
    const int64_t counts[4] = {sizes[0], sizes[1], sizes[2], n};
    *elements = 0;
    for (int i = 0; i < 4; i++)
        if (counts[i] <= 0)
            return counts[i] == 0;
    *elements = row;
    for (int i = 0; i < 4; i++) {
        if (counts[i] == 1 || strides[i] < 0)
            continue;
        if (strides[i] > MOST_ELEMENTS || counts[i] > MOST_ELEMENTS)
            return false;
        *elements += strides[i] * (counts[i] - 1);
    }
    return *elements <= MOST_ELEMENTS;
}

void *filled(int64_t bytes, uint8_t value) {
    void *memory = malloc((size_t)bytes);
    CHECK(memory != NULL || bytes == 0);
    memset(memory, value, (size_t)bytes);
    return memory;
}
