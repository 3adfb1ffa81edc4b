/*
 * This file has the exported calls of gradients. A call runs a row of the table for dQ and one for
 * dK and dV, after it has computed what both need; or, with a workspace in which the latter can
 * keep dS, that row alone, which has a kernel that computes dQ of it.
 */
#include "cpu/backward.h"
#include "api/backward_begin.h"
#include "api/device.h"
#include "api/resolve.h"
#include "arguments/backward_arguments.h"
#include "arguments/data.h"
#include "config/kernel_table.h"
#include "core/call_scope.h"
#include "core/int64.h"
#include "core/status.h"
#include "cuda/backward/plan_kept_ds.h"
#include "flashattn.h"
#include "select/trace.h"

#include <inttypes.h>
#include <stdio.h>

/* A backward call with its rows. dq has the call's problem. */
typedef struct backward {
    flash_backward_args_t args;
    resolved_t dq;
    resolved_t dkv;
} backward_t;

/* A call wants some of the gradients. Before memory is there no gradient has data, and each counts.
 */
typedef struct wants {
    bool dq;
    bool dkv;
} wants_t;

static wants_t wants_of(const flash_backward_args_t *a) {
    const bool dkv = a->dk.data != NULL || a->dv.data != NULL;
    const bool none = a->dq.data == NULL && !dkv;
    return (wants_t){a->dq.data != NULL || none, dkv || none};
}

/* ---- The rows ---- */

static flash_status_t resolve_rows(const flash_backward_args_t *args, backward_t *b) {
    FLASH_TRY(arguments_read_backward(args, &b->args, &b->dq.args, &b->dq.problem));
    b->dkv.args = b->dq.args;
    b->dkv.problem = b->dq.problem;
    b->dkv.explained = b->dq.explained;
    FLASH_TRY(resolve_kernel(FLASH_OP_BACKWARD_DQ, b->args.dq_kernel, &b->dq));
    return resolve_kernel(FLASH_OP_BACKWARD_DKV, b->args.dkv_kernel, &b->dkv);
}

/* ---- The workspace ---- */

typedef struct sizes {
    uint64_t least;
    uint64_t best;
} sizes_t;

/* Adds to the sizes of a call's begin those of a row. */
static flash_status_t add_row(const resolved_t *r, const sizes_t *begin, sizes_t *sizes) {
    uint64_t least = 0, best = 0;
    const family_calls_t *calls = kernel_calls(r->kernel);
    FLASH_TRY(calls->workspace(r->kernel, &r->problem, &r->device, &best));
    if (calls->least_workspace != NULL)
        FLASH_TRY(calls->least_workspace(r->kernel, &r->problem, &r->device, &least));
    else
        least = best;
    sizes->least = max_u64(sizes->least, saturating_add(begin->least, least));
    sizes->best = max_u64(sizes->best, saturating_add(begin->best, best));
    return FLASH_SUCCESS;
}

/* Does the same for both rows together, which a CPU can compute at once. */
static flash_status_t add_joint(const backward_t *b, const sizes_t *begin, sizes_t *sizes) {
    uint64_t joint = 0;
    if (!device_is_cpu(&b->dq.device))
        return FLASH_SUCCESS;
    FLASH_TRY(cpu_backward_joint_workspace(b->dq.kernel, b->dkv.kernel, &b->dq.problem, &joint));
    sizes->best = max_u64(sizes->best, saturating_add(begin->best, joint));
    return FLASH_SUCCESS;
}

/* Returns how the call keeps dS if its workspace suffices. One that names a row for dQ has it run.
 */
static kept_ds_plan_t kept_ds_of(const backward_t *b) {
    const wants_t wants = wants_of(&b->args);
    if (!wants.dq || !wants.dkv || b->dq.is_named || device_is_cpu(&b->dkv.device))
        return (kept_ds_plan_t){.size = 0};
    return plan_kept_ds(b->dkv.kernel, &b->dkv.problem, &b->dkv.device);
}

