/*
 * Checks that need a process of their own run in child processes.
 */
#define _GNU_SOURCE
#include "child.h"

#include "support.h"

#include <sys/wait.h>
#include <unistd.h>

void check_in_child(bool (*check)(void *argument), void *argument) {
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(CHILD_SECONDS);
        const bool passed = check(argument);
        fflush(NULL);
        _exit(passed ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        fail_msg("the child died of signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    assert_int_equal(WEXITSTATUS(status), 0);
}
