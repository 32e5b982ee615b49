/*
 * Makes a child without signal handlers, as posix_spawn of glibc 2.38 and later does: by clone3
 * with CLONE_CLEAR_SIGHAND, or by fork where there is no clone3. The child blocks and unblocks
 * signals, and executes a program.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL
#endif

static pid_t child_without_handlers(void)
{
	struct clone_args arguments = { .flags = CLONE_CLEAR_SIGHAND, .exit_signal = SIGCHLD };
	pid_t child = syscall(SYS_clone3, &arguments, sizeof arguments);

	return child == -1 && errno == ENOSYS ? fork() : child;
}

int main(void)
{
	int status;
	pid_t child = child_without_handlers();

	if (child == 0) {
		sigset_t all, before;

		sigfillset(&all);
		if (sigprocmask(SIG_SETMASK, &all, &before) || sigprocmask(SIG_SETMASK, &before, NULL))
			_exit(1);
		execl("/bin/sh", "sh", "-c", "exit 42", NULL);
		_exit(2);
	}
	if (child == -1 || waitpid(child, &status, 0) != child) {
		perror("child");
		return 1;
	}
	if (WIFSIGNALED(status))
		printf("killed by signal %d\n", WTERMSIG(status));
	else
		printf("exited with %d\n", WEXITSTATUS(status));
	return 0;
}
