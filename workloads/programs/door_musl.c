/* Another libc: its constructors are handed nothing, its loader's list has
 * another name, and its posix_spawn gives the child a stack of 5 KiB. The ring is
 * used by bare calls, for there is no liburing here.
 */
#define _GNU_SOURCE
#include "check.h"
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

static volatile sig_atomic_t count;

static void note(int signal)
{
	(void)signal;
	count++;
}

static void a_ring_is_served(void)
{
	unsigned parameters[30] = { 0 };
	int ring = (int)syscall(SYS_io_uring_setup, 8, parameters);
	HOLDS(ring >= 0);
	HOLDS(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0) != MAP_FAILED);
	EQUAL(syscall(SYS_io_uring_enter, ring, 0, 0, 0, NULL, 0), 0);
	EQUAL(close(ring), 0);
	EQUAL(syscall(SYS_io_uring_enter, ring, 0, 0, 0, NULL, 0), -1);
	EQUAL(errno, EBADF);
}

static void signals_arrive(void)
{
	HOLDS(signal(SIGUSR1, note) != SIG_ERR);
	EQUAL(raise(SIGUSR1), 0);
	EQUAL(count, 1);
}

static void children_are_served(void)
{
	for (char **variable = environ; *variable != NULL; variable++)
		HOLDS(strncmp(*variable, "LD_PRELOAD=", 11) != 0);
	char *words[] = { "sh", "-c", "exec env -i /proc/$PPID/exe 'a ring is served' > /dev/null", NULL };
	pid_t child;
	int status;
	for (int round = 0; round < 20; round++) {
		EQUAL(posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ), 0);
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(status, 0);
	}
	EQUAL(system("exit 3"), 3 << 8);
}

static const struct check checks[] = {
	{ "a ring is served", a_ring_is_served },
	{ "signals arrive", signals_arrive },
	{ "children are served", children_are_served },
};

int main(int words, char **arguments)
{
	return RUN(checks, words, arguments);
}
