/*
 * This program checks the micro-kernels of every instruction set that the machine has, each against
 * a plain reference on random problems, or times them beside it. docs/adding-a-kernel.md says how
 * to run and extend it.
 */
#include "common_set.h"
#include "cpu/features.h"
#include "run.h"
#include "sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] =
    "usage: test_kernels [--seed N] [--draws N] [--only PART] [--bench [--rows N]]\n"
    "\n"
    "  --seed N     the random problems of this seed (1)\n"
    "  --draws N    problems of each candidate and type (150)\n"
    "  --only PART  candidates whose name, SET/CANDIDATE/TYPE, has this part\n"
    "  --bench      times the reference and the candidate instead, one call each\n"
    "  --rows N     rows of Q, S, P and O that are timed (4); d_head is 128, keys are 64\n";

static void refuse(const char *option, const char *why) {
    fprintf(stderr, "%stest_kernels: %s %s\n", USAGE, option, why);
    exit(2);
}

static int64_t number_of(const char *option, const char *text, int64_t most) {
    char *end = NULL;
    const long long n = text != NULL ? strtoll(text, &end, 10) : 0;
    char message[80];
    if (text == NULL || *end != '\0' || n < 1 || n > most) {
        snprintf(message, sizeof message, "wants a number of 1 to %lld", (long long)most);
        refuse(option, message);
    }
    return n;
}

static run_options_t parse(int argc, char **argv) {
    run_options_t options = {.seed = 1, .draws = 150, .rows = 4};
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(option, "--help") == 0) {
            printf("%s", USAGE);
            exit(0);
        }
        if (strcmp(option, "--bench") == 0) {
            options.bench = true;
            continue;
        }
        if (strcmp(option, "--seed") == 0)
            options.seed = (uint64_t)number_of(option, value, INT64_MAX);
        else if (strcmp(option, "--draws") == 0)
            options.draws = number_of(option, value, 1000000);
        else if (strcmp(option, "--rows") == 0)
            options.rows = number_of(option, value, 24);
        else if (strcmp(option, "--only") == 0 && value != NULL)
            options.only = value;
        else
            refuse(option, "is no option, or lacks its value");
        i++;
    }
    return options;
}

int main(int argc, char **argv) {
    const run_options_t options = parse(argc, argv);
    const uint32_t isa = cpu_features_isa();
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* whole lines, however the program ends */
    run_watch_addresses();
    if (options.bench)
        run_print_heading();
    int failed = run_set(&common_set, &options);
    for (size_t i = 0; SETS[i] != NULL; i++) {
        const instruction_set_t *set = SETS[i];
        if ((set->isa & isa) == set->isa && (!set->has_tiles || cpu_features_permit_amx()))
            failed += run_set(set, &options);
        else
            printf("%s: the processor does not have it\n", set->name);
    }
    if (!options.bench)
        printf("seed %llu: %d candidates failed\n", (unsigned long long)options.seed, failed);
    return failed == 0 ? 0 : 1;
}