static void add_kept_ds(const backward_t *b, const sizes_t *begin, sizes_t *sizes) {
    const uint64_t kept = kept_ds_of(b).size;
    if (kept != 0)
        sizes->best = max_u64(sizes->best, saturating_add(begin->best, kept));
}

static flash_status_t sizes_of(const backward_t *b, sizes_t *sizes) {
    const wants_t wants = wants_of(&b->args);
    const uint64_t begin_size = backward_begin_size(&b->dq.problem, &b->dq.device);
    const sizes_t begin = {begin_size, begin_size};
    *sizes = (sizes_t){0, 0};
    if (!b->dq.problem.has_output)
        return FLASH_SUCCESS;
    *sizes = begin;
    if (wants.dq)
        FLASH_TRY(add_row(&b->dq, &begin, sizes));
    if (wants.dkv)
        FLASH_TRY(add_row(&b->dkv, &begin, sizes));
    add_kept_ds(b, &begin, sizes);
    return wants.dq && wants.dkv ? add_joint(b, &begin, sizes) : FLASH_SUCCESS;
}

/* Says whether the call keeps dS. That is decided by the size of its workspace, whatever its
 * address. */
static bool keeps_ds(const backward_t *b, const kept_ds_plan_t *plan) {
    const uint64_t begin = backward_begin_size(&b->dq.problem, &b->dq.device);
    return plan->size != 0 && b->args.workspace_size >= saturating_add(begin, plan->size);
}

static void name_choices(const backward_t *b, char *text, size_t size) {
    const kept_ds_plan_t plan = kept_ds_of(b);
    const uint64_t begin = backward_begin_size(&b->dq.problem, &b->dq.device);
    if (text == NULL || size == 0)
        return;
    if (plan.size == 0)
        snprintf(text, size, "dQ: %s; dK, dV: %s", b->dq.reason, b->dkv.reason);
    else
        snprintf(text, size,
                 "dQ: %s, or, with a workspace of %" PRIu64
                 " bytes, by the row of dK and dV; dK, dV: %s",
                 b->dq.reason, saturating_add(begin, plan.size), b->dkv.reason);
}

static flash_status_t check_workspace(const backward_t *b) {
    sizes_t sizes;
    FLASH_TRY(sizes_of(b, &sizes));
    return backward_check_workspace(&b->dq.problem, &b->dq.device, sizes.least, sizes.best);
}

/* ---- The calls ---- */

static void trace_row(const resolved_t *r) {
    if (r->traced)
        trace_choice(r->kernel, &r->problem, r->reason);
}

static void set_begun(resolved_t *r, const problem_t *begun) {
    r->problem.params = begun->params;
    r->problem.gradients = begun->gradients;
    r->problem.workspace = begun->workspace;
    r->problem.workspace_size = begun->workspace_size;
}

static flash_status_t launch_row(resolved_t *r, const problem_t *begun, flash_stream_t stream) {
    set_begun(r, begun);
    return kernel_calls(r->kernel)->launch(r->kernel, &r->problem, &r->device, stream);
}

/* Computes section after section: dK, dV and dS, and then dQ of it. */
static flash_status_t launch_keeping_ds(resolved_t *r, const kept_ds_plan_t *plan,
                                        const problem_t *begun, flash_stream_t stream) {
    const family_calls_t *calls = kernel_calls(r->kernel);
    flash_gradients_t *g = &r->problem.gradients;
    set_begun(r, begun);
    g->ds = plan->ds;
    g->ds.data = r->problem.workspace;
    g->section = plan->section;
    do {
        FLASH_TRY(calls->launch(r->kernel, &r->problem, &r->device, stream));
        FLASH_TRY(calls->launch_dq_of_ds(r->kernel, &r->problem, &r->device, stream));
    } while (plan_next_section(plan, &r->problem.params, &g->section));
    return FLASH_SUCCESS;
}

