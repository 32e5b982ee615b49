/*
 * Does what a debugger does to start a program: the child of vfork(2) asks to be traced, restores
 * its signal mask and executes the program. A child that stopped before that would stop for ever,
 * because its parent waits for the exec.
 */
#include "check.h"
#include <sys/ptrace.h>
#include <sys/wait.h>

static void starts_a_traced_program(void)
{
	char *arguments[] = {"true", NULL};
	sigset_t mask;
	pid_t child;
	int status;

	sigemptyset(&mask);
	child = vfork();
	if (child == 0) {
		if (ptrace(PTRACE_TRACEME, 0, 0, 0) == 0 && sigprocmask(SIG_SETMASK, &mask, NULL) == 0)
			execvp("true", arguments);
		_exit(9);
	}
	HOLDS(child > 0);
	/* The first stop is that of the exec. Later ones are signals, which the program gets. */
	EQUAL(waitpid(child, &status, 0), child);
	HOLDS(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
	HOLDS(ptrace(PTRACE_CONT, child, 0, 0) == 0);
	while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
		HOLDS(ptrace(PTRACE_CONT, child, 0, WSTOPSIG(status)) == 0);
	HOLDS(WIFEXITED(status));
	EQUAL(WEXITSTATUS(status), 0);
}

int main(int count, char **arguments)
{
	static const struct check checks[] = {
		{"starts a traced program", starts_a_traced_program},
	};

	return RUN(checks, count, arguments);
}
