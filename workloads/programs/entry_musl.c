/*
 * usring with another libc. musl passes no arguments to constructors, its loader's list has another
 * name, and its posix_spawn gives the child a stack of only 5 KiB. The program makes its ring calls
 * directly, because there is no liburing for musl.
 */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
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

/* A ring, and the memory of its request. The request waits in a worker. */
struct memory {
	unsigned entries[30];
	char *rings;
	unsigned char *requests;
	int number, ends[2];
};

static void submit_a_read_that_waits(struct memory *ring, char *byte)
{
	memset(ring, 0, sizeof *ring);
	ring->number = (int)syscall(SYS_io_uring_setup, 8, ring->entries);
	HOLDS(ring->number >= 0);
	ring->rings = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring->number, 0);
	ring->requests = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring->number, 0x10000000);
	HOLDS(ring->rings != MAP_FAILED && ring->requests != MAP_FAILED);
	EQUAL(pipe(ring->ends), 0);
	ring->requests[0] = 22; /* IORING_OP_READ */
	ring->requests[1] = 16; /* IOSQE_ASYNC */
	memcpy(ring->requests + 4, &ring->ends[0], 4);
	memcpy(ring->requests + 16, &byte, 8);
	ring->requests[24] = 1;
	*(unsigned *)(ring->rings + ring->entries[16]) = 0; /* the array of indices */
	__atomic_store_n((unsigned *)(ring->rings + ring->entries[11]), 1, __ATOMIC_RELEASE);
	EQUAL(syscall(SYS_io_uring_enter, ring->number, 1, 0, 0, NULL, 0), 1);
}

static void changing_the_user_reaches_every_thread(void)
{
	struct memory ring;
	char byte = 0;
	submit_a_read_that_waits(&ring, &byte);
	EQUAL(setuid(getuid()), 0);
	EQUAL(write(ring.ends[1], "x", 1), 1);
	EQUAL(syscall(SYS_io_uring_enter, ring.number, 0, 1, 1, NULL, 0), 0);
	EQUAL(byte, 'x');
	EQUAL(setgid(getgid()), 0);
	EQUAL(close(ring.number), 0);
}

static struct memory shared;

static void *wait_for_ever(void *started)
{
	EQUAL(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL), 0);
	__atomic_store_n((int *)started, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
	for (;;)
		syscall(SYS_io_uring_enter, shared.number, 0, 1, 1, NULL, 0);
}

/* A thread that is cancelled inside a call must not leave a lock of usring's locked. */
static void a_thread_may_be_cancelled_inside(void)
{
	char byte = 0;
	submit_a_read_that_waits(&shared, &byte);
	for (int round = 0; round < 200; round++) {
		pthread_t thread;
		int started = 0;
		EQUAL(pthread_create(&thread, NULL, wait_for_ever, &started), 0);
		while (__atomic_load_n(&started, __ATOMIC_ACQUIRE) == 0)
			;
		for (volatile int delay = 0; delay < round * 100; delay++)
			;
		EQUAL(pthread_cancel(thread), 0);
		EQUAL(pthread_join(thread, NULL), 0);
		EQUAL(syscall(SYS_io_uring_enter, shared.number, 0, 0, 1, NULL, 0), 0);
	}
	EQUAL(write(shared.ends[1], "x", 1), 1);
	EQUAL(syscall(SYS_io_uring_enter, shared.number, 0, 1, 1, NULL, 0), 0);
	EQUAL(byte, 'x');
	EQUAL(close(shared.number), 0);
}

static const struct check checks[] = {
	{ "a ring is served", a_ring_is_served },
	{ "signals arrive", signals_arrive },
	{ "changing the user reaches every thread", changing_the_user_reaches_every_thread },
	{ "a thread may be cancelled inside", a_thread_may_be_cancelled_inside },
	{ "children are served", children_are_served },
};

int main(int words, char **arguments)
{
	return RUN(checks, words, arguments);
}
