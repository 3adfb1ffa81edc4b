// Translates an op of ggml. What it asks for and the library has not is refused by name, so that
// ggml computes it.
//
// The op's sources are Q, K, V, the mask and the sinks; its parameters are the scale, max_bias and
// the softcap. ggml's axes are [d_head, seqlen, heads, batch], those of O [d_head, heads, seqlen,
// batch], with strides in bytes.
#include "call.h"

#include <cmath>
#include <cstring>

namespace flashattn_ggml {

namespace {

enum Source { kQ, kK, kV, kMask, kSinks };
enum Parameter { kScale, kMaxBias, kSoftcap };

float parameter(const ggml_tensor *op, Parameter which) {
    float value;
    std::memcpy(&value, op->op_params + which, sizeof value);
    return value;
}

/* An element type of the library, the bytes of an element, in which its strides count, and those of
 * the smallest part of a row; dtype 0: the library has it not. */
struct Element {
    int32_t dtype;
    std::size_t size;
    std::size_t block;
};

Element element_of(const ggml_tensor *tensor) {
    switch (tensor->type) {
    case GGML_TYPE_F32:
        return {FLASH_DTYPE_FP32, 4, 4};
    case GGML_TYPE_F16:
        return {FLASH_DTYPE_FP16, 2, 2};
    case GGML_TYPE_BF16:
        return {FLASH_DTYPE_BF16, 2, 2};
    case GGML_TYPE_Q8_0:
        return {FLASH_DTYPE_Q8_0, 1, FLASH_Q8_0_BYTES};
    case GGML_TYPE_Q4_0:
        return {FLASH_DTYPE_Q4_0, 1, FLASH_Q4_0_BYTES};
    default:
        return {0, 1, 1};
    }
}

/* A tensor whose sequences lie along one of ggml's axes and whose heads along another. */
flash_tensor_t view(const ggml_tensor *tensor, int sequence, int head) {
    const Element element = element_of(tensor);
    const int64_t size = static_cast<int64_t>(element.size);
    flash_tensor_t result = FLASH_TENSOR_INIT;
    result.data = tensor->data;
    result.dtype = element.dtype;
    result.stride_batch = static_cast<int64_t>(tensor->nb[3]) / size;
    result.stride_seq = static_cast<int64_t>(tensor->nb[sequence]) / size;
    result.stride_head = static_cast<int64_t>(tensor->nb[head]) / size;
    return result;
}

bool has_whole_strides(const ggml_tensor *tensor) {
    const auto [dtype, size, block] = element_of(tensor);
    return tensor->nb[0] == block && tensor->nb[1] % size == 0 && tensor->nb[2] % size == 0 &&
           tensor->nb[3] % size == 0;
}

bool repeats_whole(const ggml_tensor *mask, const ggml_tensor *q, int axis) {
    return mask->ne[axis] == 1 || mask->ne[axis] == q->ne[axis];
}

/* Returns what of an op flash_forward_args_t has no words for; nullptr: nothing. */
const char *unsayable(const ggml_tensor *op) {
    const ggml_tensor *q = op->src[kQ], *k = op->src[kK], *v = op->src[kV], *mask = op->src[kMask];
    if (element_of(q).dtype == 0)
        return "the library has not the type of Q";
    if (element_of(k).dtype == 0)
        return "the library has not the type of K";
    if (element_of(v).dtype == 0)
        return "the library has not the type of V";
    if (!has_whole_strides(q) || !has_whole_strides(k) || !has_whole_strides(v))
        return "elements of Q, K or V are not contiguous, or rows no whole number of them apart";
    if (k->ne[2] != v->ne[2])
        return "K and V have different numbers of heads";
    if (k->ne[3] != q->ne[3] || v->ne[3] != q->ne[3])
        return "Q, K and V have different numbers of sequences";
    if (parameter(op, kScale) == 0)
        return "the scale is 0, by which the library means its default";
    if (mask != nullptr && !(repeats_whole(mask, q, 2) && repeats_whole(mask, q, 3)))
        return "the mask repeats over groups of heads or sequences";
    return nullptr;
}

void describe_sizes(const ggml_tensor *op, flash_forward_args_t *args) {
    const ggml_tensor *q = op->src[kQ], *k = op->src[kK], *v = op->src[kV];
    args->batch = q->ne[3];
    args->seqlen_q = q->ne[1];
    args->seqlen_k = k->ne[1];
    args->n_heads = q->ne[2];
    args->n_heads_kv = k->ne[2];
    args->d_head = q->ne[0];
    args->d_head_v = v->ne[0];
}

void describe_tensors(const ggml_tensor *op, flash_forward_args_t *args) {
    args->q = view(op->src[kQ], 1, 2);
    args->k = view(op->src[kK], 1, 2);
    args->v = view(op->src[kV], 1, 2);
    args->o = view(op, 2, 1);
    args->dtype = args->k.dtype;
}

/* ALiBi's slopes, as ggml has them: powers of two of max_bias where n_heads is a power of two, and
 * for the heads beyond the largest such number every other power of its half. */
std::vector<float> slopes(int64_t n_heads, float max_bias) {
    int64_t regular = 1;
    while (2 * regular <= n_heads)
        regular *= 2;
    const float base = std::pow(2.0f, -max_bias / static_cast<float>(regular));
    const float half_base = std::pow(2.0f, -max_bias / 2 / static_cast<float>(regular));
    std::vector<float> result;
    for (int64_t h = 0; h < n_heads; h++)
        result.push_back(h < regular
                             ? std::pow(base, static_cast<float>(h + 1))
                             : std::pow(half_base, static_cast<float>(2 * (h - regular) + 1)));
    return result;
}

/* ggml adds the mask to scores, and a mask of one head or sequence is that of all. */
void describe_mask(const ggml_tensor *op, Call *call) {
    const ggml_tensor *source = op->src[kMask];
    const int64_t size = 2; // of an element, which is fp16
    flash_mask_t *mask = &call->mask;
    mask->kind = FLASH_MASK_ADD;
    mask->dtype = FLASH_DTYPE_FP16;
    mask->data = source->data;
    mask->stride_batch = source->ne[3] == 1 ? 0 : static_cast<int64_t>(source->nb[3]) / size;
    mask->stride_head = source->ne[2] == 1 ? 0 : static_cast<int64_t>(source->nb[2]) / size;
    mask->stride_query = static_cast<int64_t>(source->nb[1]) / size;
    mask->stride_key = static_cast<int64_t>(source->nb[0]) / size;
    mask->n_keys = source->ne[0];
    call->args.mask = mask;
    const float max_bias = parameter(op, kMaxBias);
    if (max_bias > 0) {
        call->head_scale = slopes(call->args.n_heads, max_bias);
        mask->head_scale = call->head_scale.data();
    }
}

} // namespace

const char *describe(const ggml_tensor *op, Call *call) {
    const char *why = unsayable(op);
    if (why != nullptr)
        return why;
    flash_forward_args_t *args = &call->args;
    describe_sizes(op, args);
    describe_tensors(op, args);
    args->softmax_scale = parameter(op, kScale);
    args->softcap = parameter(op, kSoftcap);
    if (op->src[kMask] != nullptr)
        describe_mask(op, call);
    if (op->src[kSinks] != nullptr)
        args->sinks = static_cast<const float *>(op->src[kSinks]->data);
    return nullptr;
}

const char *make_call(const ggml_tensor *op, int n_threads, Call *call) {
    const char *why = describe(op, call);
    if (why != nullptr)
        return why;
    call->executor.n_workers = n_threads;
    call->executor.run = n_threads > 1 ? flash_team_run : nullptr; // whose team run() has
    call->args.executor = &call->executor;
    const bool is_served = flash_query_support(&call->args, nullptr, nullptr, 0) == FLASH_SUCCESS;
    return is_served ? nullptr : flash_last_error();
}

} // namespace flashattn_ggml
