/*
 * A kernel family is one constant struct. Code that treats families differently calls its
 * functions, and never compares which family it has. CPU families are in cpu/family.c, CUDA
 * families in a file each, as cuda/sm80/sm80.c; the list is in codegen/facts.py.
 */
#ifndef FLASH_CONFIG_FAMILY_H
#define FLASH_CONFIG_FAMILY_H

#include "config/facts.h"
#include "core/device.h"
#include "core/problem.h"
#include "flashattn.h"

/* A row is compared by this with others of its family that serve with the same d_head and features.
 * Less is better, and the first field counts most. */
typedef struct family_rank {
    int64_t without_strategies; /* minus the strategies that always pay */
    int64_t time;               /* estimated, in any unit; 0 if it must not decide */
    int64_t preference;
    int64_t passes; /* over K and V, if the time goes into reading them; else 0 */
} family_rank_t;

/* A kernel is run through these functions. The device is that of the problem. */
typedef struct family_calls {
    /* Returns the bytes of workspace that the kernel gains by, at the present number of threads. */
    flash_status_t (*workspace)(const flash_kernel_t *kernel, const problem_t *problem,
                                const device_t *device, uint64_t *size);
    /* Returns the least bytes that it can do with. NULL: it must have all of the above. */
    flash_status_t (*least_workspace)(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device, uint64_t *size);
    /* Does what the first launch would do once. */
    flash_status_t (*prepare)(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device);
    /* Returns WORKSPACE_TOO_SMALL or INVALID_ARGUMENT unless the problem's workspace suffices. */
    flash_status_t (*check_workspace)(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device);
    /* Computes or enqueues the problem, which has output and checked data. */
    flash_status_t (*launch)(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream);
    /* Does the same with a row's second kernel, dq_of_ds. NULL: the family's rows have none. */
    flash_status_t (*launch_dq_of_ds)(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device, flash_stream_t stream);
} family_calls_t;

/* The part of a batch that a family's kernels are for, where two kernels share one. */
typedef enum family_part { FAMILY_NO_PART, FAMILY_DECODE_PART, FAMILY_FORWARD_PART } family_part_t;

enum { FAMILY_PARTS_SIZE = 128 };

/* How a family computes one operation (FLASH_OP_...), and for what. */
typedef struct family_op {
    /* Checks the rules between a configuration's fields; the rules of single fields hold. NULL if
     * there are none. Returns INVALID_CONFIG with the broken rule. */
    flash_status_t (*check)(const flash_config_t *config);
    /* Returns why a kernel that fits by type, d_head and features cannot run this problem on the
     * device; NULL if it can. NULL as the function: there are no such obstacles. */
    const char *(*obstacle)(const flash_config_t *config, const problem_t *problem,
                            const device_t *device);

    family_rank_t (*rank)(const flash_config_t *config, const problem_t *problem,
                          const device_t *device);
    /* Writes the names of the rows of other families that compute a problem for a row of this
     * family, with a separator before them. NULL: the row has its own kernel. */
    void (*name_parts)(const flash_config_t *config, const problem_t *problem,
                       const device_t *device, char text[FAMILY_PARTS_SIZE]);
    /* Says whether selection should pass over the family's rows for a problem, because rows of
     * other families are better for it, or these do not serve it. NULL: never. */
    bool (*declines)(const problem_t *problem, const device_t *device);
    /* Says the same of a row that fits, for another row of the family. NULL: never. */
    bool (*row_declines)(const flash_config_t *config, const problem_t *problem,
                         const device_t *device);
    family_part_t part;

    const family_calls_t *calls;
    const struct cpu_operation *cpu; /* cpu/operation.h; NULL: a CUDA family */
    const struct cuda_family *cuda;  /* cuda/family.h; NULL: a CPU family, or one without kernels of
                                        its own */
} family_op_t;

typedef struct family {
    const family_facts_t *facts;

    /* Returns what a processor lacks for the family, as "AVX512 kernels need ..."; NULL if nothing.
     * NULL as the function: a CUDA family, whose facts say it. */
    const char *(*lacks)(const device_t *device);
    /* Returns what the reason of a choice of this family should add, with a separator before it, or
     * "". NULL: there is never anything to add. */
    const char *(*remark)(const problem_t *problem, const device_t *device);

    const family_op_t *ops[CONFIG_N_OPS]; /* by FLASH_OP_...; NULL: no such kernels */
} family_t;

#define DECLARE_FAMILY(NAME, name) extern const family_t family_##name;
FLASH_CONFIG_ARCHS(DECLARE_FAMILY)
#undef DECLARE_FAMILY

extern const family_t *const family_list[];
extern const int32_t family_list_count;

/* Finds the family of a FLASH_ARCH_..., or returns `refusal` if there is none. */
flash_status_t family_require(int32_t arch, flash_status_t refusal, const family_t **family);

/* Returns what the device lacks for kernels of the family, its kind included; NULL if nothing. */
const char *family_lack(const family_t *family, const device_t *device);

#endif
