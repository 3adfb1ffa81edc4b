/*
 * This file counts processors by the affinity mask and by control groups at /sys/fs/cgroup, of
 * version 2 (cpu.max) and version 1 (cpu.cfs_quota_us); see Documentation/admin-guide/cgroup-v2.rst
 * and Documentation/scheduler/sched-bwc.rst of Linux.
 */
#define _GNU_SOURCE
#include "cpu/count.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 1024 };

/* Reads the first line of a file without its end; false if there is none or it is longer. */
static bool read_line(const char *path, char line[LINE_BYTES]) {
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    const bool is_read = fgets(line, LINE_BYTES, file) != NULL;
    fclose(file);
    char *end = is_read ? strchr(line, '\n') : NULL;
    if (end != NULL)
        *end = '\0';
    return end != NULL;
}

static int32_t less(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t processors(int64_t quota, int64_t period) {
    if (quota <= 0 || period <= 0)
        return INT32_MAX;
    const int64_t n = quota / period + (quota % period != 0);
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

/* ---- The quota of one group ---- */

/* The file holds microseconds of processor time per period: "max 100000" or "150000 100000". */
static int32_t quota_of_v2(const char *folder) {
    char path[LINE_BYTES], line[LINE_BYTES];
    int64_t quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (!read_line(path, line) || sscanf(line, "%" SCNd64 " %" SCNd64, &quota, &period) != 2)
        return INT32_MAX;
    return processors(quota, period);
}

static bool read_number(const char *folder, const char *name, int64_t *number) {
    char path[LINE_BYTES], line[LINE_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return read_line(path, line) && sscanf(line, "%" SCNd64, number) == 1;
}

/* A quota of -1 stands for none. */
static int32_t quota_of_v1(const char *folder) {
    int64_t quota, period;
    if (!read_number(folder, "cpu.cfs_quota_us", &quota) ||
        !read_number(folder, "cpu.cfs_period_us", &period))
        return INT32_MAX;
    return processors(quota, period);
}

/* ---- The groups of the process ---- */

/* Returns the least quota of a group and of the groups around it. In a container the path may be
 * that of the host; then only the mounted folder itself can be seen. */
static int32_t least_quota(const char *mount, const char *group,
                           int32_t (*quota_of)(const char *)) {
    char folder[LINE_BYTES];
    const int length = snprintf(folder, sizeof folder, "%s%s", mount, group);
    if (length < 0 || (size_t)length >= sizeof folder)
        return INT32_MAX;
    int32_t n = INT32_MAX;
    for (char *end = folder + length; end >= folder + strlen(mount); end--)
        if (*end == '\0' || *end == '/') {
            *end = '\0';
            n = less(n, quota_of(folder));
        }
    return n;
}

static bool has_word(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* Reads a line of /proc/self/cgroup: "0::/group" (version 2), "4:cpu,cpuacct:/group" (version
 * 1). */
static int32_t quota_of_line(const char *root, char *line) {
    char mount[LINE_BYTES];
    char *controllers = strchr(line, ':');
    char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (group == NULL)
        return INT32_MAX;
    *group++ = '\0';
    controllers++;
    const bool is_v2 = *controllers == '\0';
    if (!is_v2 && !has_word(controllers, "cpu"))
        return INT32_MAX;
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, is_v2 ? "" : "/cpu");
    return least_quota(mount, group, is_v2 ? quota_of_v2 : quota_of_v1);
}

int32_t cpu_quota(const char *root) {
    char line[LINE_BYTES];
    int32_t n = INT32_MAX;
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    if (file == NULL)
        return n;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        n = less(n, quota_of_line(root, line));
    }
    fclose(file);
    return n;
}

/* ---- The affinity mask ---- */

static int32_t count_affinity(void) {
    unsigned long mask[1024];
    cpu_set_t *set = (cpu_set_t *)mask;
    if (sched_getaffinity(0, sizeof mask, set) != 0)
        return 1;
    const int count = CPU_COUNT_S(sizeof mask, set);
    return count < 1 ? 1 : count;
}

int32_t cpu_count(const char *root) {
    const int errno_before = errno; /* files that are missing set it */
    const int32_t n = less(count_affinity(), cpu_quota(root));
    errno = errno_before;
    return n;
}
