/**
 * @file
 * flashattn.hpp - the C API of libflashattn for C++17: failures are exceptions, inputs are const,
 * types follow from pointers. Header only, on nothing but flashattn.h: everything here is inline,
 * so that the binary interface stays that of C.
 *
 *     flashattn::Forward call;
 *     call.q(q, {batch, seqlen_q, n_heads, d_head}).k(k, {...}).v(v, {...}).o(o, {...}).causal();
 *     std::vector<std::byte> workspace(call.workspace_size());
 *     call.run(workspace.data(), workspace.size());
 */
#ifndef FLASHATTN_HPP
#define FLASHATTN_HPP

#include "flashattn.h"

#ifdef FLASH_NO_INLINE
#error "flashattn.hpp needs the inline helpers of flashattn.h, which FLASH_NO_INLINE leaves out"
#endif

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace flashattn {

/** A call that failed: what() is flash_last_error(), status() the call's status. */
class Error : public std::runtime_error {
  public:
    Error(flash_status_t status, const std::string &message)
        : std::runtime_error(message), status_(status) {
    }

    flash_status_t status() const noexcept {
        return status_;
    }

  private:
    flash_status_t status_;
};

/** Throws Error unless the status is FLASH_SUCCESS. */
inline void check(flash_status_t status) {
    if (status != FLASH_SUCCESS)
        throw Error(status, flash_last_error());
}

/** A row of the kernel table. One that is default-constructed stands for the library's choice. */
class Kernel {
  public:
    Kernel() = default;
    explicit Kernel(const flash_kernel_t *kernel) : kernel_(kernel) {
    }

    /** The kernel of a short form, as in "AVX512 (BF16, any, 96, 128): causal". Throws Error. */
    static Kernel of(const std::string &short_form) {
        flash_config_t config = FLASH_CONFIG_INIT;
        check(flash_config_parse(short_form.c_str(), &config));
        return lookup(config);
    }

    /** The kernel of a configuration. Throws Error. */
    static Kernel lookup(const flash_config_t &config) {
        const flash_kernel_t *kernel = flash_lookup_kernel(&config);
        if (kernel == nullptr)
            throw Error(flash_last_status(), flash_last_error());
        return Kernel(kernel);
    }

    /** What the C API takes as the kernel; nullptr for the library's choice. */
    const flash_kernel_t *get() const noexcept {
        return kernel_;
    }

    /** flash_kernel_name(); "" for the library's choice. */
    std::string name() const {
        return kernel_ == nullptr ? "" : flash_kernel_name(kernel_);
    }

    /** The kernel's configuration. Throws Error for the library's choice, which has none. */
    flash_config_t config() const {
        flash_config_t config = FLASH_CONFIG_INIT;
        check(flash_kernel_config(kernel_, &config));
        return config;
    }

  private:
    const flash_kernel_t *kernel_ = nullptr;
};

/** The sizes of a tensor. */
struct Shape {
    std::int64_t batch = 0;
    std::int64_t seqlen = 0;
    std::int64_t n_heads = 0;
    std::int64_t d_head = 0;
};

/** The order of a tensor's axes in memory. */
enum class Layout {
    bshd, /**< [batch, seqlen, n_heads, d_head] */
    bhsd  /**< [batch, n_heads, seqlen, d_head] */
};

/** A contiguous tensor of a shape. Inputs are const: the library only reads them. */
inline flash_tensor_t tensor(const void *data, const Shape &s, Layout layout = Layout::bshd) {
    void *mutable_data = const_cast<void *>(data);
    return layout == Layout::bshd ? flash_tensor_bshd(mutable_data, s.seqlen, s.n_heads, s.d_head)
                                  : flash_tensor_bhsd(mutable_data, s.n_heads, s.seqlen, s.d_head);
}

/** What strides count of FLASH_QUANT_BLOCK columns: elements, or bytes of a quantised block. */
inline std::int64_t units_of_block(std::int32_t dtype) {
    return dtype == FLASH_DTYPE_Q8_0   ? FLASH_Q8_0_BYTES
           : dtype == FLASH_DTYPE_Q4_0 ? FLASH_Q4_0_BYTES
                                       : FLASH_QUANT_BLOCK;
}

/** Names the type of a contiguous tensor(), whose rows are quantised blocks where that has them. */
inline void set_dtype(flash_tensor_t &t, std::int32_t dtype) {
    const std::int64_t from = units_of_block(t.dtype), to = units_of_block(dtype);
    for (std::int64_t *stride : {&t.stride_batch, &t.stride_seq, &t.stride_head})
        if (from != to)
            *stride = *stride / from * to;
    t.dtype = dtype;
}

/** A table of pages, for Forward::paging() and Append::paging(): row b of it, which has row_ids
 * ids, names the pages of sequence b. pool: the shape of K and V, {n_pages, page_size, n_heads_kv,
 * d_head}. */
inline flash_paging_t page_table(const Shape &pool, const std::int32_t *ids, std::int64_t row_ids) {
    flash_paging_t paging = FLASH_PAGING_INIT;
    paging.n_pages = pool.batch;
    paging.page_size = pool.seqlen;
    paging.page_table = ids;
    paging.page_table_stride = row_ids;
    return paging;
}

/** Scales of K and V of e4m3, for Forward::scales() and Append::scales(): contiguous [batch,
 * n_heads_kv] each, with Forward::page_scales() [n_pages, n_heads_kv]; nullptr: 1.
 */
inline flash_quant_t scale_arrays(const float *k, const float *v, std::int64_t n_heads_kv) {
    flash_quant_t quant = FLASH_QUANT_INIT;
    quant.k_scale = k;
    quant.v_scale = v;
    quant.k_scale_stride_batch = k == nullptr ? 0 : n_heads_kv;
    quant.k_scale_stride_head = k == nullptr ? 0 : 1;
    quant.v_scale_stride_batch = v == nullptr ? 0 : n_heads_kv;
    quant.v_scale_stride_head = v == nullptr ? 0 : 1;
    return quant;
}

/** Scales of K, V and Q of e4m3: as above, with one for each batch entry and K/V head of Q. */
inline flash_quant_t scale_arrays(const float *q, const float *k, const float *v,
                                  std::int64_t n_heads_kv) {
    flash_quant_t quant = scale_arrays(k, v, n_heads_kv);
    quant.q_scale = q;
    quant.q_scale_stride_batch = q == nullptr ? 0 : n_heads_kv;
    quant.q_scale_stride_head = q == nullptr ? 0 : 1;
    return quant;
}

/** A flash_parallel_for_t, which must not throw, and says so. */
using ParallelFor = void (*)(void *context, std::int32_t n_tasks, flash_task_t task,
                             void *argument) noexcept;

/** An engine's own threads, for Forward::executor() and Append::executor(): run(context, n_tasks <=
 * n_workers, ...) as flash_parallel_for_t says. */
inline flash_executor_t own_threads(ParallelFor run, void *context, std::int32_t n_workers) {
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    executor.n_workers = n_workers;
    executor.run = run;
    executor.context = context;
    return executor;
}

/** Lends the library an engine's threads for all calls: flash_set_parallel_for(). run == nullptr:
 * the library's own again. Throws Error. */
inline void set_parallel_for(ParallelFor run, void *context, std::int32_t n_workers) {
    check(flash_set_parallel_for(run, context, n_workers));
}

/**
 * One call of attention. Shapes of the inputs set the sizes of the call; args() reaches everything
 * else. The memory behind the pointers is the caller's, and must outlive run().
 */
class Forward {
  public:
    explicit Forward(std::int32_t dtype = FLASH_DTYPE_FP32) {
        args_.dtype = dtype;
    }

    /** The queries. Their shape sets batch, seqlen_q, n_heads and d_head. */
    Forward &q(const void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.q = tensor(data, s, layout);
        args_.batch = s.batch;
        args_.seqlen_q = s.seqlen;
        args_.n_heads = s.n_heads;
        args_.d_head = s.d_head;
        return *this;
    }

    /** The keys. Their shape sets seqlen_k and n_heads_kv. */
    Forward &k(const void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.k = tensor(data, s, layout);
        args_.seqlen_k = s.seqlen;
        args_.n_heads_kv = s.n_heads;
        return *this;
    }

    /** The values, of the shape of the keys. Heads may have another dimension, d_head_v. */
    Forward &v(const void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.v = tensor(data, s, layout);
        args_.d_head_v = s.d_head;
        return *this;
    }

    /** The output, of the shape of the queries, with heads of the dimension of the values. */
    Forward &o(void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.o = tensor(data, s, layout);
        return *this;
    }

    /** Asks for the LSE too, contiguous [batch, n_heads, seqlen_q]. */
    Forward &lse(float *data) {
        args_.lse = data;
        return *this;
    }

    /** Masks keys after the diagonal, bottom-right aligned. */
    Forward &causal() {
        args_.flags |= static_cast<std::uint32_t>(FLASH_FLAG_CAUSAL);
        return *this;
    }

    /** Keys that a query sees to each side of the diagonal; -1: that side is unbounded. */
    Forward &window(std::int64_t left, std::int64_t right) {
        args_.flags |= static_cast<std::uint32_t>(FLASH_FLAG_WINDOW);
        args_.window_left = left;
        args_.window_right = right;
        return *this;
    }

    /** Keys of a chunk, beyond which no query sees: attention_chunk; 0: none. */
    Forward &chunk(std::int64_t keys) {
        args_.attention_chunk = keys;
        return *this;
    }

    /** Keys by which the diagonal is shifted, from which queries see keys: diagonal_offset. */
    Forward &diagonal(std::int64_t offset) {
        args_.diagonal_offset = offset;
        return *this;
    }

    /** The type of K and V, where it is not that of the call. After k() and v(), whose shapes count
     * columns, also where rows are quantised blocks. */
    Forward &kv_dtype(std::int32_t dtype) {
        return kv_dtype(dtype, dtype);
    }

    /** The types of K and of V, where they differ. */
    Forward &kv_dtype(std::int32_t k_dtype, std::int32_t v_dtype) {
        set_dtype(args_.k, k_dtype);
        set_dtype(args_.v, v_dtype);
        return *this;
    }

    /** A cache of latent tokens, which is K and V: {batch or pages, tokens, n_heads_kv,
     * FLASH_LATENT_TOKEN_BYTES}. Instead of k(), v() and kv_dtype(). */
    Forward &latent(const void *data, const Shape &s, Layout layout = Layout::bshd) {
        k(data, s, layout).v(data, s, layout).kv_dtype(FLASH_DTYPE_LATENT_E4M3);
        args_.d_head_v = 512;
        return *this;
    }

    /** Only the first keys[b] keys of sequence b exist, at most `longest` of each; [batch], in
     * memory of the device. After k(). */
    Forward &lengths(const std::int32_t *keys, std::int64_t longest) {
        args_.seqused_k = keys;
        args_.seqlen_k = longest;
        return *this;
    }

    /** The keys of sequence b begin tokens[b] behind the start of its place: leftpad_k; [batch], in
     * memory of the device. */
    Forward &leftpad(const std::int32_t *tokens) {
        args_.leftpad_k = tokens;
        return *this;
    }

    /** K and V lie in pages, and lengths() are required: page_table(), or a struct with all that
     * flash_paging_t can say. Copies of this call share it. */
    Forward &paging(const flash_paging_t &paging) {
        paging_ = std::make_shared<const flash_paging_t>(paging);
        args_.paging = paging_.get();
        return *this;
    }

    /** Ids of the page table below 0 are holes: FLASH_FLAG_PAGE_HOLES. */
    Forward &page_holes() {
        args_.flags |= static_cast<std::uint32_t>(FLASH_FLAG_PAGE_HOLES);
        return *this;
    }

    /** scales() has arrays [n_pages, n_heads_kv], of pages: FLASH_FLAG_PAGE_SCALES. */
    Forward &page_scales() {
        args_.flags |= static_cast<std::uint32_t>(FLASH_FLAG_PAGE_SCALES);
        return *this;
    }

    /** K and V of e4m3 have scales: scale_arrays(), or a struct with other strides. Copies of this
     * call share it. */
    Forward &scales(const flash_quant_t &quant) {
        quant_ = std::make_shared<const flash_quant_t>(quant);
        args_.quant = quant_.get();
        return *this;
    }

    /** Attention sinks: [n_heads], in memory of the device; nullptr: none. */
    Forward &sinks(const float *data) {
        args_.sinks = data;
        return *this;
    }

    /** Slopes of ALiBi, in memory of the device: [n_heads], or with a stride of n_heads or more
     * [batch, n_heads]; nullptr: none. */
    Forward &alibi(const float *slopes, std::int64_t stride_batch = 0) {
        args_.alibi_slopes = slopes;
        args_.alibi_stride_batch = stride_batch;
        return *this;
    }

    /** A mask or bias of any pattern. Copies of this call share the struct. */
    Forward &mask(const flash_mask_t &mask) {
        mask_ = std::make_shared<const flash_mask_t>(mask);
        args_.mask = mask_.get();
        return *this;
    }

    /** Weights are dropped, in the backward pass of this call the same ones. Copies of this call
     * share the struct. */
    Forward &dropout(const flash_dropout_t &dropout) {
        dropout_ = std::make_shared<const flash_dropout_t>(dropout);
        args_.dropout = dropout_.get();
        return *this;
    }

    /** Who runs the tasks of this call on the CPU: own_threads(), or a struct with all that
     * flash_executor_t can say. Copies of this call share it. */
    Forward &executor(const flash_executor_t &executor) {
        executor_ = std::make_shared<const flash_executor_t>(executor);
        args_.executor = executor_.get();
        return *this;
    }

    /** The multiprocessors of a CUDA device that the call may use; 0: all. */
    Forward &multiprocessors(std::int32_t number) {
        args_.n_multiprocessors = number;
        return *this;
    }

    /** FLASH_DEVICE_CPU, the default, or FLASH_DEVICE_CUDA + n. */
    Forward &device(std::int32_t number) {
        args_.device = number;
        return *this;
    }

    /** The arguments of the C API, for whatever has no method here. */
    flash_forward_args_t &args() noexcept {
        return args_;
    }
    const flash_forward_args_t &args() const noexcept {
        return args_;
    }

    /** Bytes; see flash_workspace_size(). Throws Error. */
    std::uint64_t workspace_size(const Kernel &kernel = Kernel()) const {
        std::uint64_t size = 0;
        check(flash_workspace_size(&args_, kernel.get(), &size));
        return size;
    }

    /** Does ahead of time what the first run() would do once. Throws Error. */
    void prepare(const Kernel &kernel = Kernel()) const {
        check(flash_prepare(&args_, kernel.get()));
    }

    /** The kernel that run() would take. Throws Error. */
    Kernel select() const {
        const flash_kernel_t *kernel = nullptr;
        check(flash_select_kernel(&args_, &kernel, nullptr, 0));
        return Kernel(kernel);
    }

    /** Computes, or enqueues on the stream of a CUDA device. Throws Error. */
    void run(void *workspace, std::uint64_t workspace_size, const Kernel &kernel = Kernel(),
             flash_stream_t stream = nullptr) {
        args_.workspace = workspace;
        args_.workspace_size = workspace_size;
        check(flash_forward(&args_, kernel.get(), stream));
    }

  private:
    flash_forward_args_t args_ = FLASH_FORWARD_ARGS_INIT;
    std::shared_ptr<const flash_paging_t> paging_; /* what args_ points to */
    std::shared_ptr<const flash_quant_t> quant_;
    std::shared_ptr<const flash_mask_t> mask_;
    std::shared_ptr<const flash_dropout_t> dropout_;
    std::shared_ptr<const flash_executor_t> executor_;
};

/**
 * One call for gradients of attention. The call whose gradients these are is copied; it has O and
 * LSE, as they were computed, and its workspace is not used. args() reaches everything else. The
 * memory behind the pointers is the caller's, and must outlive run().
 */
class Backward {
  public:
    explicit Backward(const Forward &forward) : forward_(std::make_shared<Forward>(forward)) {
        args_.forward = &forward_->args();
    }

    /** The gradient of O, of its shape. */
    Backward &d_o(const void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.d_o = tensor(data, s, layout);
        return *this;
    }

    /** The gradient of LSE, with its strides; nullptr: none. */
    Backward &d_lse(const float *data) {
        args_.d_lse = data;
        return *this;
    }

    /** Asks for the gradient of the queries, of their shape. Here and below dtype is
     * FLASH_DTYPE_FP32, or 0 for the type of the tensor. */
    Backward &dq(void *data, const Shape &s, Layout layout = Layout::bshd, std::int32_t dtype = 0) {
        args_.dq = tensor(data, s, layout);
        args_.dq.dtype = dtype;
        return *this;
    }

    /** Asks for the gradient of the keys. */
    Backward &dk(void *data, const Shape &s, Layout layout = Layout::bshd, std::int32_t dtype = 0) {
        args_.dk = tensor(data, s, layout);
        args_.dk.dtype = dtype;
        return *this;
    }

    /** Asks for the gradient of the values. */
    Backward &dv(void *data, const Shape &s, Layout layout = Layout::bshd, std::int32_t dtype = 0) {
        args_.dv = tensor(data, s, layout);
        args_.dv.dtype = dtype;
        return *this;
    }

    /** Asks for the gradient of the sinks, [n_heads]. */
    Backward &d_sinks(float *data) {
        args_.d_sinks = data;
        return *this;
    }

    /** Adds to what the gradients of Q, K and V hold, which are of fp32. */
    Backward &add() {
        args_.flags |= static_cast<std::uint32_t>(FLASH_BACKWARD_ADD_DQ | FLASH_BACKWARD_ADD_DK |
                                                  FLASH_BACKWARD_ADD_DV);
        return *this;
    }

    /** The kernels of dQ, and of dK and dV, instead of the library's choice. */
    Backward &kernels(const Kernel &of_dq, const Kernel &of_dkv) {
        args_.dq_kernel = of_dq.get();
        args_.dkv_kernel = of_dkv.get();
        return *this;
    }

    /** The arguments of the C API, for whatever has no method here. */
    flash_backward_args_t &args() noexcept {
        return args_;
    }
    const flash_backward_args_t &args() const noexcept {
        return args_;
    }

    /** Bytes with which the call is fastest; see flash_backward_workspace_size(). Throws Error. */
    std::uint64_t workspace_size() const {
        std::uint64_t best = 0;
        check(flash_backward_workspace_size(&args_, nullptr, &best));
        return best;
    }

    /** Bytes without which the call is refused. Throws Error. */
    std::uint64_t least_workspace_size() const {
        std::uint64_t least = 0;
        check(flash_backward_workspace_size(&args_, &least, nullptr));
        return least;
    }

    /** Does ahead of time what the first run() would do once. Throws Error. */
    void prepare() const {
        check(flash_backward_prepare(&args_));
    }

    /** The kernels that run() would take: of dQ, and of dK and dV. Throws Error. */
    std::pair<Kernel, Kernel> select() const {
        const flash_kernel_t *of_dq = nullptr, *of_dkv = nullptr;
        check(flash_backward_select_kernels(&args_, &of_dq, &of_dkv, nullptr, 0));
        return {Kernel(of_dq), Kernel(of_dkv)};
    }

    /** Computes the gradients that are asked for. Throws Error. */
    void run(void *workspace, std::uint64_t workspace_size, flash_stream_t stream = nullptr) {
        args_.workspace = workspace;
        args_.workspace_size = workspace_size;
        check(flash_backward(&args_, stream));
    }

  private:
    std::shared_ptr<const Forward> forward_; /* what args_ points to */
    flash_backward_args_t args_ = FLASH_BACKWARD_ARGS_INIT;
};

/** Rotary embedding by contiguous tables [n_positions, rotary_dim / 2] of the call's type, for
 * Append::rotary(). */
inline flash_rotary_t rotary_tables(const void *cos, const void *sin, std::int64_t n_positions,
                                    std::int64_t rotary_dim) {
    flash_rotary_t rotary = FLASH_ROTARY_INIT;
    rotary.cos = cos;
    rotary.sin = sin;
    rotary.stride_position = rotary_dim / 2;
    rotary.n_positions = n_positions;
    rotary.rotary_dim = rotary_dim;
    return rotary;
}

/**
 * One call that appends to a cache of K and V. The shape of the new tokens sets the sizes of the
 * call; args() reaches everything else. The memory behind the pointers is the caller's, and must
 * outlive run().
 */
class Append {
  public:
    explicit Append(std::int32_t dtype = FLASH_DTYPE_FP32) {
        args_.dtype = dtype;
    }

    /** The new keys. Their shape sets batch, seqlen_new, n_heads_kv and d_head. */
    Append &k_new(const void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.k_new = tensor(data, s, layout);
        args_.batch = s.batch;
        args_.seqlen_new = s.seqlen;
        args_.n_heads_kv = s.n_heads;
        args_.d_head = s.d_head;
        return *this;
    }

    /** The new values, of the shape of the new keys. Heads may have another dimension, d_head_v. */
    Append &v_new(const void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.v_new = tensor(data, s, layout);
        args_.d_head_v = s.d_head;
        return *this;
    }

    /** The keys of the cache, which are written. Their shape sets seqlen_k, except in pages. */
    Append &k(void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.k = tensor(data, s, layout);
        args_.seqlen_k = args_.paging == nullptr ? s.seqlen : 0;
        return *this;
    }

    /** The values of the cache, which are written, of the shape of its keys, with heads as wide as
     * those of the new values. */
    Append &v(void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.v = tensor(data, s, layout);
        return *this;
    }

    /** The type of the cache, where it is not that of the call. After k() and v(), whose shapes
     * count columns, also where rows are quantised blocks. */
    Append &cache_dtype(std::int32_t dtype) {
        return cache_dtype(dtype, dtype);
    }

    /** The types of the cache's keys and values, where they differ. */
    Append &cache_dtype(std::int32_t k_dtype, std::int32_t v_dtype) {
        set_dtype(args_.k, k_dtype);
        set_dtype(args_.v, v_dtype);
        return *this;
    }

    /** Queries to turn, into `out`, which may be `data` itself. Their shape sets seqlen_q and
     * n_heads. */
    Append &q(const void *data, void *out, const Shape &s, Layout layout = Layout::bshd) {
        args_.q = tensor(data, s, layout);
        args_.q_out = tensor(out, s, layout);
        args_.seqlen_q = s.seqlen;
        args_.n_heads = s.n_heads;
        return *this;
    }

    /** Keys that each sequence has so far, [batch], in memory of the device. `after`, if it is not
     * nullptr, receives those that it has then. */
    Append &lengths(const std::int32_t *keys, std::int32_t *after = nullptr) {
        args_.seqused_k = keys;
        args_.seqused_k_out = after;
        return *this;
    }

    /** The place of each new token, instead of lengths(), in memory of the device: page * page_size
     * + place in the page; negative: none. pool: the shape of K and V of the cache. */
    Append &slots(const std::int64_t *slot_mapping, const Shape &pool) {
        flash_paging_t paging = FLASH_PAGING_INIT;
        paging.n_pages = pool.batch;
        paging.page_size = pool.seqlen;
        args_.slot_mapping = slot_mapping;
        return this->paging(paging);
    }

    /** The cache is in pages: page_table(), or a struct with all that flash_paging_t can say.
     * Copies of this call share it. */
    Append &paging(const flash_paging_t &paging) {
        paging_ = std::make_shared<const flash_paging_t>(paging);
        args_.paging = paging_.get();
        args_.seqlen_k = 0; // sequences have room for what their pages hold
        return *this;
    }

    /** The new keys, and Q, turn: rotary_tables(), or a struct with all that flash_rotary_t can
     * say. Copies of this call share it. */
    Append &rotary(const flash_rotary_t &rotary) {
        rotary_ = std::make_shared<const flash_rotary_t>(rotary);
        args_.rotary = rotary_.get();
        return *this;
    }

    /** A cache of e4m3 has scales: scale_arrays(), or a struct with other strides. Copies of this
     * call share it. */
    Append &scales(const flash_quant_t &quant) {
        quant_ = std::make_shared<const flash_quant_t>(quant);
        args_.quant = quant_.get();
        return *this;
    }

    /** scales() has arrays [n_pages, n_heads_kv], of pages: FLASH_FLAG_PAGE_SCALES. */
    Append &page_scales() {
        args_.flags |= static_cast<std::uint32_t>(FLASH_FLAG_PAGE_SCALES);
        return *this;
    }

    /** Who runs the tasks of this call on the CPU, as in Forward. */
    Append &executor(const flash_executor_t &executor) {
        executor_ = std::make_shared<const flash_executor_t>(executor);
        args_.executor = executor_.get();
        return *this;
    }

    /** FLASH_DEVICE_CPU, the default, or FLASH_DEVICE_CUDA + n. */
    Append &device(std::int32_t number) {
        args_.device = number;
        return *this;
    }

    /** The arguments of the C API, for whatever has no method here. */
    flash_kv_append_args_t &args() noexcept {
        return args_;
    }
    const flash_kv_append_args_t &args() const noexcept {
        return args_;
    }

    /** Appends, or enqueues on the stream of a CUDA device. Throws Error. */
    void run(flash_stream_t stream = nullptr) const {
        check(flash_kv_append(&args_, stream));
    }

  private:
    flash_kv_append_args_t args_ = FLASH_KV_APPEND_ARGS_INIT;
    std::shared_ptr<const flash_paging_t> paging_; /* what args_ points to */
    std::shared_ptr<const flash_rotary_t> rotary_;
    std::shared_ptr<const flash_quant_t> quant_;
    std::shared_ptr<const flash_executor_t> executor_;
};

/**
 * One call that quantises Q, K or V to e4m3. The shape of x sets the sizes of the call; args()
 * reaches everything else. The memory behind the pointers is the caller's, and must outlive run().
 */
class Quantise {
  public:
    /** What is quantised, of fp16, bf16 or fp32: dtype. Its shape sets batch, seqlen, n_heads and
     * d_head. */
    Quantise &x(const void *data, std::int32_t dtype, const Shape &s,
                Layout layout = Layout::bshd) {
        args_.x = tensor(data, s, layout);
        args_.x.dtype = dtype;
        args_.batch = s.batch;
        args_.seqlen = s.seqlen;
        args_.n_heads = s.n_heads;
        args_.d_head = s.d_head;
        return *this;
    }

    /** The codes, which are written, of the shape of x. */
    Quantise &codes(void *data, const Shape &s, Layout layout = Layout::bshd) {
        args_.codes = tensor(data, s, layout);
        return *this;
    }

    /** The scales, which are written: [batch, n_scales]; n_scales 0: one for each head. */
    Quantise &scale(float *data, std::int64_t n_scales = 0) {
        args_.scale = data;
        args_.n_scales = n_scales;
        args_.flags &= ~static_cast<std::uint32_t>(FLASH_QUANTISE_TOKENS);
        return *this;
    }

    /** Scales of each token and head instead, which are written: [batch, seqlen, n_heads]. */
    Quantise &token_scale(float *data) {
        scale(data);
        args_.flags |= static_cast<std::uint32_t>(FLASH_QUANTISE_TOKENS);
        return *this;
    }

    /** Takes the mean of each column off first; the means are written: [batch, n_heads, d_head]. */
    Quantise &minus_mean(float *data) {
        args_.mean = data;
        args_.flags |= static_cast<std::uint32_t>(FLASH_QUANTISE_MINUS_MEAN);
        return *this;
    }

    /** Turns the columns of each head by a Hadamard matrix. */
    Quantise &hadamard() {
        args_.flags |= static_cast<std::uint32_t>(FLASH_QUANTISE_HADAMARD);
        return *this;
    }

    /** The batch is ragged: x() and codes() have all tokens as those of one sequence. cu_seqlens
     * [batch + 1] is in memory of the device; no sequence is longer than seqlen. After x(). */
    Quantise &ragged(const std::int32_t *cu_seqlens, std::int64_t batch, std::int64_t seqlen) {
        args_.cu_seqlens = cu_seqlens;
        args_.batch = batch;
        args_.seqlen = seqlen;
        return *this;
    }

    /** Who runs the tasks of this call on the CPU, as in Forward. */
    Quantise &executor(const flash_executor_t &executor) {
        executor_ = std::make_shared<const flash_executor_t>(executor);
        args_.executor = executor_.get();
        return *this;
    }

    /** FLASH_DEVICE_CPU, the default, or FLASH_DEVICE_CUDA + n. */
    Quantise &device(std::int32_t number) {
        args_.device = number;
        return *this;
    }

    /** The arguments of the C API, for whatever has no method here. */
    flash_quantise_args_t &args() noexcept {
        return args_;
    }
    const flash_quantise_args_t &args() const noexcept {
        return args_;
    }

    /** Quantises, or enqueues on the stream of a CUDA device. Throws Error. */
    void run(flash_stream_t stream = nullptr) const {
        check(flash_quantise(&args_, stream));
    }

  private:
    flash_quantise_args_t args_ = FLASH_QUANTISE_ARGS_INIT;
    std::shared_ptr<const flash_executor_t> executor_; /* what args_ points to */
};

} // namespace flashattn

#endif
