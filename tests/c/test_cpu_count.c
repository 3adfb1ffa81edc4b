/*
 * The processors that a process may keep busy follow from its affinity mask and from the quota of
 * its control group, which files in a made tree give.
 */
#define _GNU_SOURCE
#include "cpu/count.h"
#include "support.h"

#include <ftw.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_FILES = 5 };

/* The files that a process finds in a system, and the processors that they amount to. */
typedef struct tree {
    const char *name;
    struct {
        const char *path; /* NULL: no more */
        const char *text;
    } files[MOST_FILES];
    int32_t quota;
} tree_t;

#define GROUPS "/proc/self/cgroup"
#define MOUNT  "/sys/fs/cgroup"

static const tree_t TREES[] = {
    {"no files", {{NULL, NULL}}, INT32_MAX},
    {"no quota", {{GROUPS, "0::/\n"}, {MOUNT "/cpu.max", "max 100000\n"}}, INT32_MAX},
    {"whole processors", {{GROUPS, "0::/\n"}, {MOUNT "/cpu.max", "300000 100000\n"}}, 3},
    {"a part is rounded up", {{GROUPS, "0::/\n"}, {MOUNT "/cpu.max", "250001 100000\n"}}, 3},
    {"less than one", {{GROUPS, "0::/\n"}, {MOUNT "/cpu.max", "10000 100000\n"}}, 1},
    {"a group of its own",
     {{GROUPS, "0::/user.slice/app\n"}, {MOUNT "/user.slice/app/cpu.max", "200000 50000\n"}},
     4},
    {"the group around it has less",
     {{GROUPS, "0::/user.slice/app\n"},
      {MOUNT "/user.slice/app/cpu.max", "800000 100000\n"},
      {MOUNT "/user.slice/cpu.max", "200000 100000\n"}},
     2},
    {"the path is the host's",
     {{GROUPS, "0::/docker/0123abcd\n"}, {MOUNT "/cpu.max", "200000 100000\n"}},
     2},
    {"version 1",
     {{GROUPS, "5:cpuset:/\n4:cpu,cpuacct:/app\n3:memory:/other\n"},
      {MOUNT "/cpu/app/cpu.cfs_quota_us", "150000\n"},
      {MOUNT "/cpu/app/cpu.cfs_period_us", "100000\n"}},
     2},
    {"version 1, cpu as the second name",
     {{GROUPS, "4:cpuacct,cpu:/\n"},
      {MOUNT "/cpu/cpu.cfs_quota_us", "500000\n"},
      {MOUNT "/cpu/cpu.cfs_period_us", "100000\n"}},
     5},
    {"version 1, no quota",
     {{GROUPS, "4:cpu:/\n"},
      {MOUNT "/cpu/cpu.cfs_quota_us", "-1\n"},
      {MOUNT "/cpu/cpu.cfs_period_us", "100000\n"}},
     INT32_MAX},
    {"other controllers of version 1 do not count",
     {{GROUPS, "4:cpuset,cpuacct:/\n"},
      {MOUNT "/cpu/cpu.cfs_quota_us", "100000\n"},
      {MOUNT "/cpu/cpu.cfs_period_us", "100000\n"}},
     INT32_MAX},
    {"both versions",
     {{GROUPS, "4:cpu:/\n0::/\n"},
      {MOUNT "/cpu/cpu.cfs_quota_us", "600000\n"},
      {MOUNT "/cpu/cpu.cfs_period_us", "100000\n"},
      {MOUNT "/unified/cpu.max", "100000 100000\n"}},
     6},
    {"files of something else",
     {{GROUPS, "0\n\n:\nx::\n0::/a\n"},
      {MOUNT "/cpu.max", "many\n"},
      {MOUNT "/a/cpu.max", "5 0\n"}},
     INT32_MAX},
};

/* ---- Making and removing trees ---- */

static void make_folders(char *path) {
    for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
}

static void make_file(const char *root, const char *path, const char *text) {
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    make_folders(whole);
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void make_tree(const tree_t *tree, char *root) {
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < MOST_FILES && tree->files[i].path != NULL; i++)
        make_file(root, tree->files[i].path, tree->files[i].text);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *place) {
    (void)status;
    (void)type;
    (void)place;
    return remove(path);
}

static void remove_tree(const char *root) {
    assert_int_equal(nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- Tests ---- */

static int32_t affinity(void) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

static void check(const tree_t *tree) {
    char root[] = "/tmp/flashattn-quota-XXXXXX";
    make_tree(tree, root);
    const int32_t quota = cpu_quota(root), count = cpu_count(root);
    remove_tree(root);
    const int32_t most = affinity();
    if (quota != tree->quota || count != (tree->quota < most ? tree->quota : most))
        fail_msg("%s: a quota of %d, not %d; %d processors", tree->name, quota, tree->quota, count);
}

TEST(quotas_are_read) {
    for (size_t i = 0; i < sizeof TREES / sizeof TREES[0]; i++)
        check(&TREES[i]);
}

/* The path is longer than any that is read. */
TEST(a_long_group_is_passed_over) {
    char root[] = "/tmp/flashattn-quota-XXXXXX", line[4096];
    memset(line, 'a', sizeof line);
    memcpy(line, "0::/", 4);
    line[sizeof line - 1] = '\0';
    assert_non_null(mkdtemp(root));
    make_file(root, GROUPS, line);
    assert_int_equal(cpu_quota(root), INT32_MAX);
    remove_tree(root);
}

TEST(the_default_number_of_threads_is_this_count) {
    unsetenv("FLASHATTN_NUM_THREADS");
    assert_int_equal(flash_num_threads(), cpu_count(""));
}
