/*
 * This file makes flash_backward_args_t of buffers. Each gradient has the shape of what it is of.
 */
#include "xla/backward_call.h"

#include "core/status.h"
#include "xla/shape.h"

static flash_tensor_t tensor(const XLA_FFI_Buffer *buffer) {
    flash_tensor_t dense = flash_tensor_bshd(buffer->data, buffer_length(buffer, -3),
                                             buffer_length(buffer, -2), buffer_length(buffer, -1));
    dense.dtype = buffer_dtype(buffer);
    return dense;
}

static flash_status_t check_like(const XLA_FFI_Buffer *buffer, const char *name,
                                 const XLA_FFI_Buffer *of) {
    return shape_check(buffer, name, of->rank, of->dims);
}

/* V's gradient has V's columns, also where V is K's first ones. */
static flash_status_t check_dv(const backward_call_t *call) {
    const XLA_FFI_Buffer *dv = call->gradients.dv, *v = call->forward.operands.of[OPERAND_V];
    int64_t lengths[4];
    for (int64_t axis = 0; axis < v->rank; axis++)
        lengths[axis] = v->dims[axis];
    lengths[v->rank - 1] = call->forward.args.d_head_v;
    return shape_check(dv, "the gradient of v", v->rank, lengths);
}

static flash_status_t check_shapes(const backward_call_t *call) {
    const operands_t *operands = &call->forward.operands;
    const gradients_t *g = &call->gradients;
    FLASH_TRY(check_like(g->d_o, "the gradient of O", operands->o));
    if (g->d_lse != NULL)
        FLASH_TRY(check_like(g->d_lse, "the gradient of LSE", operands->lse));
    FLASH_TRY(check_like(g->dq, "the gradient of q", operands->of[OPERAND_Q]));
    FLASH_TRY(check_like(g->dk, "the gradient of k", operands->of[OPERAND_K]));
    FLASH_TRY(check_dv(call));
    return g->d_sinks == NULL
               ? FLASH_SUCCESS
               : SHAPE_CHECK(g->d_sinks, "the gradient of sinks", call->forward.args.n_heads);
}

static void set_args(backward_call_t *call) {
    const gradients_t *g = &call->gradients;
    flash_backward_args_t *args = &call->args;
    args->forward = &call->forward.args;
    args->d_o = tensor(g->d_o);
    args->d_lse = g->d_lse == NULL ? NULL : g->d_lse->data;
    args->dq = tensor(g->dq);
    args->dk = tensor(g->dk);
    args->dv = tensor(g->dv);
    args->d_sinks = g->d_sinks == NULL ? NULL : g->d_sinks->data;
    if (call->forward.args.cu_seqlens_q != NULL)
        args->total_q = buffer_length(g->dq, 0);
    if (call->forward.args.cu_seqlens_k != NULL)
        args->total_k = buffer_length(g->dk, 0);
    args->workspace = call->forward.operands.workspace->data;
    args->workspace_size = (uint64_t)buffer_length(call->forward.operands.workspace, 0);
}

flash_status_t backward_call_read(const XLA_FFI_CallFrame *frame, int32_t device,
                                  backward_call_t *call) {
    call_t *forward = &call->forward;
    call->args = (flash_backward_args_t)FLASH_BACKWARD_ARGS_INIT;
    FLASH_TRY(attributes_read(&frame->attrs, &forward->attributes));
    FLASH_TRY(operands_take_backward(&frame->args, &frame->rets, forward->attributes.operands,
                                     &forward->operands, &call->gradients));
    FLASH_TRY(call_read_taken(device, forward));
    FLASH_TRY(check_shapes(call));
    set_args(call);
    return FLASH_SUCCESS;
}
