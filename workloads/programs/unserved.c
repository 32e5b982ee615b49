/*
 * A program that usring serves executes a statically linked program in many ways: from fork and
 * vfork children, by posix_spawn, a shell, a descriptor or another thread.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { EXECS_IN_STORM = 20 };

extern char **environ;

static char *child_arguments[] = { "unserved_child", NULL };
static char *one_check[] = { "unserved_child", "finds no io_uring", NULL };

static void succeeds(pid_t child)
{
	int status;
	HOLDS(child > 0);
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

static void by_fork(void)
{
	pid_t child = fork();
	if (child == 0) {
		execv("./unserved_child", child_arguments);
		_exit(1);
	}
	succeeds(child);
}

static void by_vfork(void)
{
	pid_t child = vfork();
	if (child == 0) {
		execv("./unserved_child", child_arguments);
		_exit(1);
	}
	succeeds(child);
}

static void by_posix_spawn(void)
{
	pid_t child;
	EQUAL(posix_spawn(&child, "./unserved_child", NULL, NULL, child_arguments, environ), 0);
	succeeds(child);
}

/*
 * The children make only the check `executes`. They cannot check the inherited signal mask, because
 * a shell may change it.
 */
static void by_a_shell(void)
{
	EQUAL(system("./unserved_child executes && exec ./unserved_child executes"), 0);
}

static void by_descriptor(void)
{
	int file = open("./unserved_child", O_RDONLY | O_CLOEXEC);
	pid_t child = fork();

	HOLDS(file >= 0);
	if (child == 0) {
		syscall(SYS_execveat, file, "", one_check, environ, AT_EMPTY_PATH);
		_exit(1);
	}
	succeeds(child);
	close(file);
}

static void *execute(void *nothing)
{
	(void)nothing;
	execv("./unserved_child", one_check);
	_exit(1);
}

/*
 * A thread other than the main thread executes the program. With the exec it takes over the process
 * id.
 */
static void by_another_thread(void)
{
	pid_t child = fork();
	if (child == 0) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, execute, NULL) == 0)
			pthread_join(thread, NULL);
		_exit(1);
	}
	succeeds(child);
}

static void note(int signal)
{
	(void)signal;
}

/*
 * SIGWINCH arrives before, during and after each exec. This program has a handler for the signal.
 * In the new program the signal is ignored by default.
 */
static void under_a_storm_of_signals(void)
{
	HOLDS(signal(SIGWINCH, note) != SIG_ERR);
	for (int index = 0; index < EXECS_IN_STORM; index++) {
		pid_t child = fork();
		if (child == 0) {
			execv("./unserved_child", one_check);
			_exit(1);
		}
		int status;
		pid_t ended;
		while ((ended = waitpid(child, &status, WNOHANG)) == 0)
			EQUAL(kill(child, SIGWINCH), 0);
		EQUAL(ended, child);
		EQUAL(status, 0);
	}
}

static void has_no_tracer_and_no_child(void)
{
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");

	HOLDS(status != NULL);
	while (fgets(line, sizeof line, status) != NULL)
		HOLDS(strncmp(line, "TracerPid:", 10) != 0 || atoi(line + 10) == 0);
	fclose(status);
	EQUAL(waitpid(-1, NULL, WNOHANG | __WALL), -1);
	EQUAL(errno, ECHILD);
}

/* The exec must fail with the kernel's error, and the program must continue unchanged. */
static void that_fails(void)
{
	EQUAL(chmod("./unserved_busy", 0700), 0);
	int file = open("./unserved_busy", O_WRONLY | O_CLOEXEC);
	HOLDS(file >= 0);
	for (int index = 0; index < 3; index++) {
		EQUAL(execv("./unserved_busy", one_check), -1);
		EQUAL(errno, ETXTBSY);
		has_no_tracer_and_no_child();
	}
	close(file);
	EQUAL(chmod("./unserved_busy", 0600), 0);
	EQUAL(execv("./unserved_busy", one_check), -1);
	EQUAL(errno, EACCES);
	EQUAL(execv("./unserved_nothing", one_check), -1);
	EQUAL(errno, ENOENT);
	has_no_tracer_and_no_child();
	struct io_uring ring = new_ring(4, 0);
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_nop(sqe);
	EQUAL(result_of(&ring, sqe), 0);
	io_uring_queue_exit(&ring);
}

/*
 * Without ptrace(2) usring cannot install its handler in the new program, so it must refuse the
 * exec.
 */
static void in_a_sandbox(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	pid_t child = fork();

	if (child == 0) {
		EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
		EQUAL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
		EQUAL(execv("./unserved_child", one_check), -1);
		EQUAL(errno, ELIBBAD);
		has_no_tracer_and_no_child();
		_exit(0);
	}
	succeeds(child);
}

static const struct check checks[] = {
	{ "by fork", by_fork },
	{ "by vfork", by_vfork },
	{ "by posix_spawn", by_posix_spawn },
	{ "by a shell", by_a_shell },
	{ "by descriptor", by_descriptor },
	{ "by another thread", by_another_thread },
	{ "under a storm of signals", under_a_storm_of_signals },
	{ "that fails", that_fails },
	{ "in a sandbox", in_a_sandbox },
};

int main(int count, char **arguments)
{
	struct io_uring ring = new_ring(4, 0);
	struct rlimit limit;
	char text[32];
	sigset_t set;
	int status;

	EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
	snprintf(text, sizeof text, "%llu", (unsigned long long)limit.rlim_cur);
	EQUAL(setenv("UNSERVED_LIMIT", text, 1), 0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	EQUAL(sigprocmask(SIG_SETMASK, &set, NULL), 0);
	status = RUN(checks, count, arguments);
	io_uring_queue_exit(&ring);
	return status;
}
