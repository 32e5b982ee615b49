/*
 * Cancels threads that sleep in cancellation points of libc, and threads that compute. The threads
 * have cleanup handlers. The unwinder must get past every frame on the stack, including usring's.
 */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>

static int cleaned, ends[2], sockets[2];
static sem_t started;

static void clean(void *count)
{
	(*(int *)count)++;
}

/* Each of the functions below sleeps for ever in a cancellation point. */
static void in_read(void)
{
	char byte;
	HOLDS(read(ends[0], &byte, 1) < 0);
}

static void in_poll(void)
{
	struct pollfd poller = { .fd = ends[0], .events = POLLIN };
	poll(&poller, 1, -1);
}

static void in_select(void)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(ends[0], &set);
	select(ends[0] + 1, &set, NULL, NULL, NULL);
}

static void in_epoll(void)
{
	struct epoll_event event;
	epoll_wait(epoll_create1(0), &event, 1, -1);
}

static void in_receive(void)
{
	char byte;
	recv(sockets[0], &byte, 1, 0);
}

static void in_sleep(void)
{
	sleep(1000);
}

static void in_pause(void)
{
	pause();
}

static void in_wait(void)
{
	sigset_t none;
	sigemptyset(&none);
	sigsuspend(&none);
}

static void in_lock(void)
{
	static struct flock lock = { .l_type = F_WRLCK };
	int file = open(".", O_TMPFILE | O_RDWR, 0600);
	fcntl(file, F_OFD_SETLKW, &lock);
	sem_t never;
	sem_init(&never, 0, 0);
	sem_wait(&never);
}

static void *sleep_cancellable(void *sleeper)
{
	void (*sleep_for_ever)(void) = (void (*)(void))sleeper;
	pthread_cleanup_push(clean, &cleaned);
	pthread_cleanup_push(clean, &cleaned);
	sem_post(&started);
	for (;;)
		sleep_for_ever();
	pthread_cleanup_pop(0);
	pthread_cleanup_pop(0);
	return NULL;
}

static void every_sleep_can_be_cancelled(void)
{
	void (*sleepers[])(void) = { in_read,  in_poll,	 in_select, in_epoll, in_receive,
				     in_sleep, in_pause, in_wait,   in_lock };
	int count = sizeof sleepers / sizeof *sleepers;

	cleaned = 0;
	for (int round = 0; round < 20; round++) {
		for (int index = 0; index < count; index++) {
			pthread_t thread;
			void *result;
			EQUAL(pthread_create(&thread, NULL, sleep_cancellable, (void *)sleepers[index]), 0);
			sem_wait(&started);
			/*
			 * In round 0 the thread is cancelled after it has certainly gone to sleep.
			 * In later rounds it is cancelled at once.
			 */
			if (round == 0)
				usleep(5000);
			EQUAL(pthread_cancel(thread), 0);
			EQUAL(pthread_join(thread, &result), 0);
			HOLDS(result == PTHREAD_CANCELED);
		}
	}
	EQUAL(cleaned, 2 * 20 * count);
}

static void *compute(void *unused)
{
	(void)unused;
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	pthread_cleanup_push(clean, &cleaned);
	sem_post(&started);
	for (volatile long count = 0;; count++)
		;
	pthread_cleanup_pop(0);
	return NULL;
}

static void a_computing_thread_can_be_cancelled(void)
{
	cleaned = 0;
	for (int round = 0; round < 20; round++) {
		pthread_t thread;
		void *result;
		EQUAL(pthread_create(&thread, NULL, compute, NULL), 0);
		sem_wait(&started);
		EQUAL(pthread_cancel(thread), 0);
		EQUAL(pthread_join(thread, &result), 0);
		HOLDS(result == PTHREAD_CANCELED);
	}
	EQUAL(cleaned, 20);
}

static void *refuse(void *unused)
{
	int before;
	(void)unused;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	sem_post(&started);
	usleep(10000);
	return (void *)7;
}

static void a_thread_may_refuse(void)
{
	pthread_t thread;
	void *result;
	EQUAL(pthread_create(&thread, NULL, refuse, NULL), 0);
	sem_wait(&started);
	EQUAL(pthread_cancel(thread), 0);
	EQUAL(pthread_join(thread, &result), 0);
	HOLDS(result == (void *)7);
}

static const struct check checks[] = {
	{ "every sleep can be cancelled", every_sleep_can_be_cancelled },
	{ "a computing thread can be cancelled", a_computing_thread_can_be_cancelled },
	{ "a thread may refuse", a_thread_may_refuse },
};

int main(int count, char **arguments)
{
	sem_init(&started, 0, 0);
	EQUAL(pipe(ends), 0);
	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	return RUN(checks, count, arguments);
}
