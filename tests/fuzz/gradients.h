/*
 * Calls for gradients made of the fuzzer's bytes, of a call for attention that is made of them too.
 */
#ifndef FLASH_TESTS_FUZZ_GRADIENTS_H
#define FLASH_TESTS_FUZZ_GRADIENTS_H

#include "input.h"

/* Takes arguments without data, which point to those of attention. */
flash_backward_args_t take_backward(input_t *in, const flash_forward_args_t *forward);

/* Makes the calls that read no data. */
void check_backward_shape_calls(const flash_backward_args_t *a);

/* Calls flash_backward() with tensors of exactly the extent that the arguments describe. forward
 * has data, O and a contiguous LSE. sizes_q and sizes_k are batch, tokens and heads of its Q and
 * K. */
void run_backward(const flash_backward_args_t *a, const int64_t sizes_q[3],
                  const int64_t sizes_k[3], input_t *in);

#endif
