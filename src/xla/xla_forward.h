/*
 * Attention for XLA: handlers of its foreign function interface (FFI), which JAX registers as
 * targets of custom calls. flashattn.jax is the door to them; another program that builds XLA's
 * custom calls may use them too. Experimental, in the sense of include/flashattn.h.
 *
 * Operands   Those whose bits the attribute `operands` has, in the order of src/xla/operands.h, of
 *            which 0, 1 and 2 are q, k and v. Their shapes are those of flashattn.jax, dense and
 *            row-major: q is [batch, seqlen_q, n_heads, d_head], or [total_q, n_heads, d_head] with
 *            cu_seqlens_q; lengths, tables and rows are int32; scales are float32, [] or [batch,
 *            n_heads_kv]; a mask is [batch, n_heads, seqlen_q, columns], or [n_heads, total_q,
 *            columns] with cu_seqlens_q, in which each axis but the last may be 1.
 * Results    O, of float16, bfloat16 or float32; LSE, float32, if there are three; the workspace,
 *            uint8 [bytes]: on a CUDA device what flash_workspace_size() says there. On the CPU a
 *            workspace that is shorter than this number of threads uses is replaced by memory that
 *            the call allocates, since an executable may outlive the number of threads that it was
 *            compiled for.
 * Attributes Scalars, each 0 where it is missing. Of flash_forward_args_t, as int64:
 *            attention_chunk, diagonal_offset, flags (FLASH_FLAG_...), n_multiprocessors, seqlen_q
 *            (only read with cu_seqlens_q), seqlen_k (only read with cu_seqlens_k or pages),
 *            window_left, window_right; as float32: softcap, softmax_scale. As int64 also operands,
 *            mask_keys (keys that the mask covers) and mask_flags (FLASH_MASK_...); k_dtype and
 *            v_dtype, the FLASH_DTYPE_... of a K and a V of uint8, whose last axis has the bytes of
 *            a row; and v_columns: V is the first columns of K, so many, and the operand v is k
 *            again, whose data is not looked at.
 * Errors     They have the text of flash_last_error() and a code of their kind. On the CPU nothing
 *            is written then.
 */
#ifndef FLASH_XLA_FORWARD_H
#define FLASH_XLA_FORWARD_H

#include "flashattn.h"

#include <xla/ffi/api/c_api.h>

/* Computes attention on the CPU, in the library's threads. */
FLASH_API XLA_FFI_Error *flash_xla_forward_cpu(XLA_FFI_CallFrame *frame);

/* Enqueues attention on XLA's stream of a CUDA device. It may be recorded in a command buffer,
 * which is a CUDA graph: it allocates nothing and waits for nothing. Registered for the stage
 * `initialize` too, it loads the kernel there, before anything is recorded. */
FLASH_API XLA_FFI_Error *flash_xla_forward_cuda(XLA_FFI_CallFrame *frame);

#endif
