/**
 * @file
 * flashattn.h - the public C API of libflashattn.
 *
 * O = softmax(softmax_scale * Q K^T, masked) V, exactly, without the matrix of scores in memory
 * (FlashAttention: Dao et al., arXiv 2205.14135; FlashAttention-2: Dao, arXiv 2307.08691).
 *
 * The header is the manual. It needs only <stddef.h> and <stdint.h> and compiles alone as C89 and
 * newer and as C++98 and newer.
 *
 * A call in five lines (every status unchecked here for brevity; check it in real code):
 *
 *     flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
 *     ... fill sizes, tensors, dtype ...
 *     flash_workspace_size(&args, NULL, &args.workspace_size);
 *     args.workspace = malloc(args.workspace_size);
 *     flash_forward(&args, NULL, NULL);
 *
 * Conventions
 *   Layout     Q is [batch, seqlen_q, n_heads, d_head] and K [batch, seqlen_k, n_heads_kv, d_head];
 *              V and O have the shapes of K and Q, with heads of d_head_v elements, which is d_head
 *              unless a call says otherwise. The innermost axis is contiguous, the other three have
 *              strides of their own, in elements. A ragged batch (cu_seqlens_*) has no batch axis:
 *              [total tokens, heads, d_head].
 *   Zero       In every struct that you fill, zero means "absent" or "default". Strides and sizes
 *              have no default: a batch or a length of 0 is empty, and a stride of 0 on an axis
 *              longer than 1 is refused unless FLASH_FLAG_BROADCAST says that it is meant. Only
 *              where its own comment gives it a meaning (LSE, masks, slopes, scales) does 0 need
 *              no flag. Where zero is a value like any other, a flag says that the field counts.
 *   Sizes      Batches, lengths, heads, head dimensions, pages and partial results are at most
 *              2^31 - 1, and larger ones are refused. Strides have 64 bits.
 *   Growth     Structs begin with struct_size and only ever grow at their end. Initialise them
 *              with their ..._INIT macro. A smaller struct_size (an older header) reads as zeros
 *              where fields are missing; a larger one (a newer header) is accepted when all that
 *              this library does not know is zero, and refused with FLASH_ERROR_UNSUPPORTED
 *              otherwise. Structs that the library fills are written as far as they fit the
 *              caller's struct_size: newer facts are left out. Only a flash_config_t is refused
 *              with FLASH_ERROR_UNSUPPORTED when a non-zero field would not fit, because without
 *              it it would be the configuration of another kernel.
 *   Errors     Every function that can fail returns a flash_status_t (or NULL) and leaves a
 *              message with the failed condition and the values in flash_last_error(). Nothing
 *              aborts, exits or prints (FLASHATTN_TRACE excepted). A refused call writes no output.
 *   Threads    Any function may be called from any thread at any time. The thread count and the
 *              parallel-for hook may change at any time: calls already running keep theirs.
 *              A thread that is cancelled (pthread_cancel()) inside a call ends when the call is
 *              complete.
 *   Memory     The library keeps no pointer of yours after a call on the CPU device returns, and
 *              allocates nothing in flash_forward() after flash_prepare(); its working memory is
 *              the workspace that you pass, all workspace_size bytes of it. What a call writes, the
 *              workspace too, must not overlap what else it reads or writes, but where a comment
 *              below allows it. An overlap is refused where the first row of one array shares a
 *              byte with the other, as far as the host knows where they lie.
 *   Results    The same call gives the same bits from the same version of the library on the same
 *              model of processor or GPU, whatever the number of threads and whatever
 *              floating-point modes (rounding, denormals, traps) the caller has set; a call
 *              leaves these, and the exception flags, as they were. Another version or model may
 *              take another kernel, and round differently.
 *   Stability  What is marked "experimental" keeps its place: programs that use it still load, and
 *              members, enumerators and functions stay. But a later minor version may change what
 *              it means, or refuse it with FLASH_ERROR_UNSUPPORTED. Everything else stays as it is
 *              from version 1.0 on (docs/abi.md).
 *   Callbacks  A function that you pass must return: no C++ exception, no longjmp() out of it.
 *
 * Environment (each read once, at the first call that needs it)
 *   FLASHATTN_NUM_THREADS  number of CPU threads, 1 ... 4096; default: the processors that this
 *                          process may run on, or the CPU quota of its control group (a
 *                          container's) where that is less. flash_set_num_threads() overrides it.
 *   FLASHATTN_CPU_ISA      highest CPU family that selection and look-up may use: reference, avx2,
 *                          avx512, avx512_bf16, amx, neon, neon_bf16, in any letter case. Default:
 *                          whatever the processor has, and avx512_bf16 only where its products are
 *                          fast.
 *   FLASHATTN_CONFIG       the kernel to use wherever a call names none, by its short form (see
 *                          flash_config_format()); a problem that it cannot serve is refused.
 *   FLASHATTN_TUNING       a regular file of measured results that selection on CUDA devices
 *                          follows (see flash_set_tuning()). "none": it follows no results, not
 *                          even those that are built into the library.
 *   FLASHATTN_TRACE        1: print each distinct choice of a kernel once, to standard error.
 *   A value that cannot be understood is refused by every call that needs it, and so is one under a
 *   name of before version 0.2, which began with FLASH_.
 */
#ifndef FLASHATTN_H
#define FLASHATTN_H

#if defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ != 8
#error "libflashattn needs pointers of 64 bits"
#endif

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLASH_VERSION_MAJOR 0
#define FLASH_VERSION_MINOR 2
#define FLASH_VERSION_PATCH 0
/** The version as one number that grows: 10000 * major + 100 * minor + patch. */
#define FLASH_VERSION_NUMBER                                                                       \
    (FLASH_VERSION_MAJOR * 10000 + FLASH_VERSION_MINOR * 100 + FLASH_VERSION_PATCH)
/** The version of the binary interface, which is the soname's number. 0, before version 1.0: each
 * minor version may change it. From 1 on it changes only when programs that are already built could
 * break. docs/abi.md says what is promised. */
#define FLASH_ABI_VERSION 0

/* For the ..._INIT macros and the helpers below, in the words of each language. Who parses this
 * header to bind it to another one defines FLASH_NO_INLINE, which leaves out the helpers that have
 * a body. */
#if defined(__cplusplus)
#define FLASH_SIZEOF_(type) static_cast<uint32_t>(sizeof(type))
#else
#define FLASH_SIZEOF_(type) ((uint32_t)sizeof(type))
#endif
#if defined(__cplusplus) && __cplusplus >= 201103L
#define FLASH_NULL_ nullptr
#elif defined(__cplusplus) && defined(__GNUC__)
#define FLASH_NULL_ __null
#else
#define FLASH_NULL_ 0
#endif
#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 199901L)
#define FLASH_INLINE_ static inline
#elif defined(__GNUC__)
#define FLASH_INLINE_ static __inline__
#else
#define FLASH_INLINE_ static
#endif

#if defined(__GNUC__)
#define FLASH_API __attribute__((visibility("default")))
#else
#define FLASH_API
#endif

/* ---------------------------------------------------------------------------------------------
 * Status
 * ------------------------------------------------------------------------------------------- */

/** Result of a call: one of the FLASH_... values below; 0 is success. Values never change. */
typedef int32_t flash_status_t;

/** A call results in one of these; the first digit says what kind of failure it is. */
enum flash_status {
    FLASH_SUCCESS = 0,

    /* The caller's mistake: the call can never succeed as it is. */
    FLASH_ERROR_INVALID_ARGUMENT = 100,
    FLASH_ERROR_INVALID_CONFIG = 101,      /**< a configuration that breaks a rule of its family */
    FLASH_ERROR_WORKSPACE_TOO_SMALL = 102, /**< see flash_workspace_size() */
    FLASH_ERROR_BUFFER_TOO_SMALL = 103,    /**< a text does not fit its buffer */

    /* The call is sound, but this library, build or machine cannot serve it. */
    FLASH_ERROR_UNSUPPORTED = 200,
    FLASH_ERROR_NOT_BUILT = 201, /**< a legal configuration without a kernel in this library */

    /* The machine failed, or lacks something. */
    FLASH_ERROR_OUT_OF_MEMORY = 300,
    FLASH_ERROR_NO_DEVICE = 301,
    FLASH_ERROR_CUDA = 302, /**< a CUDA call failed; the message has its name and CUDA's words */

    /* A defect of this library; please report it. */
    FLASH_ERROR_INTERNAL = 900
};

/** Name of a status, as in "FLASH_ERROR_UNSUPPORTED", in static storage; never NULL. */
FLASH_API const char *flash_status_string(flash_status_t status);

/**
 * Message of the calling thread's last failed call, "" when there was none. It names the failed
 * condition and the values. Valid until the thread's next call of this library; never NULL.
 * Successful calls leave it as it is.
 */
FLASH_API const char *flash_last_error(void);

/** Status of the calling thread's last failed call, FLASH_SUCCESS when there was none: for calls
 * that return NULL. Successful calls leave it as it is. */
FLASH_API flash_status_t flash_last_status(void);

/** Version of the loaded library, as in "0.2.0". Static storage. */
FLASH_API const char *flash_version(void);

/** FLASH_VERSION_NUMBER of the loaded library. */
FLASH_API int32_t flash_version_number(void);

/** FLASH_ABI_VERSION of the loaded library. Who opens it by dlopen() compares this with the
 * header's, and, while it is 0, flash_version_number() / 100 too: the dynamic linker does it for
 * everybody else. */
FLASH_API int32_t flash_abi_version(void);

/* ---------------------------------------------------------------------------------------------
 * Kernel configurations and the kernel table
 * ------------------------------------------------------------------------------------------- */

/** Element types; their values never change. */
enum flash_dtype {
    FLASH_DTYPE_FP16 = 1,        /**< IEEE 754 binary16 */
    FLASH_DTYPE_BF16 = 2,        /**< bfloat16: the upper half of a binary32 */
    FLASH_DTYPE_FP32 = 3,        /**< IEEE 754 binary32 */
    FLASH_DTYPE_E4M3 = 4,        /**< 8 bits, only of K and V, and of Q beside these: see
                                    flash_quant_t */
    FLASH_DTYPE_LATENT_E4M3 = 5, /**< experimental: bytes of latent tokens, only of K and V; see
                                    FLASH_LATENT_TOKEN_BYTES */
    FLASH_DTYPE_Q8_0 = 6, /**< ggml's blocks of 8 bits, only of K and V; see FLASH_QUANT_BLOCK */
    FLASH_DTYPE_Q4_0 = 7  /**< ggml's blocks of 4 bits, only of K and V; see FLASH_QUANT_BLOCK */
};

/**
 * Experimental. The bytes of a token of FLASH_DTYPE_LATENT_E4M3, as engines keep the cache of
 * DeepSeek-V3.2 (vLLM calls it fp8_ds_mla). It is K and V of multi-head latent attention at once,
 * with scales of its own:
 *
 *     byte   0 ... 511   columns   0 ... 511: elements of e4m3
 *     byte 512 ... 527   four scales, fp32; scale g belongs to columns 128 g ... 128 g + 127
 *     byte 528 ... 655   columns 512 ... 575: bf16, without a scale (the rotary embedding)
 *
 * A column of e4m3 has the value scale * element. K has all columns, so that d_head is 576, and V
 * the first 512, d_head_v. v is k: the same data, strides and pages. An element of the tensor is a
 * byte, so that strides are in bytes; no token is closer than this to the next. The scales may be
 * of any value, are not looked at before the call computes, and a flash_quant_t has none beside
 * them.
 */
