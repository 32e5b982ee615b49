/*
 * Prints the cost of system calls that have nothing to do with rings, a line per system call. Each
 * cost is the time of a call in the fastest of many batches, in nanoseconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 1000, BATCHES = 300 };

static int zero, file;

static void call_getppid(void)
{
	getppid();
}

static void call_read(void)
{
	char byte;
	if (read(zero, &byte, 1) != 1)
		_exit(1);
}

static void call_close(void)
{
	/* A number without an open file, so that only the call's entry and exit are measured. */
	close(file);
}

static void call_sigprocmask(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

static void call_fcntl(void)
{
	fcntl(zero, F_GETFD);
}

static double nanoseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static double measure(void (*call)(void))
{
	double best = 1e9;
	for (int batch = 0; batch < BATCHES; batch++) {
		double begin = nanoseconds();
		for (int index = 0; index < CALLS; index++)
			call();
		double each = (nanoseconds() - begin) / CALLS;
		if (each < best)
			best = each;
	}
	return best;
}

int main(void)
{
	zero = open("/dev/zero", O_RDONLY);
	file = dup(zero);
	close(file);
	printf("getppid %.1f\n", measure(call_getppid));
	printf("read %.1f\n", measure(call_read));
	printf("close %.1f\n", measure(call_close));
	printf("fcntl %.1f\n", measure(call_fcntl));
	printf("sigprocmask %.1f\n", measure(call_sigprocmask));
	return 0;
}
