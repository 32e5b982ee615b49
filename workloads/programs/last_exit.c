/*
 * A process with a ring whose threads end by the bare exit(2), which libc does not see. The process
 * must end with the last of them, as the kernel ends it.
 *
 * argv[1]: which thread is the last.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STATUS = 7 };

static int ring_is_made(void)
{
	/* struct io_uring_params: all zero. */
	unsigned params[30] = { 0 };
	return syscall(SYS_io_uring_setup, 4, params) >= 0;
}

static void *ends_later(void *nothing)
{
	(void)nothing;
	usleep(20000);
	syscall(SYS_exit, STATUS);
	return NULL;
}

static void another_thread(void *(*function)(void *))
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, function, NULL) != 0)
		_exit(3);
}

/* The first thread ends last. */
static void first_thread(void)
{
	another_thread(ends_later);
	usleep(60000);
	syscall(SYS_exit, STATUS);
}

/* Another thread ends last. */
static void other_thread(void)
{
	another_thread(ends_later);
	another_thread(ends_later);
	syscall(SYS_exit, STATUS);
}

/* Ends by libc's function after all other threads have ended by the bare call. */
static void by_libc(void)
{
	another_thread(ends_later);
	usleep(60000);
	exit(STATUS);
}

static void alone(void)
{
	syscall(SYS_exit, STATUS);
}

/* Ends in a child that libc did not make. */
static void cloned_child(void)
{
	int status;
	pid_t child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (child == 0) {
		alarm(30);
		if (!ring_is_made())
			_exit(1);
		syscall(SYS_exit, STATUS);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		_exit(4);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 5);
}

int main(int count, char **arguments)
{
	static void (*const ways[])(void) = { alone, first_thread, other_thread, by_libc, cloned_child };

	alarm(30);
	if (!ring_is_made())
		return 1;
	ways[count > 1 ? atoi(arguments[1]) : 0]();
}