#define FLASH_LATENT_TOKEN_BYTES 656

/**
 * The columns of a quantised block of FLASH_DTYPE_Q8_0 and FLASH_DTYPE_Q4_0, as ggml and llama.cpp
 * have them (block_q8_0, block_q4_0). A row of K or V is d_head / 32 blocks, each of which has a
 * scale of its own:
 *
 *     Q8_0   | scale, fp16 | 32 signed bytes |      element i has the value scale * byte i
 *     Q4_0   | scale, fp16 | 16 bytes        |      elements i and i + 16 have the values
 *                                                   scale * (low four bits of byte i - 8) and
 *                                                   scale * (high four bits of byte i - 8)
 *
 * The head dimension of such a K or V is a multiple of 32. An element of the tensor is a byte, so
 * that strides are in bytes; no row is closer than its d_head / 32 blocks to the next, and rows may
 * lie at any address.
 */
#define FLASH_QUANT_BLOCK 32
/** The bytes of a quantised block of FLASH_DTYPE_Q8_0. */
#define FLASH_Q8_0_BYTES 34
/** The bytes of a quantised block of FLASH_DTYPE_Q4_0. */
#define FLASH_Q4_0_BYTES 18

/** Kernel families: each is the code for one kind of processor. Their values never change. */
enum flash_arch {
    FLASH_ARCH_REFERENCE = 1,    /**< any CPU: scalar, every feature */
    FLASH_ARCH_AVX2 = 2,         /**< x86-64 with AVX2, FMA and F16C */
    FLASH_ARCH_AVX512 = 3,       /**< x86-64 with AVX-512 F, BW, DQ and VL */
    FLASH_ARCH_AMX = 4,          /**< x86-64 with AMX-BF16 and AVX512_BF16; fp16 and bf16 */
    FLASH_ARCH_NEON = 5,         /**< aarch64 */
    FLASH_ARCH_AVX512_BF16 = 6,  /**< x86-64 with AVX-512 as above and AVX512_BF16; bf16 */
    FLASH_ARCH_NEON_BF16 = 7,    /**< aarch64 with FEAT_BF16; bf16 */
    FLASH_ARCH_SM80 = 80,        /**< CUDA, compute capability 8.0 and newer (mma.sync) */
    FLASH_ARCH_SM80_DECODE = 81, /**< as SM80, for few queries over many keys */
    FLASH_ARCH_SM80_MLA = 82,    /**< as SM80, where V is the first columns of K */
    FLASH_ARCH_SM80_WIDE = 83,   /**< as SM80, for heads of 257 to 512 columns */
    FLASH_ARCH_SM90 = 90,        /**< CUDA, compute capability 9.0 (wgmma, TMA) */
    FLASH_ARCH_SM90_DECODE = 91, /**< as SM90, for too few queries to fill the device */
    FLASH_ARCH_SM90_MLA = 92,    /**< as SM90_DECODE, where V is the first columns of K */
    FLASH_ARCH_SM90_WIDE = 93,   /**< as SM90, for heads of 257 to 512 columns */
    FLASH_ARCH_MIXED = 100       /**< CUDA, kernels of two families above in one call: for ragged
                                    batches of sequences with few queries and with many */
};

/** These numbers say what a kernel computes. They never change. */
enum flash_op {
    FLASH_OP_FORWARD = 0,     /**< O, and LSE where it is wanted */
    FLASH_OP_BACKWARD_DQ = 1, /**< the gradient of Q; queries stay, keys pass by */
    FLASH_OP_BACKWARD_DKV = 2 /**< the gradients of K and V; keys stay, queries pass by */
};

/** These bits say what a kernel serves beyond full attention over equal lengths. */
enum flash_feature {
    FLASH_FEATURE_CAUSAL = 1,
    FLASH_FEATURE_WINDOW = 2, /**< FLASH_FLAG_WINDOW, attention_chunk */
    FLASH_FEATURE_SOFTCAP = 4,
    FLASH_FEATURE_VARLEN = 8,  /**< cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k */
    FLASH_FEATURE_PAGED = 16,  /**< flash_paging_t */
    FLASH_FEATURE_BIAS = 32,   /**< alibi_slopes, flash_mask_t */
    FLASH_FEATURE_DROPOUT = 64 /**< flash_dropout_t */
};

/**
 * The key of the kernel table: one configuration, one kernel. Fields that mean nothing to a
 * family are zero there. docs/configurations.md has the rules of each family, the types of Q and O
 * that its rows take by dtype and operand_dtype, the named sets and the short form. The members are
 * in sort order.
 *
 * Which kernels a library holds belongs to its version: a later one may lack a row that an earlier
 * one had, and look-up then says NOT_BUILT. The tactics from n_stages to fixed_reference are
 * experimental. A program that names kernels must do without them.
 */
typedef struct flash_config {
    uint32_t struct_size;      /**< sizeof(flash_config_t) */
    int32_t arch;              /**< FLASH_ARCH_... */
    int32_t op;                /**< FLASH_OP_... */
    int32_t dtype;             /**< FLASH_DTYPE_... of K and V in memory */
    int32_t d_head;            /**< head dimension of Q and K; CPU families: 0 = any */
    int32_t B_r;               /**< rows of Q that a block (CPU: a task) handles */
    int32_t B_c;               /**< rows of K and V that a step handles */
    int32_t n_warps;           /**< warps per block */
    int32_t async_copy;        /**< 1: global to shared memory by cp.async; 0: through registers */
    int32_t eager_load_blocks; /**< 1: load K and V as soon as their buffer is free */
    int32_t swizzled;          /**< 1: XOR-swizzled shared memory */
    int32_t Q_mma_load_K_fragments; /**< fragments of 8 columns held in registers; 0: all */
    int32_t K_mma_load_K_fragments;
    int32_t V_mma_load_K_fragments;  /**< the same, of 8 keys each */
    int32_t mma_double_buffer_loads; /**< 1: the next fragments load while these multiply */
    int32_t optimized_softmax; /**< 1: own code for the first K/V block, fewer fp32 operations */
    int32_t features;          /**< FLASH_FEATURE_... bits */
    int32_t n_stages;          /**< blocks of K, and as many of V, in shared memory at a time */
    int32_t overlap;           /**< 1: the softmax of a block overlaps P V of the one before it */
    int32_t ping_pong;         /**< 1: warpgroups take turns on the tensor cores */
    int32_t persistent;        /**< 1: a block per multiprocessor takes tile after tile */
    int32_t longest_first;   /**< 1: tiles that see most keys first, heads in groups that fit L2 */
    int32_t fixed_reference; /**< 1: the first blocks' maximum stays the softmax's reference; a tile
                                whose scores outgrow it is redone with a running maximum */
    int32_t d_head_v;        /**< head dimension of V and O; 0: as d_head. Never d_head itself */
    int32_t operand_dtype;   /**< FLASH_DTYPE_... that products are computed in, of elements that
                                are not converted; 0: the family's usual type for dtype, in which
                                E4M3 is converted */
} flash_config_t;