static flash_status_t launch(backward_t *b, flash_stream_t stream) {
    problem_t begun = b->dq.problem;
    const bool dq = b->args.dq.data != NULL;
    const bool dkv = b->args.dk.data != NULL || b->args.dv.data != NULL;
    const kept_ds_plan_t plan = kept_ds_of(b);
    const bool is_kept = keeps_ds(b, &plan);
    bool is_done = false;
    FLASH_TRY(backward_begin(&begun, &b->dq.device, stream));
    if (dq && !is_kept)
        trace_row(&b->dq);
    if (dkv)
        trace_row(&b->dkv);
    if (is_kept)
        return launch_keeping_ds(&b->dkv, &plan, &begun, stream);
    if (dq && dkv && device_is_cpu(&b->dq.device))
        FLASH_TRY(cpu_backward_run_joint(b->dq.kernel, b->dkv.kernel, &begun, &is_done));
    if (dq && !is_done)
        FLASH_TRY(launch_row(&b->dq, &begun, stream));
    if (dkv && !is_done)
        FLASH_TRY(launch_row(&b->dkv, &begun, stream));
    return FLASH_SUCCESS;
}

flash_status_t flash_backward(const flash_backward_args_t *args, flash_stream_t stream) {
    FLASH_CALL_SCOPE();
    backward_t b = {.dq = {.explained = false}};
    FLASH_TRY(resolve_rows(args, &b));
    FLASH_TRY(device_check_stream(&b.dq.device, stream));
    FLASH_TRY(arguments_check_backward_data(&b.args, device_is_cpu(&b.dq.device), &b.dq.problem));
    if (!b.dq.problem.has_output)
        return FLASH_SUCCESS;
    FLASH_TRY(check_workspace(&b));
    return launch(&b, stream);
}

flash_status_t flash_backward_workspace_size(const flash_backward_args_t *args, uint64_t *least,
                                             uint64_t *best) {
    FLASH_CALL_SCOPE();
    backward_t b = {.dq = {.explained = false}};
    sizes_t sizes;
    FLASH_REQUIRE(least != NULL || best != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "least and best are NULL");
    FLASH_TRY(resolve_rows(args, &b));
    FLASH_TRY(sizes_of(&b, &sizes));
    if (least != NULL)
        *least = sizes.least;
    if (best != NULL)
        *best = sizes.best;
    return FLASH_SUCCESS;
}

flash_status_t flash_backward_prepare(const flash_backward_args_t *args) {
    FLASH_CALL_SCOPE();
    backward_t b = {.dq = {.explained = false}};
    FLASH_TRY(resolve_rows(args, &b));
    FLASH_TRY(backward_prepare(&b.dq.device));
    FLASH_TRY(kernel_calls(b.dq.kernel)->prepare(b.dq.kernel, &b.dq.problem, &b.dq.device));
    return kernel_calls(b.dkv.kernel)->prepare(b.dkv.kernel, &b.dkv.problem, &b.dkv.device);
}

flash_status_t flash_backward_select_kernels(const flash_backward_args_t *args,
                                             const flash_kernel_t **dq_kernel,
                                             const flash_kernel_t **dkv_kernel, char *reason,
                                             size_t reason_size) {
    FLASH_CALL_SCOPE();
    backward_t b = {.dq = {.explained = reason != NULL}};
    FLASH_TRY(resolve_rows(args, &b));
    if (dq_kernel != NULL)
        *dq_kernel = b.dq.kernel;
    if (dkv_kernel != NULL)
        *dkv_kernel = b.dkv.kernel;
    name_choices(&b, reason, reason_size);
    return FLASH_SUCCESS;
}

flash_status_t flash_backward_query_support(const flash_backward_args_t *args, char *reason,
                                            size_t reason_size) {
    FLASH_CALL_SCOPE();
    backward_t b = {.dq = {.explained = reason != NULL}};
    const flash_status_t status = resolve_rows(args, &b);
    if (status == FLASH_SUCCESS)
        name_choices(&b, reason, reason_size);
    else
        status_copy_text(status_message(), reason, reason_size);
    return status;
}
