/*
 * A process with a ring whose main thread ends by pthread_exit(3), either as the only thread or
 * before another one. libc must end the process with its last thread.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *ends_later(void *nothing)
{
	usleep(20000);
	pthread_exit(nothing);
}

int main(int count, char **arguments)
{
	/* struct io_uring_params: all zero. */
	unsigned params[30] = { 0 };
	pthread_t thread;

	alarm(60);
	if (syscall(SYS_io_uring_setup, 4, params) < 0)
		return 1;
	if (count > 1 && atoi(arguments[1]) == 1 && pthread_create(&thread, NULL, ends_later, NULL) != 0)
		return 1;
	pthread_exit(NULL);
}