#define FLASH_CONFIG_INIT                                                                          \
    {                                                                                              \
        FLASH_SIZEOF_(flash_config_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
            0, 0, 0, 0                                                                             \
    }

/** A buffer of this size holds the short form of every configuration. */
#define FLASH_CONFIG_TEXT_SIZE 256

/**
 * Writes the short form of *config, NUL-terminated, into text[0 ... size). Examples:
 *   "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax"
 *   "SM90 (BF16, 128, 128, 128, 12): stages_3+overlap+ping_pong+persistent+fixed_reference"
 *   "AVX512 (BF16, any, 96, 128): causal+window+softcap+varlen+paged+bias"
 * The tuple is (dtype, d_head, B_r, B_c, n_warps); CPU families have no n_warps. d_head is written
 * as "192/128" where d_head_v, 128, is not 0, and dtype as "E4M3/E4M3" where operand_dtype is not.
 * Any configuration of known enumerators has a short form, legal or not.
 * Errors: INVALID_ARGUMENT (NULL, unknown arch, types or feature bits, a field that the family has
 * no place for), BUFFER_TOO_SMALL. text is untouched then.
 */
FLASH_API flash_status_t flash_config_format(const flash_config_t *config, char *text, size_t size);

/**
 * Reads a short form; parse(format(c)) == c. Blanks do not matter, nor does the order of the words
 * after the colon.
 * Set config->struct_size before (FLASH_CONFIG_INIT). Errors: INVALID_ARGUMENT, with the place in
 * the text; *config is untouched then.
 */
FLASH_API flash_status_t flash_config_parse(const char *text, flash_config_t *config);

/** An entry of the kernel table: a configuration and its compiled kernel. Static storage. */
typedef struct flash_kernel flash_kernel_t;

/**
 * The kernel of a configuration, or NULL: flash_last_status() and flash_last_error() then say which
 * field breaks a rule of the family (INVALID_CONFIG), that the kernel is legal but not in this
 * library (NOT_BUILT), or what the machine lacks to run it (UNSUPPORTED, NO_DEVICE). A kernel that
 * is returned runs on this machine. Binary search; no lock, no allocation.
 */
FLASH_API const flash_kernel_t *flash_lookup_kernel(const flash_config_t *config);

/** Number of kernels in the table, whether this machine can run them or not. */
FLASH_API int32_t flash_kernel_count(void);

/** The kernel at index 0 ... flash_kernel_count() - 1, in ascending order of its configuration;
 * NULL when the index is out of range. */
FLASH_API const flash_kernel_t *flash_kernel_at(int32_t index);

/** Fills *config (set its struct_size before) with the configuration of a kernel. Errors:
 * INVALID_ARGUMENT (NULL), UNSUPPORTED (a non-zero field beyond config->struct_size). */
FLASH_API flash_status_t flash_kernel_config(const flash_kernel_t *kernel, flash_config_t *config);

/** Name of a kernel, in the form of a C symbol, as in
 * "flash_fwd_avx512_bf16_dany_96x128_causal_window_softcap_varlen_paged_bias";
 * NULL for a NULL kernel. Static storage. */
FLASH_API const char *flash_kernel_name(const flash_kernel_t *kernel);

/** This is what a compiled kernel of a CUDA family uses on a device. */
typedef struct flash_kernel_resources {
    uint32_t struct_size;              /**< sizeof(flash_kernel_resources_t) */
    int32_t threads;                   /**< per block */
    int32_t registers;                 /**< per thread */
    int32_t local_memory;              /**< bytes per thread: spilled registers and stack */
    int32_t shared_memory;             /**< bytes per block */
    int32_t blocks_per_multiprocessor; /**< blocks that it runs at the same time */
} flash_kernel_resources_t;

#define FLASH_KERNEL_RESOURCES_INIT                                                                \
    { FLASH_SIZEOF_(flash_kernel_resources_t), 0, 0, 0, 0, 0 }

/**
 * Fills *resources (set its struct_size before) with what the kernel uses on the CUDA device
 * FLASH_DEVICE_CUDA_CURRENT or FLASH_DEVICE_CUDA + n; loads the kernel there. Errors:
 * INVALID_ARGUMENT (NULL), UNSUPPORTED (a kernel of a CPU family or of FLASH_ARCH_MIXED, which has
 * none of these, or one that cannot run on the device), NO_DEVICE, CUDA.
 */
FLASH_API flash_status_t flash_kernel_resources(const flash_kernel_t *kernel, int32_t device,
                                                flash_kernel_resources_t *resources);

/* ---------------------------------------------------------------------------------------------
 * Devices and threads
 * ------------------------------------------------------------------------------------------- */

/**
 * A device is where the data lies and the kernel runs; the library never takes another one instead.
 * The kind of device is in the upper 16 bits, the number of the device in the lower ones: CUDA
 * device n is FLASH_DEVICE_CUDA + n. The last number of a kind stands for the device that is
 * current in the calling thread.
 */
enum flash_device {
    FLASH_DEVICE_CPU = 0,
    FLASH_DEVICE_CUDA = 0x10000,
    FLASH_DEVICE_CUDA_CURRENT = 0x1ffff
};

/** Instruction sets of a CPU that kernel families use, as bits. */
enum flash_isa {
    FLASH_ISA_AVX2 = 1,         /**< AVX2, FMA, F16C */
    FLASH_ISA_AVX512 = 2,       /**< AVX-512 F, BW, DQ, VL */
    FLASH_ISA_AMX = 4,          /**< AMX-TILE, AMX-BF16, AVX512_BF16, and the system's permission */
    FLASH_ISA_NEON = 8,         /**< Advanced SIMD of AArch64 */
    FLASH_ISA_AVX512_BF16 = 16, /**< AVX-512 as above, AVX512_BF16 */
    FLASH_ISA_NEON_BF16 = 32    /**< Advanced SIMD, FEAT_BF16 */
};

/** This is what the library found out about a device. */
typedef struct flash_device_info {
    uint32_t struct_size;       /**< sizeof(flash_device_info_t) */
    int32_t device;             /**< its own number, never FLASH_DEVICE_CUDA_CURRENT */
    char name[64];              /**< the processor's own name, NUL-terminated */
    uint32_t isa;               /**< FLASH_ISA_... that the processor and the system have, less what
                                   FLASHATTN_CPU_ISA hides */
    int32_t n_threads;          /**< CPU: threads that a call uses at most, the caller's included */
    int32_t compute_capability; /**< CUDA: 10 * major + minor, as in 90 */
    int32_t n_multiprocessors;  /**< CUDA */
    int32_t shared_memory_per_block; /**< CUDA: bytes that a block can have */
    int32_t reserved;                /**< 0 */
} flash_device_info_t;

#define FLASH_DEVICE_INFO_INIT                                                                     \
    { FLASH_SIZEOF_(flash_device_info_t), 0, {0}, 0, 0, 0, 0, 0, 0 }

/** Fills *info (set its struct_size before). Errors: INVALID_ARGUMENT (NULL, a negative device),
 * UNSUPPORTED (a CUDA device and a library without CUDA), NO_DEVICE, CUDA. */
FLASH_API flash_status_t flash_device_info(int32_t device, flash_device_info_t *info);

/**
 * Sets the number of CPU threads that later calls use, the caller's included: 1 ... 4096, or 0 for
 * the default. The threads start at the first call that needs them, or in flash_prepare(). Where
 * the system refuses a thread, those that could be started do all the work until the number is set
 * anew. Errors: INVALID_ARGUMENT.
 */
FLASH_API flash_status_t flash_set_num_threads(int32_t n_threads);

/** Number of CPU threads that a call started now would use at most: the hook's n_workers where one
 * is set. 0: FLASHATTN_NUM_THREADS cannot be understood, as flash_last_error() says. */
FLASH_API int32_t flash_num_threads(void);

/** One unit of work. It is called with the argument that came with it and an index. */
typedef void (*flash_task_t)(void *argument, int32_t index);

/**
 * Lends the library an engine's own threads. It must call task(argument, i) exactly once for each i
 * in 0 ... n_tasks - 1, from any threads, in any order, at the same time or one after the other,
 * and return when all of these calls have returned. It may be called from several threads at once,
 * and must not throw. It runs in the default floating-point modes, and pthread_cancel() waits until
 * the call is done.
 */
typedef void (*flash_parallel_for_t)(void *context, int32_t n_tasks, flash_task_t task,
                                     void *argument);

/**
 * From now on CPU work runs through run(context, n_tasks <= n_workers, ...) instead of the
 * library's own threads; work too small to share runs on the caller's thread without it. run ==
 * NULL returns to the library's own threads. context must outlive the calls that use it: those
 * started before this hook was replaced. Errors: INVALID_ARGUMENT (n_workers outside 1 ... 4096
 * with a hook).
 */
FLASH_API flash_status_t flash_set_parallel_for(flash_parallel_for_t run, void *context,
                                                int32_t n_workers);

/**
 * Who runs the tasks of one call on the CPU device, instead of what is set for the process:
 * flash_forward_args_t.executor and flash_combine_args_t.executor. It must stay as it is until the
 * call returns.
 */
typedef struct flash_executor {
    uint32_t struct_size;     /**< sizeof(flash_executor_t) */
    int32_t n_workers;        /**< tasks that may run side by side, 1 ... 4096; without run, library
                                 threads to use at most, 0: all */
    flash_parallel_for_t run; /**< NULL: the library's own threads */
    void *context;            /**< for run */
} flash_executor_t;

#define FLASH_EXECUTOR_INIT                                                                        \
    { FLASH_SIZEOF_(flash_executor_t), 0, FLASH_NULL_, FLASH_NULL_ }

/**
 * Experimental, as the functions of teams are. A team: threads that are all inside one operation
 * already (the threads of a graph's node, of an OpenMP region), of which one, the leader, makes
 * calls and the others help.
 *
 *     leader:   executor.run = flash_team_run; executor.context = &team; executor.n_workers = n;
 *               flash_forward(...) any number of times; flash_team_finish(&team);
 *     others:   flash_team_help(&team);
 *
 * Each of the n_threads does its part once per round, in any order in time. The memory is the
 * caller's; this struct never grows.
 */
typedef struct flash_team {
    uint64_t reserved[48];
} flash_team_t;

/** Makes a team of n_threads, 1 ... 4096, the leader included. Errors: INVALID_ARGUMENT. */
FLASH_API flash_status_t flash_team_init(flash_team_t *team, int32_t n_threads);

/** Releases what the team holds. No thread may be in it any more. NULL is allowed. */
FLASH_API void flash_team_destroy(flash_team_t *team);

/** The run of an executor whose context is a team; only for the leader's calls. */
FLASH_API void flash_team_run(void *context, int32_t n_tasks, flash_task_t task, void *argument);

/** Runs tasks of the leader's calls until the leader finishes the round. */
FLASH_API void flash_team_help(flash_team_t *team);

/** Ends the round of the leader, and returns when all helpers have left it. */
FLASH_API void flash_team_finish(flash_team_t *team);

/* ---------------------------------------------------------------------------------------------
 * Attention
 * ------------------------------------------------------------------------------------------- */

/** A stream of a device: on CUDA devices a cudaStream_t. NULL is the default stream there. The CPU
 * has no streams, and a call on it takes only NULL. */
typedef void *flash_stream_t;

/**
 * A tensor [batch, seq, head, d_head] (V and O: d_head_v) with contiguous innermost axis. Strides
 * are in elements, and never negative. data may be NULL when the tensor is empty. The memory is the
 * caller's; inputs are only read. On the CPU any alignment will do; on CUDA devices that of the
 * element is required, and the fast kernels need rows at 16-byte aligned addresses. This struct
 * never grows.
 */
typedef struct flash_tensor {
    void *data;
    int64_t stride_batch; /**< ignored for a ragged batch */
    int64_t stride_seq;
    int64_t stride_head;
    int32_t dtype;        /**< FLASH_DTYPE_...; 0: that of the call */
    int32_t reserved32;   /**< 0 */
    uint64_t reserved[4]; /**< 0 */
} flash_tensor_t;

#define FLASH_TENSOR_INIT                                                                          \
    {                                                                                              \
        FLASH_NULL_, 0, 0, 0, 0, 0, {                                                              \
            0, 0, 0, 0                                                                             \
        }                                                                                          \
    }

#ifndef FLASH_NO_INLINE
/** A contiguous tensor [batch, seqlen, n_heads, d_head], as torch models keep activations; ragged:
 * [tokens, n_heads, d_head]. */
FLASH_INLINE_ flash_tensor_t flash_tensor_bshd(void *data, int64_t seqlen, int64_t n_heads,
                                               int64_t d_head) {
    flash_tensor_t tensor = FLASH_TENSOR_INIT;
    tensor.data = data;
    tensor.stride_batch = seqlen * n_heads * d_head;
    tensor.stride_seq = n_heads * d_head;
    tensor.stride_head = d_head;
    return tensor;
}

/** A contiguous tensor [batch, n_heads, seqlen, d_head], as many caches are laid out. */
FLASH_INLINE_ flash_tensor_t flash_tensor_bhsd(void *data, int64_t n_heads, int64_t seqlen,
                                               int64_t d_head) {
    flash_tensor_t tensor = FLASH_TENSOR_INIT;
    tensor.data = data;
    tensor.stride_batch = n_heads * seqlen * d_head;
    tensor.stride_seq = d_head;
    tensor.stride_head = seqlen * d_head;
    return tensor;
}
#endif

/** Bits of flash_forward_args_t.flags and flash_combine_args_t.flags. */
enum flash_flag {
    /* Query i sees key j when j <= i + seqlen_k - seqlen_q (bottom-right aligned), or as far from
     * there as diagonal_offset says. */
    FLASH_FLAG_CAUSAL = 1,
    /* window_left and window_right count: query i sees key j when
     *   i + seqlen_k - seqlen_q - window_left <= j <= i + seqlen_k - seqlen_q + window_right.
     * With FLASH_FLAG_CAUSAL too, both conditions hold. A window without bounds is refused. */
    FLASH_FLAG_WINDOW = 2,
    /* The output of a sequence depends on nothing but its own tokens: not on the batch size, nor
     * on its neighbours. (CPU families always keep this.) */
    FLASH_FLAG_BATCH_INVARIANT = 4,
    /* A stride of 0 repeats an input along that axis. Without the flag it is taken for one that was
     * forgotten. */
    FLASH_FLAG_BROADCAST = 8,
    /* paging.page_table may have holes, ids below 0, anywhere in a row: their pages have no keys to
     * read (see flash_paging_t). On CUDA devices not with every type of K: the library says. */
    FLASH_FLAG_PAGE_HOLES = 16,
    /* quant.k_scale and quant.v_scale have a scale for each page and K/V head, as caches have that
     * were quantised page by page (see flash_quant_t). In flash_forward() on the CPU alone. */
    FLASH_FLAG_PAGE_SCALES = 32
};

/**
 * K and V in pages: flash_forward_args_t.paging. K is [n_pages, page_size, n_heads_kv, d_head] and
 * V [n_pages, page_size, n_heads_kv, d_head_v], a pool that sequences share; stride_batch is the
 * stride of a page, stride_seq of a token in it, stride_head of a head. Key j of sequence b is
 * token j % page_size of the page page_table[begin + j / page_size], where begin is row(b) *
 * page_table_stride, or page_indptr[b], and row(b) is page_rows[b], or page_rows64[b], or b.
 *
 * Without a page_table it is a cache of slots, one contiguous place per sequence: row(b), which is
 * given then, is the slot of sequence b, page_size its capacity, n_pages the number of slots.
 *
 * The lengths are those of seqused_k or of cu_seqlens_k, one of which is required: sequence b has
 * cu_seqlens_k[b + 1] - cu_seqlens_k[b] keys then, or its first seqused_k[b] where both are given.
 * They say no more than that: keys are found by pages. args.seqlen_k is their bound. Ids beyond a
 * sequence's length are never looked at, nor is a token of the last page beyond it.
 *
 * With FLASH_FLAG_PAGE_HOLES an id of page_table below 0 is a hole: the keys of its page count as
 * positions, for lengths and masks too, but no query sees them, and nothing is read for them, nor
 * is the id of v_page_table at that place. So a row may list chosen pages, of one token or more,
 * with -1 wherever one is missing. A query whose keys are all in holes has O = 0 and LSE =
 * -infinity. Without the flag such an id is one that is no page. flash_kv_append() knows no holes.
 *
 * On the CPU a length beyond what the table's row holds, an id that is no page, or a row that is
 * negative or beyond 2^31 - 1 is refused; how many rows the table has the library cannot know. On a
 * CUDA device, where the call cannot look, the length is cut to what the row holds, and the keys of
 * an id that is no page, or of a slot that is none, read as zeros. The arrays are in memory of the
 * device then. This struct is always in memory of the host, and is read
 * only during the call.
 */
typedef struct flash_paging {
    uint32_t struct_size;       /**< sizeof(flash_paging_t) */
    int32_t reserved32;         /**< 0 */
    int64_t page_size;          /**< tokens per page, at least 1 */
    int64_t n_pages;            /**< pages of the pool; ids are 0 ... n_pages - 1 */
    const int32_t *page_table;  /**< ids of K's pages, and of V's unless v_page_table is given */
    int64_t page_table_stride;  /**< ids from one row of the table to the next: what a row holds; 0
                                     with page_indptr and without a page_table */
    const int32_t *page_indptr; /**< [batch + 1], ascending: sequence b has the ids from
                                     page_indptr[b] to page_indptr[b + 1]; NULL: rows */
    const int32_t *page_rows;   /**< [batch]: row of the table, or the slot, of each sequence; NULL:
                                     row b is that of sequence b */
    const int32_t *v_page_table; /**< ids of V's pages, at the same places; NULL: as K's */
    const int64_t *page_rows64;  /**< page_rows in 64 bits, for who has them so; NULL: page_rows.
                                      Not both */
} flash_paging_t;

#define FLASH_PAGING_INIT                                                                          \
    {                                                                                              \
        FLASH_SIZEOF_(flash_paging_t), 0, 0, 0, FLASH_NULL_, 0, FLASH_NULL_, FLASH_NULL_,          \
            FLASH_NULL_, FLASH_NULL_                                                               \
    }

/**
 * Scales of K, V and Q of e4m3: flash_forward_args_t.quant. An element of e4m3 is a sign, 4 bits of
 * an exponent with a bias of 7 and 3 bits of a mantissa, as OCP's OFP8 has it: the largest is 448,
 * the smallest 2^-9, S.1111.111 is NaN, and there is no infinity.
 *
 * A value of K is k_scale * element, one of V v_scale * element, with a scale for each batch entry
 * and K/V head: that at b * stride_batch + h * stride_head. Strides of 0 repeat a scale; both of 0
 * are one scale for all. K's scale multiplies the scores before softcap, and LSE is that of the
 * decoded K; V's multiplies O. Scales are data like K and V: of any value, and not looked at before
 * the call computes.
 *
 * With FLASH_FLAG_PAGE_SCALES K and V are in pages, and both arrays [n_pages, n_heads_kv]:
 * stride_batch is the stride of a page, that of paging.page_table for K and of paging.v_page_table
 * for V, or of a slot. Scales of pages that no sequence has are not looked at. CUDA kernels of
 * attention know no scales of pages yet; flash_kv_append() takes them everywhere.
 *
 * Beside K and V of e4m3, Q may be of e4m3, too. A value of Q is q_scale * q_token_scale * element:
 * the first for each batch entry and K/V head, as K's, for all query heads of that; the second for
 * each token and query head, that at b * stride_batch + i * stride_seq + h * stride_head. Strides
 * of 0 repeat a scale. LSE is that of the decoded Q.
 *
 * The arrays are fp32, in memory of the device, only read, and must not overlap O or LSE. This
 * struct is always in memory of the host, and is read only during the call.
 */
typedef struct flash_quant {
    uint32_t struct_size;         /**< sizeof(flash_quant_t) */
    int32_t reserved32;           /**< 0 */
    const float *k_scale;         /**< [batch, n_heads_kv], or [n_pages, n_heads_kv]; NULL: every
                                     scale is 1 */
    const float *v_scale;         /**< the same */
    int64_t k_scale_stride_batch; /**< in elements, never negative; 0 without the array */
    int64_t k_scale_stride_head;
    int64_t v_scale_stride_batch;
    int64_t v_scale_stride_head;
    const float *q_scale;         /**< [batch, n_heads_kv]; NULL: every scale is 1 */
    int64_t q_scale_stride_batch; /**< as those of K's scale */
    int64_t q_scale_stride_head;
    const float *q_token_scale;         /**< [batch, seqlen_q, n_heads], or, where Q is ragged,
                                           [total_q, n_heads]; NULL: every scale is 1 */
    int64_t q_token_scale_stride_batch; /**< in elements, never negative; 0 without the array, and
                                           ignored for a ragged batch */
    int64_t q_token_scale_stride_seq;
    int64_t q_token_scale_stride_head;
    /* 0. What else may come is appended. */
    uint64_t reserved[1];
} flash_quant_t;

#define FLASH_QUANT_INIT                                                                           \
    {                                                                                              \
        FLASH_SIZEOF_(flash_quant_t), 0, FLASH_NULL_, FLASH_NULL_, 0, 0, 0, 0, FLASH_NULL_, 0, 0,  \
            FLASH_NULL_, 0, 0, 0, {                                                                \
            0                                                                                      \
        }                                                                                          \
    }

/** Kinds of flash_mask_t. */
enum flash_mask_kind {
    FLASH_MASK_ADD = 1,   /**< numbers that are added to scores; -infinity hides a key */
    FLASH_MASK_BITS = 2,  /**< bits: 1 where a query sees a key */
    FLASH_MASK_BLOCKS = 3 /**< bits: 1 where the queries of a block see the keys of a block */
};

/** Bits of flash_mask_t.flags. */
enum flash_mask_flag {
    /* The mask covers the last n_keys keys of each sequence, however many it has: those of a tree
     * of drafts. Column c is key seqlen_k - n_keys + c then. */
    FLASH_MASK_LAST_KEYS = 1
};

/**
 * A mask of any pattern, or a bias: flash_forward_args_t.mask. It has a row for each query and a
 * column for each key that it covers. Keys that it does not cover are visible as far as it goes:
 * causal order and windows hold beside it.
 *
 * Row i of head h of sequence b begins at b * stride_batch + h * stride_head + i * stride_query, in
 * a ragged batch of queries at h * stride_head + t * stride_query for token t of Q. Strides of 0
 * repeat the mask; none is negative. An element of FLASH_MASK_ADD is at c * stride_key behind that.
 * FLASH_MASK_BITS has words of 32 bits, column c in word c / 32, bit c % 32 counted from the
 * lowest, and strides in words.
 *
 * FLASH_MASK_BLOCKS has a bit for each block of block_q queries and block_k keys, [batch, n_heads,
 * blocks of queries, words of 32 blocks of keys], of which a call takes time for the visible ones.
 * Query i of sequence b, counted within the sequence, is in the row that begins at b * stride_batch
 * + h * stride_head + i / block_q * stride_query, in a ragged batch of queries too: there a
 * sequence has as many rows as the longest one needs, and stride_batch leads from sequence to
 * sequence. Column c is in block c / block_k. The last block of queries and that of keys may be
 * smaller. Blocks of 64 or 128 are those that pay: the library computes blocks of 32 to 256 keys
 * and up to 256 queries at a time, and leaves out those that are hidden as a whole.
 *
 * What is added joins the scaled score, after softcap. -infinity hides the key whatever its score
 * is, and K may be NaN there, but V must be finite where only a mask hides a key: it is multiplied
 * by 0. +infinity and NaN give NaN. A row that sees no key has O = 0 and LSE = -infinity. The
 * elements lie in memory of the device, are only read, and must not overlap O or LSE. This struct
 * is always in memory of the host, and is read only during the call.
 */
typedef struct flash_mask {
    uint32_t struct_size; /**< sizeof(flash_mask_t) */
    int32_t kind;         /**< FLASH_MASK_... */
    int32_t dtype;        /**< FLASH_MASK_ADD: FLASH_DTYPE_..., fp16, bf16 or fp32; 0: the call's */
    uint32_t flags;       /**< FLASH_MASK_LAST_KEYS or 0 */
    const void *data;
    int64_t stride_batch; /**< ignored for ragged queries, but with FLASH_MASK_BLOCKS */
    int64_t stride_head;
    int64_t stride_query; /**< FLASH_MASK_BLOCKS: from one block of queries to the next */
    int64_t stride_key;   /**< FLASH_MASK_ADD: 0 with several columns needs FLASH_FLAG_BROADCAST;
                             others: 0 */
    int64_t first_key;    /**< the key of column 0; 0 with FLASH_MASK_LAST_KEYS */
    int64_t n_keys;       /**< columns, at least 1 */
    /* FLASH_MASK_ADD: a factor for each query head, [n_heads], fp32, in memory of the device, as
     * in ALiBi with a mask of distances: head_scale[h] * element is added in place of the element.
     * Whatever the factor is, an element of -infinity hides its key, and one of 0 adds nothing. No
     * other element hides a key: a product below the least finite number is that number. One of
     * +infinity or NaN gives NaN, as such an element does. With a factor of 0 a mask only hides.
     * Factors are data, not looked at before the call computes, and must not overlap O or LSE.
     * NULL with other kinds. NULL: all 1. */
    const float *head_scale;
    int64_t block_q; /**< FLASH_MASK_BLOCKS: queries of a block, at least 1; others: 0 */
    int64_t block_k; /**< FLASH_MASK_BLOCKS: keys of a block, at least 1; others: 0 */
} flash_mask_t;

#define FLASH_MASK_INIT                                                                            \
    { FLASH_SIZEOF_(flash_mask_t), 0, 0, 0, FLASH_NULL_, 0, 0, 0, 0, 0, 0, FLASH_NULL_, 0, 0 }

/**
 * Dropout of attention weights, as training has it: flash_forward_args_t.dropout. A weight is
 * dropped with probability p; those that stay are multiplied by 1 / (1 - p):
 *     O = sum_j z_ij / (1 - p) * P_ij v_j, with z_ij 0 or 1.
 * LSE, and a sink's weight, are as without. A query sees a dropped key: NaN in its K or V counts.
 *
 * Whether a weight is dropped depends on seed, offset, the sequence's number in the batch, the
 * query head, and the places of the query and the key in their sequence alone. So all kernels,
 * devices and layouts of a batch drop the same weights, and a call for gradients the same as its
 * forward pass. Counting keys begins behind leftpad_k, and is of the call's own Q and K:
 * diagonal_offset does not move it. Calls that must drop independently have different seeds or
 * offsets.
 *
 * The bits are those of Philox4x32-10 (Salmon et al., SC 2011). Query i, key j, head h of sequence
 * b and offset o take, with lane = 4 (i % 8) + j % 8 / 2, half j % 2 (0: the low 16 bits) of word
 * i % 16 / 8 + 2 (j % 16 / 8) for the key (seed % 2^32, seed / 2^32) and the counter
 *     (i / 16 + 2^27 lane, j / 16 + 2^27 (o / 2^32 % 32), b * n_heads + h, o % 2^32),
 * and the weight is dropped where that half is less than 65,536 p, rounded to the nearest integer.
 * A p for which that is 0 drops nothing and multiplies by nothing. Offsets count modulo 2^37, and
 * batch * n_heads is at most 2^32.
 */
typedef struct flash_dropout {
    uint32_t struct_size; /**< sizeof(flash_dropout_t) */
    float p;              /**< at least 0, less than 1; 0: nothing is dropped */
    uint64_t seed;
    uint64_t offset;
    /* The value there is added to seed, or to offset, when the kernel runs: a graph that is
     * captured once drops other weights at each launch. In memory of the device, only read, aligned
     * to 8 bytes on CUDA devices; must not overlap what the call writes. NULL: nothing is added. */
    const uint64_t *seed_ptr;
    const uint64_t *offset_ptr;
} flash_dropout_t;

#define FLASH_DROPOUT_INIT                                                                         \
    { FLASH_SIZEOF_(flash_dropout_t), 0, 0, 0, FLASH_NULL_, FLASH_NULL_ }

/**
 * The arguments of a call that computes attention.
 *
 * Element types: K and V have one type, or on the CPU any two of fp16, bf16, fp32, Q8_0 and Q4_0.
 * Q and O may be of fp32 where K has 16 bits, each by itself; on CUDA devices such a Q is rounded
 * to the type of K. Beside K of e4m3, of latent tokens (FLASH_DTYPE_LATENT_E4M3) or of quantised
 * blocks (FLASH_DTYPE_Q8_0, FLASH_DTYPE_Q4_0, on the CPU), Q is of fp16, bf16 or fp32, and O of Q's
 * type or fp32. Beside K of e4m3 Q may be of e4m3, too, and O of fp16, bf16 or fp32; on CUDA
 * devices some calls are refused then (docs/serving.md). A call whose dtype is one of these names
 * the types of both. flash_query_support() answers for each call. O of fp32 is not rounded;
 * docs/numerics.md says what becomes of a Q of fp32.
 */
typedef struct flash_forward_args {
    uint32_t struct_size; /**< sizeof(flash_forward_args_t) */
    int32_t device;       /**< FLASH_DEVICE_... */
    int32_t dtype;        /**< FLASH_DTYPE_... of the tensors that name none */
    uint32_t flags;       /**< FLASH_FLAG_... */

    flash_tensor_t q; /**< [batch, seqlen_q, n_heads, d_head]    or [total_q, n_heads, d_head] */
    flash_tensor_t k; /**< [batch, seqlen_k, n_heads_kv, d_head] or [total_k, n_heads_kv, d_head] */
    flash_tensor_t v; /**< as k, with heads of d_head_v elements and strides of its own; it may be a
                         view of k */
    flash_tensor_t o; /**< as q, with heads of d_head_v elements; its elements must not overlap each
                         other, nor lse or any input: kernels read Q again after they have written
                         O */

    /* Logarithm of the sum of exponentials of each row's scaled scores (natural logarithm), fp32,
     * [batch, n_heads, seqlen_q], ragged: [n_heads, total_q]. NULL: not wanted. Must not overlap
     * any input. A row that sees no key has O = 0 and LSE = -infinity. */
    float *lse;
    int64_t lse_stride_batch; /**< elements; ignored for a ragged batch. All three 0: contiguous */
    int64_t lse_stride_head;
    int64_t lse_stride_seq;

    /* Ragged batches: sequence b is tokens cu_seqlens[b] ... cu_seqlens[b + 1] - 1 of its tensor;
     * batch + 1 ascending values from 0 on; NULL: every sequence has the full length. In memory of
     * the device. The two may be given independently. Beside paging cu_seqlens_k only has the
     * lengths. */
    const int32_t *cu_seqlens_q;
    const int32_t *cu_seqlens_k;
    /* [batch]: only the first seqused_k[b] keys of sequence b exist, for masks too. NULL: all. */
    const int32_t *seqused_k;

    int64_t batch;
    int64_t seqlen_q;   /**< with cu_seqlens_q: no sequence is longer */
    int64_t seqlen_k;   /**< with cu_seqlens_k or paging: no sequence is longer */
    int64_t n_heads;    /**< at least 1 */
    int64_t n_heads_kv; /**< at least 1, divides n_heads; query head h uses K/V head h / (n_heads /
                           n_heads_kv) */
    int64_t d_head;     /**< head dimension of Q and K, at least 1 */

    int64_t window_left;  /**< with FLASH_FLAG_WINDOW; -1: unbounded */
    int64_t window_right; /**< with FLASH_FLAG_WINDOW; -1: unbounded */
    float softmax_scale;  /**< finite, not negative; 0: 1 / sqrt(d_head) */
    float softcap;        /**< scores s become softcap * tanh(s / softcap); 0: none */

    /* Memory of the device, any alignment, not shared with a call that runs at the same time (on a
     * CUDA device, until the stream has passed the call); needs no clearing. See
     * flash_workspace_size(). */
    void *workspace;
    uint64_t workspace_size; /**< bytes */

    /* CPU device: who runs the tasks of this call. NULL: the threads or the hook of the process. */
    const flash_executor_t *executor;

    /* K and V in pages. NULL: contiguous. */
    const flash_paging_t *paging;
    /* [batch]: only the first seqused_q[b] queries of sequence b exist, for masks too; the rows of
     * O and LSE beyond them are not written. In memory of the device. NULL: all. */
    const int32_t *seqused_q;
    /* Scales of K, V and Q of e4m3. NULL: every scale is 1. */
    const flash_quant_t *quant;

    /* Attention sinks: [n_heads], fp32, in memory of the device, only read. NULL: none. The sink of
     * a query head is one more logit in the softmax of each of its rows, without a key and a value:
     *   O = sum_j exp(s_j) v_j / (sum_j exp(s_j) + exp(sink)).
     * It is in units of scaled scores s_j (natural logarithm); softmax_scale, softcap and masks do
     * not touch it. LSE is without it, so that partial results still merge: a caller who splits the
     * keys gives the sinks only to flash_combine(). A sink of -infinity changes no bit; +infinity,
     * and one so far above a row's scores that they have no weight beside it, gives O = 0; NaN
     * gives NaN. A row that sees no key has O = 0 whatever the sink is. Sinks are data like K and
     * V: not looked at before the call computes. Must not overlap O or LSE. */
    const float *sinks;
    /* Slopes of ALiBi (Press et al., arXiv 2108.12409), fp32, in memory of the device: [n_heads],
     * or [batch, n_heads] with a stride. slope * -|i + seqlen_k - seqlen_q - j| joins the scaled
     * score of query i and key j, after softcap. Must not overlap O or LSE. NULL: none. */
    const float *alibi_slopes;
    int64_t alibi_stride_batch; /**< elements; 0: every sequence has the same slopes */
    /* A mask or bias of any pattern. NULL: none. */
    const flash_mask_t *mask;
    int64_t d_head_v; /**< head dimension of V and O; 0: d_head */
    /* Chunks of keys that do not see each other: query i, whose place is p = i + seqlen_k -
     * seqlen_q, sees key j only if floor(p / attention_chunk) = floor(j / attention_chunk). A query
     * before the first key, p < 0, sees none then. Holds beside FLASH_FLAG_CAUSAL and the window.
     * 0: none. */
    int64_t attention_chunk;
    /* [batch]: the keys of sequence b begin leftpad_k[b] tokens after the start of its place in K
     * and V, and are counted from there, for masks too. seqused_k, or the length where it is NULL,
     * still counts from the start, so that leftpad_k[b] fewer keys exist, at least 0. Not with a
     * page_table. In memory of the device; a negative value is refused on the CPU, and taken for 0
     * on a CUDA device. NULL: all 0. */
    const int32_t *leftpad_k;

    /* CUDA devices: the call is selected, planned and launched as though the device had only this
     * number of multiprocessors, for a caller who needs the others for work beside attention, such
     * as a collective. Kernels whose blocks take tile after tile start that number of blocks; those
     * that cut sequences cut for that number. Kernels with a block for each tile still have as many
     * blocks as tiles. Another number may change the last bits of O, as another device may. 0, and
     * more than the device has: all. On the CPU it must be 0: an executor limits threads there. */
    int32_t n_multiprocessors;
    int32_t reserved32; /**< 0 */
    /* The diagonal is shifted by this number of keys: query i stands at key p = i + seqlen_k -
     * seqlen_q + diagonal_offset, and causal order, the window, attention_chunk and ALiBi count
     * from there; columns of a mask are still those of its keys. So a call may have any part of a
     * sequence's queries and any part of its keys, as devices do that share a sequence
     * (docs/masks.md), and a window may lie wholly beside the query: keys p - 5 ... p - 2 are an
     * offset of -2 and a window of 3 to the left and 0 to the right. A query that sees no key has
     * O = 0 and LSE = -infinity. No query may stand beyond 2^31 - 1 keys from the first one:
     * seqlen_q - 2^31 < diagonal_offset < 2^31 - seqlen_k. */
    int64_t diagonal_offset;
    /* Dropout of attention weights. NULL: none. Not with K and V in pages, of e4m3, of latent
     * tokens or of quantised blocks. The struct is in memory of the host, and is read only during
     * the call. */
    const flash_dropout_t *dropout;
    /* 0. Room for positions of queries. Another type of V needs none, since a tensor has its own,
     * nor do other scales, which flash_quant_t has room for. */
    uint64_t reserved[4];
} flash_forward_args_t;

#define FLASH_FORWARD_ARGS_INIT                                                                    \
    {                                                                                              \
        FLASH_SIZEOF_(flash_forward_args_t), 0, 0, 0, FLASH_TENSOR_INIT, FLASH_TENSOR_INIT,        \
            FLASH_TENSOR_INIT, FLASH_TENSOR_INIT, FLASH_NULL_, 0, 0, 0, FLASH_NULL_, FLASH_NULL_,  \
            FLASH_NULL_, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, FLASH_NULL_, 0, FLASH_NULL_, FLASH_NULL_,   \
            FLASH_NULL_, FLASH_NULL_, FLASH_NULL_, FLASH_NULL_, 0, FLASH_NULL_, 0, 0, FLASH_NULL_, \
            0, 0, 0, FLASH_NULL_, {                                                                \
            0, 0, 0, 0                                                                             \
        }                                                                                          \
    }

/**
 * Computes attention. kernel NULL lets the library choose (flash_select_kernel() tells which it
 * takes); another must serve the problem. On the CPU device the call returns when O is
 * complete, and stream must be NULL. On a CUDA device every pointer in args (cu_seqlens_* and
 * seqused_* too) is memory of that device, the kernel (or its kernels, one after the other) is
 * enqueued on stream (NULL: the default stream), and the call returns at once: no allocation, no
 * synchronisation; after flash_prepare() it can be captured in a CUDA graph. The caller's current
 * device is left as it was.
 *
 * Inside: scores, softmax and sums in fp32, O rounded once, to its type (docs/numerics.md). What no
 * row sees (masked keys, keys beyond seqused_k) cannot matter, NaN included.
 *
 * Errors, all before anything is written:
 *   INVALID_ARGUMENT     a NULL pointer, a negative or overflowing size or stride, unknown flags
 *                        or types, n_heads not a multiple of n_heads_kv, lengths out of order, ...
 *   INVALID_CONFIG       FLASHATTN_CONFIG breaks a rule of its family
 *   NOT_BUILT            FLASHATTN_CONFIG is legal, but not in this library
 *   UNSUPPORTED          the kernel cannot serve this problem, or no kernel here can, or a newer
 *                        caller's field is unknown here
 *   WORKSPACE_TOO_SMALL  with both sizes
 *   NO_DEVICE, OUT_OF_MEMORY, CUDA (the launch failed; errors of the kernel itself come later,
 *                        from the stream, as for any kernel)
 */
FLASH_API flash_status_t flash_forward(const flash_forward_args_t *args,
                                       const flash_kernel_t *kernel, flash_stream_t stream);

/**
 * The bytes of workspace that flash_forward(args, kernel) uses. On the CPU device that is at the
 * present number of threads; fewer threads work with less, and one thread's share is the least that
 * is accepted. On a CUDA device decode kernels (FLASH_ARCH_SM80_DECODE, FLASH_ARCH_SM80_MLA,
 * FLASH_ARCH_SM80_WIDE, FLASH_ARCH_SM90_DECODE, FLASH_ARCH_SM90_MLA, FLASH_ARCH_SM90_WIDE),
 * FLASH_ARCH_MIXED, and
 * FLASH_ARCH_SM90 with a mask must have all of it, and other kernels use none. A Q of fp32 is
 * copied there, in the type of K, for every kernel: 2 bytes for each element, of a ragged batch for
 * batch * seqlen_q tokens. Depends on sizes, types, flags and on which of the pointers are NULL,
 * never on data: args->q.data and the like (but K and V both, or neither) and args->mask->data may
 * still be NULL, and lengths in cu_seqlens_* and seqused_* are not read (for a pointer that will be
 * given later, pass any non-NULL value). The size suffices for a smaller batch and shorter lengths
 * on the same kernel too, even where these would ask for more: ask once, for the largest. With
 * kernel NULL few queries take other kernels on a CUDA device than many, and ragged queries others
 * than padded ones: ask for each number of queries that calls have, with a batch of one and with
 * the largest. Errors: as flash_forward(), less those about data and workspace.
 */
FLASH_API flash_status_t flash_workspace_size(const flash_forward_args_t *args,
                                              const flash_kernel_t *kernel, uint64_t *size);

/**
 * Does ahead of time what the first flash_forward(args, kernel) would do once: it starts threads on
 * the CPU device, and loads the kernel on a CUDA device. After it, flash_forward() allocates
 * nothing. Reads the same of args as flash_workspace_size(). Errors: as there.
 */
FLASH_API flash_status_t flash_prepare(const flash_forward_args_t *args,
                                       const flash_kernel_t *kernel);

/**
 * The kernel that flash_forward(args, NULL) would take, into *kernel, and why, into reason[0 ...
 * reason_size), cut to fit (NULL: not wanted). An engine selects once for the problems of a layer
 * and passes the kernel to each call. Reads the same of args as flash_workspace_size(). Errors: as
 * there.
 */
FLASH_API flash_status_t flash_select_kernel(const flash_forward_args_t *args,
                                             const flash_kernel_t **kernel, char *reason,
                                             size_t reason_size);

/**
 * FLASH_SUCCESS when flash_forward(args, kernel) would run with these sizes, types and flags;
 * otherwise the status that it would return, and the failed condition in reason[0 ... reason_size),
 * cut to fit (NULL: not wanted). Reads the same of args as flash_workspace_size().
 */
FLASH_API flash_status_t flash_query_support(const flash_forward_args_t *args,
                                             const flash_kernel_t *kernel, char *reason,
                                             size_t reason_size);

/* ---------------------------------------------------------------------------------------------
 * Gradients
 * ------------------------------------------------------------------------------------------- */

/** Bits of flash_backward_args_t.flags. */
enum flash_backward_flag {
    /* The gradient is added to what is there, which is read and rounded once, at the end; an output
     * of fp32 only. */
    FLASH_BACKWARD_ADD_DQ = 1,
    FLASH_BACKWARD_ADD_DK = 2,
    FLASH_BACKWARD_ADD_DV = 4
};

/**
 * The arguments of a call that computes gradients of attention: of Q, K, V and the sinks, from
 * those of O and LSE.
 *
 *     P = exp(s - LSE), with the scores s of the forward pass; with sinks, which LSE lacks,
 *         P = exp(s - L), L = log(exp(LSE) + exp(sink))
 *     D = sum over the row of dO * O, less dLSE exp(L - LSE)
 *     dS = P (dO V^T - D), times 1 - tanh(x)^2 where a softcap made tanh(x) of the score
 *     dQ = softmax_scale dS K, dK = softmax_scale dS^T Q, dV = P^T dO; dK and dV are summed over
 *         the query heads of their group
 *     dsink = - sum over the head's rows of exp(sink - L) (dO * O)
 *
 * Whatever the number of threads, the device's load and the other sequences of the batch, the same
 * call gives the same bits: nothing is added in the order of arrival.
 *
 * Refused with FLASH_ERROR_UNSUPPORTED: paging, K and V of other types than fp16, bf16 and fp32 or
 * of two types, and on CUDA devices K and V of fp32, a d_head or d_head_v above 256, and a
 * diagonal_offset other than 0. A mask has no gradient, nor have slopes.
 */
typedef struct flash_backward_args {
    uint32_t struct_size; /**< sizeof(flash_backward_args_t) */
    uint32_t flags;       /**< FLASH_BACKWARD_... */

    /* The call whose gradients these are: tensors, lengths, masks, device and executor. Its o and
     * lse are inputs here, both required, as the forward pass wrote them. Its workspace is not
     * looked at. Read only during the call. */
    const flash_forward_args_t *forward;

    flash_tensor_t d_o; /**< shaped as o, of o's type */
    /* The gradient of LSE, fp32, shaped as lse; NULL: none. Strides all 0: those of lse. */
    const float *d_lse;
    int64_t d_lse_stride_batch;
    int64_t d_lse_stride_head;
    int64_t d_lse_stride_seq;

    /* The gradients, shaped as q, k and v, with strides of their own, so that they may be views of
     * one packed tensor. Each is of the type of q, k or v, which it has where it names none, or of
     * fp32. data NULL: it is not wanted. They must not overlap each other nor any input.
     * Every row of a sequence's place is written: zeros where seqused_q, seqused_k or leftpad_k
     * leave no query or key, where a query sees no key and a key no query. Rows of ragged tensors
     * behind the last sequence are left as they are. */
    flash_tensor_t dq;
    flash_tensor_t dk;
    flash_tensor_t dv;
    float *d_sinks; /**< [n_heads], fp32; NULL: not wanted. Needs forward->sinks */

    /* The tokens of a ragged Q and K, cu_seqlens_q[batch] and cu_seqlens_k[batch], at least. Only
     * the workspace depends on them. 0: batch * seqlen_q and batch * seqlen_k. */
    int64_t total_q;
    int64_t total_k;

    /* The rows that compute dQ, and dK and dV, of FLASH_OP_BACKWARD_DQ and FLASH_OP_BACKWARD_DKV.
     * NULL: the library chooses. */
    const flash_kernel_t *dq_kernel;
    const flash_kernel_t *dkv_kernel;

    /* As flash_forward_args_t.workspace; see flash_backward_workspace_size(). */
    void *workspace;
    uint64_t workspace_size; /**< bytes */
    uint64_t reserved[8];    /**< 0 */
} flash_backward_args_t;

#define FLASH_BACKWARD_ARGS_INIT                                                                   \
    {                                                                                              \
        FLASH_SIZEOF_(flash_backward_args_t), 0, FLASH_NULL_, FLASH_TENSOR_INIT, FLASH_NULL_, 0,   \
            0, 0, FLASH_TENSOR_INIT, FLASH_TENSOR_INIT, FLASH_TENSOR_INIT, FLASH_NULL_, 0, 0,      \
            FLASH_NULL_, FLASH_NULL_, FLASH_NULL_, 0, {                                            \
            0, 0, 0, 0, 0, 0, 0, 0                                                                 \
        }                                                                                          \
    }

/**
 * Computes gradients. stream is as in flash_forward(). Errors, all before anything is written: as
 * flash_forward(), and UNSUPPORTED for what flash_backward_args_t says is refused.
 */
FLASH_API flash_status_t flash_backward(const flash_backward_args_t *args, flash_stream_t stream);

/**
 * The bytes of workspace of flash_backward(): *least, without which it is refused, and *best, which
 * it gains by; either may be NULL. Anything between works. The results have the same bits with
 * each. Depends on sizes, types, flags and on which of the pointers are NULL, never on data, as
 * flash_workspace_size(); data of forward's o and lse and of d_o may still be NULL, and so may that
 * of the gradients when all are. On CUDA devices Q, K, V and dO are copied to the workspace where
 * rows of their d_head do not consist of whole 16 bytes at aligned addresses (NULL is aligned), and
 * Q and dO where they are of fp32, so that it depends on these addresses and strides too. *least
 * suffices for a smaller batch and shorter lengths too. There *best may have room for dS, up to
 * 2.5 GiB: with as much the row of dK and dV computes dQ too, unless dq_kernel names one for it,
 * and with less two rows compute S twice. It is not always less for shorter lengths, so that
 * callers who keep a workspace ask for each length. Errors: as flash_backward(), less those about
 * data and workspace.
 */
FLASH_API flash_status_t flash_backward_workspace_size(const flash_backward_args_t *args,
                                                       uint64_t *least, uint64_t *best);

/** Does ahead of time what the first flash_backward(args) would do once, as flash_prepare(). Reads
 * the same of args as flash_backward_workspace_size(). Errors: as there. */
FLASH_API flash_status_t flash_backward_prepare(const flash_backward_args_t *args);

/**
 * The kernels that flash_backward(args) would take, into *dq_kernel and *dkv_kernel (either may be
 * NULL), and why, into reason[0 ... reason_size), cut to fit (NULL: not wanted). Reads the same of
 * args as flash_backward_workspace_size(). Where the workspace has room for dS, the row of dK and
 * dV computes dQ too, and that of dQ is for calls with less. Errors: as there.
 */
FLASH_API flash_status_t flash_backward_select_kernels(const flash_backward_args_t *args,
                                                       const flash_kernel_t **dq_kernel,
                                                       const flash_kernel_t **dkv_kernel,
                                                       char *reason, size_t reason_size);

/**
 * FLASH_SUCCESS when flash_backward(args) would run with these sizes, types and flags; otherwise
 * the status that it would return, and the failed condition in reason[0 ... reason_size), cut to
 * fit (NULL: not wanted). Reads the same of args as flash_backward_workspace_size().
 */
FLASH_API flash_status_t flash_backward_query_support(const flash_backward_args_t *args,
                                                      char *reason, size_t reason_size);

/* ---------------------------------------------------------------------------------------------
 * Measuring and tuning
 * ------------------------------------------------------------------------------------------- */

/**
 * Runs kernels (rows of the table, flash_kernel_at()) on a problem and times them: seconds[i] is
 * the median of n_launches launches of kernels[i], after one that is not timed (0 when O is empty).
 * They take turns launch by launch, so that all of them see the same clocks and caches. On a CUDA
 * device it is the device's own time, by events on stream, which is held while they are enqueued,
 * so that the host's time stays out; on the CPU device the time of a call, with the threads at its
 * disposal. args is as for flash_forward(), outputs are written, and the workspace must do for each
 * kernel (the largest of their flash_workspace_size()).
 *
 * This is a tool for tuning, not a way to serve requests: it allocates, and on a CUDA device it
 * waits for the stream.
 * Errors: as flash_forward(), of the first kernel that cannot serve; INVALID_ARGUMENT (n_kernels
 * or n_launches below 1, a NULL kernel, a stream that is capturing, or one on the CPU device).
 */
FLASH_API flash_status_t flash_measure(const flash_forward_args_t *args,
                                       const flash_kernel_t *const *kernels, int32_t n_kernels,
                                       int32_t n_launches, flash_stream_t stream, double *seconds);

/**
 * Does the same for rows of FLASH_OP_BACKWARD_DQ, or of FLASH_OP_BACKWARD_DKV, all of one of them:
 * a launch computes dQ, or dK and dV, which are given, after what rows need of each query has been
 * computed once. args is as for flash_backward(), but its dq_kernel and dkv_kernel are not looked
 * at. The workspace must do for each kernel alone: the largest *best of
 * flash_backward_workspace_size() with that kernel.
 */
FLASH_API flash_status_t flash_backward_measure(const flash_backward_args_t *args,
                                                const flash_kernel_t *const *kernels,
                                                int32_t n_kernels, int32_t n_launches,
                                                flash_stream_t stream, double *seconds);

/** The first line of measured results. Their text is experimental: another version may have another
 * first line, and refuse this one. */
#define FLASH_TUNING_HEADER "flashattn tuning 1"

/** A buffer of this size holds every line of measured results. */
#define FLASH_TUNING_TEXT_SIZE 512

/**
 * Writes a line of measured results, NUL-terminated, without a line break, into text[0 ... size):
 * that on args->device problems like args take the kernel that many seconds, as in
 *   "cc=90 sms=132 dtype=BF16 d_head=128 features=causal q=2048 k=2048 heads=128 ns=155020: (BF16,
 *    128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax+causal+varlen"
 * Problems are alike when the device's compute capability, the multiprocessors that the call may
 * use, the type of K and V, d_head, the features that a kernel must have, and the size class are
 * the same: the longest sequence of queries (q), the most keys that one of them sees (k), and
 * batch * n_heads (heads), each rounded to a power of two. Reads the same of args as
 * flash_workspace_size(). Errors: as flash_query_support(); UNSUPPORTED (the CPU device, whose
 * kernels are chosen only by the processor; FLASH_FLAG_BATCH_INVARIANT; a d_head_v other than
 * d_head), INVALID_ARGUMENT (seconds not positive and finite), BUFFER_TOO_SMALL.
 */
FLASH_API flash_status_t flash_tuning_format(const flash_forward_args_t *args,
                                             const flash_kernel_t *kernel, double seconds,
                                             char *text, size_t size);

/**
 * From now on selection follows these results in place of FLASHATTN_TUNING's: FLASH_TUNING_HEADER,
 * then one result per line, in any order; '#' begins a comment. NULL: FLASHATTN_TUNING's again. The
 * text is not kept. What was read of it is, 48 bytes for each result, until the process ends, also
 * when later results take its place, since calls in other threads may be looking at it: set results
 * once, not for each request.
 *
 * For a problem on a CUDA device selection takes the fastest result of a problem like it whose
 * kernel serves this one: from these, where they have any, else from those built into the library
 * for devices that were measured. Without one, or when the family that it would otherwise take is
 * not among the results, which therefore say nothing about it, selection estimates. Problems with
 * FLASH_FLAG_BATCH_INVARIANT or with a d_head_v other than d_head, and the CPU device, never follow
 * results. Results of configurations that this library does not hold are passed over, as
 * FLASHATTN_TRACE tells. Another kernel may round differently, so that other results may change the
 * last bits of O.
 * Errors: INVALID_ARGUMENT, with the line and the place in it, or, of NULL, because
 * FLASHATTN_TUNING cannot be understood (the results in force stay), OUT_OF_MEMORY.
 */
FLASH_API flash_status_t flash_set_tuning(const char *text);

/* ---------------------------------------------------------------------------------------------
 * Merging partial results
 * ------------------------------------------------------------------------------------------- */

/**
 * The arguments of a call that merges attention over disjoint sets of keys, computed apart (split
 * or sharded K/V, a shared prefix), by their LSE: lse = log(sum_i exp(lse_i)),
 * o = sum_i exp(lse_i - lse) o_i. With sinks o is that times 1 / (1 + exp(sink - lse)).
 */
typedef struct flash_combine_args {
    uint32_t struct_size; /**< sizeof(flash_combine_args_t) */
    int32_t device;       /**< FLASH_DEVICE_... */
    int32_t dtype;        /**< FLASH_DTYPE_... of the tensors that name none */
    uint32_t flags;       /**< FLASH_FLAG_BROADCAST or 0 */

    /* Partial results [n_partials][batch, seqlen_q, n_heads, d_head]: from o_partial.data on,
     * stride_partial elements from one to the next, or, where o_partials is given, from its
     * pointers on, n_partials of them in memory of the device, which must stay as they are during
     * the call. The other strides are those of o_partial. */
    flash_tensor_t o_partial;
    int64_t stride_partial;
    const void *const *o_partials;

    /* Their LSE, fp32 [n_partials][batch, n_heads, seqlen_q], in the same two ways. The strides of
     * batch, head and seq all 0: each is contiguous, and where lse_partial_stride is 0 too, one
     * follows the other. */
    const float *lse_partial;
    const float *const *lse_partials;
    int64_t lse_partial_stride; /**< from one to the next; not used with lse_partials */
    int64_t lse_partial_stride_batch;
    int64_t lse_partial_stride_head;
    int64_t lse_partial_stride_seq;

    /* [batch, seqlen_q, n_heads, d_head]; must not overlap lse. It may be one of the partial
     * results, merged in place: the same pointer, strides and type. Any other overlap is not
     * allowed; in lists it is looked for only where they are in memory of the host. */
    flash_tensor_t o;
    float *lse; /**< [batch, n_heads, seqlen_q]; NULL: not wanted; may be one of the partial LSE,
                   likewise */
    int64_t lse_stride_batch; /**< all three 0: contiguous */
    int64_t lse_stride_head;
    int64_t lse_stride_seq;

    int64_t n_partials; /**< 0: o = 0, lse = -infinity */
    int64_t batch;
    int64_t seqlen_q;
    int64_t n_heads; /**< at least 1 */
    int64_t d_head;  /**< of o: flash_forward_args_t.d_head_v where that is not 0; at least 1 */

    const flash_executor_t *executor; /**< as in flash_forward_args_t */

    /* Attention sinks [n_heads], as in flash_forward_args_t; NULL: none. They join o once, after
     * all partial results, which must be without them; lse is without them. Must not overlap o or
     * lse. */
    const float *sinks;
} flash_combine_args_t;

#define FLASH_COMBINE_ARGS_INIT                                                                    \
    {                                                                                              \
        FLASH_SIZEOF_(flash_combine_args_t), 0, 0, 0, FLASH_TENSOR_INIT, 0, FLASH_NULL_,           \
            FLASH_NULL_, FLASH_NULL_, 0, 0, 0, 0, FLASH_TENSOR_INIT, FLASH_NULL_, 0, 0, 0, 0, 0,   \
            0, 0, 0, FLASH_NULL_, FLASH_NULL_                                                      \
    }

/**
 * Merges partial results. A row of one with an LSE of -infinity saw no key: it has no weight, and
 * its o_partial is not looked at. stream is as in flash_forward(). Errors, all before anything is
 * written: INVALID_ARGUMENT, UNSUPPORTED, NO_DEVICE, OUT_OF_MEMORY, CUDA.
 */
FLASH_API flash_status_t flash_combine(const flash_combine_args_t *args, flash_stream_t stream);

/* ---------------------------------------------------------------------------------------------
 * Quantising Q, K and V to e4m3
 * --------------------------------------------------------------------------------------------- */

/** Bits of flash_quantise_args_t.flags, beside FLASH_FLAG_BROADCAST, which is about x. */
enum flash_quantise_flag {
    FLASH_QUANTISE_TOKENS = 256,     /**< a scale for each token and head: Q's q_token_scale */
    FLASH_QUANTISE_MINUS_MEAN = 512, /**< each column of a head less its mean over the sequence */
    FLASH_QUANTISE_HADAMARD = 1024   /**< the columns of a head are turned by a Hadamard matrix */
};

/**
 * Experimental, with the call. The arguments of a call that quantises one of Q, K and V of fp16,
 * bf16 or fp32 to e4m3, with scales that make the largest finite magnitude the largest code, 448.
 * An element that is not finite becomes NaN, of which the scale knows nothing; nothing is cut off.
 * Where all is 0, the scale is 1, and it is at least 2^-126.
 *
 * FLASH_QUANTISE_MINUS_MEAN is for K: all scores of a query change by the same number, so that the
 * softmax, and O, stay what they are without softcap, and LSE loses softmax_scale * q . mean. Means
 * are of the finite elements.
 *
 * FLASH_QUANTISE_HADAMARD is for Q and K, both: the matrix is orthogonal, so that no score changes,
 * and it spreads large columns over the others. It turns as many columns together as the largest
 * power of two that divides d_head has, at most 256; NaN spreads over them. The mean is taken off
 * before.
 */
typedef struct flash_quantise_args {
    uint32_t struct_size; /**< sizeof(flash_quantise_args_t) */
    int32_t device;       /**< as in flash_forward_args_t; the memory of all pointers is its own */
    int32_t reserved32;   /**< 0 */
    uint32_t flags;       /**< FLASH_QUANTISE_..., FLASH_FLAG_BROADCAST */
    flash_tensor_t x;     /**< [batch, seqlen, n_heads, d_head], or ragged [total, n_heads, d_head];
                             x.dtype is fp16, bf16 or fp32 */
    flash_tensor_t codes; /**< as x, of e4m3, which dtype 0 stands for, too; must not overlap x */
    /* fp32, contiguous: [batch, n_scales], or with FLASH_QUANTISE_TOKENS [batch, seqlen, n_heads],
     * ragged [total, n_heads]. It is written. */
    float *scale;
    float *mean; /**< [batch, n_heads, d_head], contiguous, written with FLASH_QUANTISE_MINUS_MEAN;
                    else NULL */
    /* Ragged batches, as in flash_forward(): batch + 1 ascending values from 0 on. NULL: none. */
    const int32_t *cu_seqlens;
    int64_t batch;
    int64_t seqlen;   /**< with cu_seqlens: no sequence is longer */
    int64_t n_heads;  /**< at least 1 */
    int64_t n_scales; /**< scales of a batch entry: n_heads / n_scales heads beside each other share
                         one, as those of Q do that have a K/V head in common; 0: n_heads */
    int64_t d_head;   /**< at least 1 */
    const flash_executor_t *executor; /**< as in flash_forward_args_t */
    uint64_t reserved[4];             /**< 0 */
} flash_quantise_args_t;

#define FLASH_QUANTISE_ARGS_INIT                                                                   \
    {                                                                                              \
        FLASH_SIZEOF_(flash_quantise_args_t), 0, 0, 0, FLASH_TENSOR_INIT, FLASH_TENSOR_INIT,       \
            FLASH_NULL_, FLASH_NULL_, FLASH_NULL_, 0, 0, 0, 0, 0, FLASH_NULL_, {                   \
            0, 0, 0, 0                                                                             \
        }                                                                                          \
    }

/**
 * Quantises. stream is as in flash_forward(): CPU calls return when all is written, CUDA calls are
 * enqueued, read no device memory on the host, and may be captured. Codes and scales are the same
 * bits on all of them, given the same means: sums in fp64, rounded to fp32, which devices add up in
 * an order of their own. Errors: INVALID_ARGUMENT, UNSUPPORTED, NO_DEVICE, CUDA.
 */
FLASH_API flash_status_t flash_quantise(const flash_quantise_args_t *args, flash_stream_t stream);

/* ---------------------------------------------------------------------------------------------
 * Appending to a cache of K and V
 * ------------------------------------------------------------------------------------------- */

/** Bits of flash_rotary_t.flags. */
enum flash_rotary_flag {
    /* Element 2 i of a head turns with element 2 i + 1 (GPT-J). Without the flag element i turns
     * with element i + rotary_dim / 2 (GPT-NeoX, Llama). */
    FLASH_ROTARY_INTERLEAVED = 1,
    /* Every query of a sequence turns to the position of its first one. */
    FLASH_ROTARY_Q_AT_START = 2
};

/**
 * A rotary position embedding (Su et al., arXiv 2104.09864): flash_kv_append_args_t.rotary. At
 * position p the pair number i of a head, (x, y), becomes
 *     (x cos[p][i] - y sin[p][i], x sin[p][i] + y cos[p][i]).
 * The first rotary_dim elements of a head are pairs; the others stay as they are. Products and sums
 * are of fp32, and each result is rounded once.
 *
 * On the CPU a position outside of 0 ... n_positions - 1 is refused; on a CUDA device, where the
 * call cannot look, the nearest row of the tables counts. The arrays are in memory of the device;
 * this struct is always in memory of the host, and is read only during the call.
 */
typedef struct flash_rotary {
    uint32_t struct_size; /**< sizeof(flash_rotary_t) */
    int32_t dtype;        /**< FLASH_DTYPE_... of cos and sin: fp16, bf16 or fp32; 0: the call's */
    uint32_t flags;       /**< FLASH_ROTARY_... */
    int32_t reserved32;   /**< 0 */
    const void *cos;      /**< [n_positions, rotary_dim / 2], contiguous along the last axis */
    const void *sin;      /**< shaped as cos */
    int64_t stride_position; /**< elements from one position to the next, in both tables */
    int64_t n_positions;     /**< at least 1 */
    int64_t rotary_dim;      /**< even, at least 2, at most d_head */
    /* The position of each token, at its index in k_new; q must then have as many tokens, and the
     * same positions. NULL: a token's position is that of its sequence's first new token, plus its
     * own place among the new ones (or among the queries). */
    const int64_t *positions;
    /* [batch]: the position of the first new token, and of the first query, of each sequence.
     * NULL: seqused_k. Not together with positions. */
    const int32_t *start;
} flash_rotary_t;

#define FLASH_ROTARY_INIT                                                                          \
    {                                                                                              \
        FLASH_SIZEOF_(flash_rotary_t), 0, 0, 0, FLASH_NULL_, FLASH_NULL_, 0, 0, 0, FLASH_NULL_,    \
            FLASH_NULL_                                                                            \
    }

/**
 * The arguments of a call that writes new tokens of K and V into a cache, and turns them and Q to
 * their positions on the way. The new tokens of the whole call are at most 2^31 - 1, and so are
 * twice the elements of a token of K, and of V.
 *
 * Where a token goes: new token i of sequence b becomes key seqused_k[b] + i of that sequence,
 * which paging (or the contiguous cache) finds as in flash_forward(). Or slot_mapping names a place
 * for each token: slot s is token s % page_size of page s / page_size, and a negative one says that
 * the token is padding, which is not written. No two tokens may have the same place.
 *
 * Element types: k_new and v_new have one type, and k and v have one, or on the CPU any two of
 * fp16, bf16, fp32, Q8_0 and Q4_0. Values of fp16, bf16 and fp32 are rounded once to the type of
 * the cache, to the nearest element (the even one of two). Into a cache of e4m3 go value * (1 /
 * scale), in fp32, with quant's scales; what is further than 448 from 0, infinity included, becomes
 * 448 or -448. New tokens of e4m3 go only into a cache of e4m3, and are taken to have its scales
 * already; where they turn, what they become is rounded to e4m3 again. A value that neither turns
 * nor changes its type keeps its bits. Q and q_out are of fp16, bf16, fp32 or e4m3, each by itself;
 * a q_out of e4m3 has the scale of q, or none.
 *
 * A cache of latent tokens (FLASH_DTYPE_LATENT_E4M3) is k, of d_head 576, without v and rotary.
 * Each 128 of the first 512 columns get a scale, the largest magnitude / 448, or 1 where that is 0
 * (NaN does not count), and become value / scale; the others become bf16. On CUDA devices tokens
 * must lie at 16-byte aligned addresses.
 *
 * Each 32 values for a cache of quantised blocks (FLASH_QUANT_BLOCK, on the CPU), turned first
 * where rotary turns them, become a block as ggml's reference makes it, all in fp32. The scale d is
 * stored as fp16, and 1 / d is that of d before it was rounded (0 where d is 0):
 *
 *     Q8_0   d = the largest magnitude / 127;  element = value * (1 / d), to the nearest integer,
 *            halves away from 0
 *     Q4_0   d = the first value of the largest magnitude / -8;
 *            element = min(15, floor(value * (1 / d) + 8.5))
 *
 * A block with an infinity or NaN among its values gets a scale of NaN, so that all of it is NaN.
 */
typedef struct flash_kv_append_args {
    uint32_t struct_size; /**< sizeof(flash_kv_append_args_t) */
    int32_t device;       /**< FLASH_DEVICE_... */
    int32_t dtype;        /**< FLASH_DTYPE_... of the tensors that name none */
    uint32_t flags;       /**< FLASH_FLAG_BROADCAST, FLASH_FLAG_PAGE_SCALES or 0 */

    /* [batch, seqlen_new, n_heads_kv, d_head], or [seqlen_new, n_heads_kv, d_head] with
     * cu_seqlens_new; v_new and v have heads of d_head_v elements. v_new.data and v.data both NULL:
     * the cache has no V of its own. */
    flash_tensor_t k_new;
    flash_tensor_t v_new;
    /* The cache, which is written: [batch, seqlen_k, n_heads_kv, d_head], or with paging [n_pages,
     * page_size, n_heads_kv, d_head]. Must not overlap any input, nor k overlap v; pools of pages
     * may share memory as long as no page of k that is written is one of v. */
    flash_tensor_t k;
    flash_tensor_t v;

    /* [batch, seqlen_q, n_heads, d_head], or [seqlen_q, n_heads, d_head] with cu_seqlens_q: queries
     * that rotary turns, into q_out, or in place where q_out.data is NULL. */
    flash_tensor_t q;
    flash_tensor_t q_out; /**< shaped as q; apart from every other tensor, or q itself */

    /* Ragged batches, as in flash_forward(): batch + 1 ascending values from 0 on, in memory of the
     * device. Tokens of the tensor behind the last value are not looked at. */
    const int32_t *cu_seqlens_new;
    const int32_t *cu_seqlens_q;
    /* [batch]: the keys that each sequence has so far. In memory of the device. Needed without
     * slot_mapping. */
    const int32_t *seqused_k;
    /* [batch]: receives the keys that each sequence has then, the seqused_k of the flash_forward()
     * that follows. In memory of the device, apart from every other array; NULL: not wanted. Not
     * with slot_mapping. */
    int32_t *seqused_k_out;
    /* The slot of each token, at its index in k_new. In memory of the device. It needs paging's
     * page_size and n_pages, without a page_table and page_rows. NULL: seqused_k says where. */
    const int64_t *slot_mapping;

    int64_t batch;
    int64_t seqlen_new; /**< of each sequence; with cu_seqlens_new the tokens of the whole tensor */
    int64_t seqlen_k;   /**< of the contiguous cache; with paging no sequence is longer, 0: it has
                           room for what its pages hold */
    int64_t seqlen_q;   /**< of each sequence; with cu_seqlens_q the tokens of the whole tensor */
    int64_t n_heads;    /**< of Q; at least 1 where seqlen_q is not 0 */
    int64_t n_heads_kv; /**< at least 1 */
    int64_t d_head;     /**< at least 1 */

    const flash_paging_t *paging;     /**< NULL: the cache is contiguous */
    const flash_rotary_t *rotary;     /**< NULL: nothing turns; seqlen_q must be 0 */
    const flash_quant_t *quant;       /**< scales of a cache of e4m3, with FLASH_FLAG_PAGE_SCALES of
                                           its pages; NULL: every scale is 1 */
    const flash_executor_t *executor; /**< as in flash_forward_args_t */
    int64_t d_head_v;                 /**< head dimension of V; 0: d_head */
} flash_kv_append_args_t;

#define FLASH_KV_APPEND_ARGS_INIT                                                                  \
    {                                                                                              \
        FLASH_SIZEOF_(flash_kv_append_args_t), 0, 0, 0, FLASH_TENSOR_INIT, FLASH_TENSOR_INIT,      \
            FLASH_TENSOR_INIT, FLASH_TENSOR_INIT, FLASH_TENSOR_INIT, FLASH_TENSOR_INIT,            \
            FLASH_NULL_, FLASH_NULL_, FLASH_NULL_, FLASH_NULL_, FLASH_NULL_, 0, 0, 0, 0, 0, 0, 0,  \
            FLASH_NULL_, FLASH_NULL_, FLASH_NULL_, FLASH_NULL_, 0                                  \
    }

/**
 * Appends to a cache. stream is as in flash_forward(): on a CUDA device one kernel is enqueued, or
 * two where V has another head dimension than K, and the call can be captured in a CUDA graph;
 * lengths, tables, slots, positions and scales are read when it runs. There, a token that has no
 * place (beyond the capacity, a page id or a slot that is none) is not written, and nothing else is
 * either in its stead; seqused_k_out counts it all the same. On the CPU it is refused. Errors, all
 * before anything is written: INVALID_ARGUMENT, UNSUPPORTED, NO_DEVICE, OUT_OF_MEMORY, CUDA.
 */
FLASH_API flash_status_t flash_kv_append(const flash_kv_append_args_t *args, flash_stream_t stream);

#ifdef __cplusplus
}
#endif

#endif
