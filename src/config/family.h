/*
 * Kernel families. A family is one constant struct, and whoever has to treat families differently
 * asks it: nothing else looks at which family it has in hand. CPU families are in cpu/family.c,
 * CUDA families in a file each (cuda/sm80.c, cuda/sm90.c); the list is that of codegen/facts.py.
 */
#ifndef FLASH_CONFIG_FAMILY_H
#define FLASH_CONFIG_FAMILY_H

#include "config/facts.h"
#include "core/device.h"
#include "core/problem.h"
#include "flashattn.h"

enum {
#define COUNT_OP(name, word) FAMILY_OP_##name,
    FLASH_CONFIG_OPS(COUNT_OP)
#undef COUNT_OP
        FAMILY_N_OPS
};

/* A row among those of its family that serve with the same d_head and features; less is better, the
 * first field is the most important. */
typedef struct family_rank {
    int64_t without_strategies; /* that always pay */
    int64_t time;               /* estimated, in any unit; 0 where the choice must not look at it */
    int64_t preference;
    int64_t passes; /* over K and V, where reading them is what takes time; else 0 */
} family_rank_t;

/* What a call does with a kernel, whose device the problem's is. */
typedef struct launch_ops {
    /* Bytes of workspace: what the kernel gains by, at the present number of threads. */
    flash_status_t (*workspace)(const flash_kernel_t *kernel, const problem_t *problem,
                                const device_t *device, uint64_t *size);
    /* Does what the first launch would do once. */
    flash_status_t (*prepare)(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device);
    /* WORKSPACE_TOO_SMALL, or INVALID_ARGUMENT, unless the problem's workspace does for the kernel.
     */
    flash_status_t (*check_workspace)(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device);
    /* Computes or enqueues the problem, which has output and checked data. */
    flash_status_t (*launch)(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream);
} launch_ops_t;

/* Which sequences of a batch a family's kernels are for where two kernels share one: those of few
 * queries, or the others. */
typedef enum family_part { FAMILY_NO_PART, FAMILY_DECODE_PART, FAMILY_FORWARD_PART } family_part_t;

enum { FAMILY_PARTS_SIZE = 128 };

typedef struct family {
    const family_facts_t *facts;

    /* The rules among a configuration's fields, each of which keeps its own. NULL: there are none.
     * INVALID_CONFIG with the broken rule. */
    flash_status_t (*check)(const flash_config_t *config);
    /* What a device of the family's kind lacks, as "AVX512 kernels need ..."; NULL: nothing. */
    const char *(*lacks)(const device_t *device);
    /* Why a kernel that fits by type, d_head and features cannot run this problem there; NULL: it
     * can. A family without the function has no such obstacles. */
    const char *(*obstacle)(const flash_config_t *config, const problem_t *problem,
                            const device_t *device);

    /* Families with more of it are selected first, on a device that lacks nothing. */
    int32_t (*priority)(const device_t *device);
    family_rank_t (*rank)(const flash_config_t *config, const problem_t *problem,
                          const device_t *device);
    /* What the reason of a choice of this family should add, with a separator before it; "" where
     * there is nothing to say. NULL: there never is. */
    const char *(*remark)(const problem_t *problem, const device_t *device);
    /* Names the rows of other families that compute a problem which a row of this family serves,
     * with a separator before it. NULL: the row has a kernel of its own. */
    void (*name_parts)(const flash_config_t *config, const problem_t *problem,
                       const device_t *device, char text[FAMILY_PARTS_SIZE]);
    /* Whether selection should pass a row over for a problem that it may serve: another one suits
     * it, of whatever family. NULL: never. */
    bool (*declines)(const flash_config_t *config, const problem_t *problem,
                     const device_t *device);
    family_part_t part;

    const launch_ops_t *ops[FAMILY_N_OPS]; /* by FLASH_OP_...; NULL: it has no such kernels */
    const struct cuda_family *cuda; /* cuda/family.h; NULL: a CPU family, or one whose rows are
                                       computed by rows of others */
} family_t;

#define DECLARE_FAMILY(NAME, name) extern const family_t family_##name;
FLASH_CONFIG_ARCHS(DECLARE_FAMILY)
#undef DECLARE_FAMILY

/* Finds the family of a FLASH_ARCH_..., or refuses with this status. */
flash_status_t family_require(int32_t arch, flash_status_t refusal, const family_t **family);

/* Returns what the device lacks to run kernels of the family, its kind included; NULL: nothing. */
const char *family_lack(const family_t *family, const device_t *device);

#endif
