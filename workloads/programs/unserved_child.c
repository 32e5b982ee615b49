/*
 * A statically linked program that a served program starts. usring cannot serve it. It must run as
 * on a kernel without io_uring, and must not notice usring in any other way. If it starts
 * dynamically linked programs, usring must serve those.
 *
 * UNSERVED_ERROR is the errno that io_uring_setup answers, UNSERVED_LIMIT the limit of open files.
 */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

enum { HIGH = 700 };

static volatile sig_atomic_t caught;

static int number_in(const char *variable)
{
	const char *text = getenv(variable);
	HOLDS(text != NULL);
	return atoi(text);
}

/*
 * The program must have inherited the mask and the limit, and must have neither a child nor a
 * tracer.
 */
static void inherits(void)
{
	sigset_t set;
	struct rlimit limit;
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");

	HOLDS(status != NULL);
	EQUAL(sigprocmask(SIG_BLOCK, NULL, &set), 0);
	HOLDS(sigismember(&set, SIGUSR2) && !sigismember(&set, SIGUSR1) && !sigismember(&set, SIGTERM));
	EQUAL(sigpending(&set), 0);
	HOLDS(!sigismember(&set, SIGCHLD));
	EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
	EQUAL(limit.rlim_cur, number_in("UNSERVED_LIMIT"));
	EQUAL(waitpid(-1, NULL, WNOHANG | __WALL), -1);
	EQUAL(errno, ECHILD);
	while (fgets(line, sizeof line, status) != NULL)
		HOLDS(strncmp(line, "TracerPid:", 10) != 0 || atoi(line + 10) == 0);
	fclose(status);
}

static void finds_no_io_uring(void)
{
	char parameters[120] = { 0 };
	int error = number_in("UNSERVED_ERROR");

	EQUAL(syscall(SYS_io_uring_setup, 8, parameters), -1);
	EQUAL(errno, error);
	EQUAL(syscall(SYS_io_uring_enter, 0, 0, 0, 0, NULL, 0), -1);
	EQUAL(errno, error);
	EQUAL(syscall(SYS_io_uring_register, 0, 0, NULL, 0), -1);
	EQUAL(errno, error);
}

/* The handler makes a call that traps. */
static void note(int signal)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	if (sigprocmask(SIG_BLOCK, &set, NULL) == 0)
		caught += signal;
}

static void handles_signals(void)
{
	struct sigaction action = { .sa_handler = note }, before;

	caught = 0;
	sigfillset(&action.sa_mask);
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	EQUAL(raise(SIGUSR1), 0);
	EQUAL(caught, SIGUSR1);
	EQUAL(sigaction(SIGUSR1, NULL, &before), 0);
	HOLDS(before.sa_handler == note && sigismember(&before.sa_mask, SIGTERM));
	EQUAL(syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, NULL, 8), -1);
	EQUAL(errno, EFAULT);
	EQUAL(syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 7), -1);
	EQUAL(errno, EINVAL);
	EQUAL(syscall(SYS_rt_sigaction, SIGKILL, &action, NULL, 8), -1);
	EQUAL(errno, EINVAL);
}

static void keeps_the_trap(void)
{
	struct sigaction action = { .sa_handler = SIG_IGN }, before = { .sa_handler = note };

	EQUAL(sigaction(SIGSYS, &action, &before), 0);
	HOLDS(before.sa_handler == SIG_DFL);
	action.sa_handler = SIG_DFL;
	EQUAL(sigaction(SIGSYS, &action, &before), 0);
	handles_signals();
}

static void blocks_signals(void)
{
	sigset_t all, before, now;

	caught = 0;
	sigfillset(&all);
	HOLDS(signal(SIGUSR1, note) != SIG_ERR);
	EQUAL(sigprocmask(SIG_SETMASK, &all, &before), 0);
	EQUAL(raise(SIGUSR1), 0);
	EQUAL(sigprocmask(SIG_SETMASK, NULL, &now), 0);
	HOLDS(sigismember(&now, SIGUSR1) && sigismember(&now, SIGTERM));
	EQUAL(caught, 0);
	/*
	 * The signal must be delivered in the call that unblocks it. All other signals stay
	 * blocked.
	 */
	sigdelset(&all, SIGUSR1);
	EQUAL(sigprocmask(SIG_SETMASK, &all, NULL), 0);
	EQUAL(caught, SIGUSR1);
	EQUAL(sigprocmask(SIG_SETMASK, &before, NULL), 0);
	EQUAL(sigprocmask(SIG_SETMASK, NULL, &now), 0);
	HOLDS(!sigismember(&now, SIGUSR1) && sigismember(&now, SIGUSR2));
	EQUAL(syscall(SYS_rt_sigprocmask, SIG_BLOCK, (void *)8, NULL, 8), -1);
	EQUAL(errno, EFAULT);
	EQUAL(syscall(SYS_rt_sigprocmask, 77, &all, NULL, 8), -1);
	EQUAL(errno, EINVAL);
}

