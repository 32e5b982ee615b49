/*
 * A signal must end a wait even while usring lets events gather.
 *
 * A thread waits for 64 events on a ring with deferred task work. The events come one by one, so
 * usring pauses between its checks, and handles several events at once. After 40 events the sender
 * stops and sends a signal, which must end the wait. If the wait has not ended after 200 ms, the
 * sender sends a second signal. Only few rounds may need it.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { GATHERED = 64, WRITTEN = 40, PAUSE_ROUNDS = 40, INTERVAL_US = 40, A_WHILE_MS = 200 };
static struct io_uring ring;
static volatile sig_atomic_t count;
static atomic_int round_number;
static pthread_t waiter;
static int pairs[GATHERED][2];
static atomic_int waits_ended;
static atomic_int second_signals;

static void note(int signal)
{
	(void)signal;
	count++;
}

/* Blocks SIGUSR1. Stores in `without` the previous mask, without SIGUSR1. */
static void block(sigset_t *without)
{
	sigset_t with;
	sigemptyset(&with);
	sigaddset(&with, SIGUSR1);
	EQUAL(sigprocmask(SIG_BLOCK, &with, without), 0);
	sigdelset(without, SIGUSR1);
}

static void write_slowly(int from, int to)
{
	struct timespec now, next;
	EQUAL(clock_gettime(CLOCK_MONOTONIC, &next), 0);
	for (int index = from; index < to; index++) {
		EQUAL(write(pairs[index][1], "x", 1), 1);
		next.tv_nsec += 1000 * INTERVAL_US;
		do
			EQUAL(clock_gettime(CLOCK_MONOTONIC, &now), 0);
		while ((now.tv_sec - next.tv_sec) * 1000000000LL + now.tv_nsec - next.tv_nsec < 0);
	}
}

static void *signal_while_events_gather(void *unused)
{
	for (int round = 1; round <= PAUSE_ROUNDS; round++) {
		while (atomic_load(&round_number) != round)
			look_again();
		write_slowly(0, WRITTEN);
		EQUAL(pthread_kill(waiter, SIGUSR1), 0);
		long long since = milliseconds_now();
		while (atomic_load(&waits_ended) != round) {
			look_again();
			if (milliseconds_now() - since < A_WHILE_MS)
				continue;
			EQUAL(pthread_kill(waiter, SIGUSR1), 0);
			atomic_fetch_add(&second_signals, 1);
			since = milliseconds_now();
		}
		write_slowly(WRITTEN, GATHERED);
	}
	return unused;
}

static void a_signal_ends_a_wait_whose_events_gather(void)
{
	sigset_t without;
	pthread_t sender;
	ring = new_ring(GATHERED, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
	struct sigaction action = { .sa_handler = note, .sa_flags = SA_RESTART };
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	waiter = pthread_self();
	for (int index = 0; index < GATHERED; index++)
		EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[index]), 0);
	atomic_store(&round_number, 0);
	block(&without);
	EQUAL(pthread_create(&sender, NULL, signal_while_events_gather, NULL), 0);
	for (int round = 1; round <= PAUSE_ROUNDS; round++) {
		char bytes[GATHERED], seen[GATHERED] = { 0 };
		for (int index = 0; index < GATHERED; index++) {
			struct io_uring_sqe *sqe = request(&ring);
			io_uring_prep_recv(sqe, pairs[index][0], &bytes[index], 1, 0);
			named(sqe, index, 0);
		}
		EQUAL(io_uring_submit(&ring), GATHERED);
		/*
		 * A second signal of the previous round may be pending. It is delivered here,
		 * before the wait.
		 */
		EQUAL(sigprocmask(SIG_SETMASK, &without, NULL), 0);
		count = 0;
		atomic_store(&round_number, round);
		long answer = syscall(SYS_io_uring_enter, ring.ring_fd, 0, GATHERED, IORING_ENTER_GETEVENTS, NULL, 0);
		unsigned there = io_uring_cq_ready(&ring);
		HOLDS(count > 0 && there <= WRITTEN);
		EQUAL(answer, there > 0 ? 0 : -1);
		HOLDS(answer == 0 || errno == EINTR);
		block(&without);
		atomic_store(&waits_ended, round);
		for (int taken = 0; taken < GATHERED; taken++) {
			struct answer event = next_answer(&ring);
			EQUAL(event.res, 1);
			EQUAL(seen[event.user_data]++, 0);
		}
	}
	EQUAL(pthread_join(sender, NULL), 0);
	EQUAL(sigprocmask(SIG_SETMASK, &without, NULL), 0);
	for (int index = 0; index < GATHERED; index++) {
		close(pairs[index][0]);
		close(pairs[index][1]);
	}
	io_uring_queue_exit(&ring);
	/*
	 * On a machine under load the first signal may come before the wait, so some rounds need a
	 * second one.
	 */
	HOLDS(second_signals < PAUSE_ROUNDS / 2);
}

static const struct check checks[] = {
	{ "a signal ends a wait whose events gather", a_signal_ends_a_wait_whose_events_gather },
};

int main(int count_of_words, char **words)
{
	return RUN(checks, count_of_words, words);
}
