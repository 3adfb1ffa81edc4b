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

flash_tensor_t take_tensor(input_t *in, int64_t seqlen, int64_t heads, int64_t d_head) {
    flash_tensor_t t = FLASH_TENSOR_INIT;
    t.stride_head = take_byte(in) < 200 ? d_head : take_number(in, 100);
    t.stride_seq = take_byte(in) < 200 ? (heads & 63) * (d_head & 255) : take_number(in, 200);
    t.stride_batch =
        take_byte(in) < 200 ? (seqlen & 63) * (heads & 63) * (d_head & 255) : take_number(in, 250);
    if (take_byte(in) == 255)
        take(in, t.reserved, sizeof t.reserved);
    return t;
}

bool get_extent(const flash_tensor_t *tensor, const int64_t sizes[3], int64_t d_head,
                int64_t stride, int64_t n, int64_t *elements) {
    const int64_t strides[4] = {tensor->stride_batch, tensor->stride_seq, tensor->stride_head,
                                stride};
    const int64_t counts[4] = {sizes[0], sizes[1], sizes[2], n};
    *elements = 0;
    for (int i = 0; i < 4; i++)
        if (counts[i] == 0)
            return true;
    *elements = d_head;
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