/* In a served program these descriptor numbers would be usring's. Here the program may use them. */
static void uses_high_descriptors(void)
{
	int file = open("/proc/self/exe", O_RDONLY);
	unsigned char *bytes;

	HOLDS(file >= 0);
	EQUAL(dup2(file, HIGH), HIGH);
	EQUAL(dup3(HIGH, HIGH + 1, O_CLOEXEC), HIGH + 1);
	EQUAL(fcntl(HIGH, F_DUPFD, HIGH), HIGH + 2);
	bytes = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, HIGH, 0);
	HOLDS(bytes != MAP_FAILED);
	EQUAL(memcmp(bytes, "\177ELF", 4), 0);
	EQUAL(munmap(bytes, 4096), 0);
	EQUAL(close(HIGH), 0);
	EQUAL(close(HIGH), -1);
	EQUAL(errno, EBADF);
	EQUAL(close_range(HIGH + 1, ~0u, 0), 0);
	EQUAL(close(HIGH + 2), -1);
	EQUAL(close(-1), -1);
	close(file);
}

static void uses_the_kernels_aio(void)
{
	aio_context_t context = 0;
	struct timespec none = { 0 };
	struct io_event events[8];

	EQUAL(syscall(SYS_io_setup, 8, &context), 0);
	EQUAL(syscall(SYS_io_pgetevents, context, 0, 8, events, &none, NULL), 0);
	EQUAL(syscall(SYS_io_destroy, context), 0);
}

static void succeeds(pid_t child)
{
	int status;
	HOLDS(child > 0);
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

static void dies_by_a_signal_that_is_sent(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		raise(SIGSYS);
		_exit(0);
	}
	EQUAL(waitpid(child, &status, 0), child);
	HOLDS(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

static char *served[] = { "unserved_grandchild", "served", NULL };
static char *absent[] = { "unserved_grandchild", "absent", NULL };
static char *again[] = { "unserved_child", "finds no io_uring", NULL };

static void executes(void)
{
	pid_t child = fork();

	if (child == 0) {
		execv("./unserved_grandchild", served);
		_exit(1);
	}
	succeeds(child);
	child = vfork();
	if (child == 0) {
		execv("./unserved_grandchild", served);
		_exit(1);
	}
	succeeds(child);
	EQUAL(posix_spawn(&child, "./unserved_grandchild", NULL, NULL, served, environ), 0);
	succeeds(child);
	EQUAL(system("./unserved_grandchild served"), 0);
}

static void executes_unserved_programs(void)
{
	char *nothing[] = { NULL };
	pid_t child;

	EQUAL(posix_spawn(&child, "./unserved_child", NULL, NULL, again, environ), 0);
	succeeds(child);
	/* Without LD_PRELOAD the loader does not load usring's library. */
	EQUAL(posix_spawn(&child, "./unserved_grandchild", NULL, NULL, absent, nothing), 0);
	succeeds(child);
	EQUAL(execv("./nothing", served), -1);
	EQUAL(errno, ENOENT);
	EQUAL(execv("/", served), -1);
	EQUAL(errno, EACCES);
	inherits();
}

static const struct check checks[] = {
	{ "inherits", inherits },
	{ "finds no io_uring", finds_no_io_uring },
	{ "handles signals", handles_signals },
	{ "keeps the trap", keeps_the_trap },
	{ "blocks signals", blocks_signals },
	{ "uses high descriptors", uses_high_descriptors },
	{ "uses the kernel's AIO", uses_the_kernels_aio },
	{ "dies by a signal that is sent", dies_by_a_signal_that_is_sent },
	{ "executes", executes },
	{ "executes unserved programs", executes_unserved_programs },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
