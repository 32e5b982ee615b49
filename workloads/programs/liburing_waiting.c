/* Every kind of waiting by liburing: timeouts, polls, signals, cancelled requests. */
#define _GNU_SOURCE
#include "ring.h"
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#define MILLISECONDS(count) ((struct __kernel_timespec){ .tv_nsec = (count) * 1000000LL })

static void a_timeout_takes_its_time(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct __kernel_timespec time = MILLISECONDS(30);
	long long begin = milliseconds_now();
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_timeout(sqe, &time, 0, 0);
	EQUAL(result_of(&ring, sqe), -ETIME);
	HOLDS(milliseconds_now() - begin >= 29);
	io_uring_queue_exit(&ring);
}

static void an_absolute_timeout_means_the_clock(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	struct __kernel_timespec past = { now.tv_sec - 1, now.tv_nsec };
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_timeout(sqe, &past, 0, IORING_TIMEOUT_ABS);
	EQUAL(result_of(&ring, sqe), -ETIME);
	clock_gettime(CLOCK_REALTIME, &now);
	long long begin = milliseconds_now();
	long long then = now.tv_sec * 1000000000LL + now.tv_nsec + 25000000;
	struct __kernel_timespec soon = { then / 1000000000, then % 1000000000 };
	sqe = request(&ring);
	io_uring_prep_timeout(sqe, &soon, 0, IORING_TIMEOUT_ABS | IORING_TIMEOUT_REALTIME);
	EQUAL(result_of(&ring, sqe), -ETIME);
	HOLDS(milliseconds_now() - begin >= 20);
	io_uring_queue_exit(&ring);
}

static void a_timeout_ends_after_so_many_completions(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct __kernel_timespec time = { .tv_sec = 1000 };
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_timeout(sqe, &time, 2, 0);
	named(sqe, 1, 0);
	for (int index = 0; index < 2; index++) {
		sqe = request(&ring);
		io_uring_prep_nop(sqe);
		named(sqe, 2, 0);
	}
	EQUAL(io_uring_submit_and_wait(&ring, 3), 3);
	for (int index = 0; index < 3; index++) {
		struct answer answer = next_answer(&ring);
		EQUAL(answer.res, 0);
	}
	nothing_left(&ring);
	io_uring_queue_exit(&ring);
}

static void a_timeout_can_be_updated_and_removed(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct __kernel_timespec late = { .tv_sec = 1000 }, soon = MILLISECONDS(10);
	struct io_uring_sqe *sqe;

	for (uint64_t name = 1; name <= 2; name++) {
		sqe = request(&ring);
		io_uring_prep_timeout(sqe, &late, 0, 0);
		named(sqe, name, 0);
	}
	EQUAL(io_uring_submit(&ring), 2);
	sqe = request(&ring);
	io_uring_prep_timeout_remove(sqe, 1, 0);
	named(sqe, 3, 0);
	EQUAL(io_uring_submit(&ring), 1);
	for (int index = 0; index < 2; index++) {
		struct answer answer = next_answer(&ring);
		HOLDS(answer.user_data == 1 || answer.user_data == 3);
		EQUAL(answer.res, answer.user_data == 1 ? -ECANCELED : 0);
	}
	sqe = request(&ring);
	io_uring_prep_timeout_update(sqe, &soon, 2, 0);
	EQUAL(result_of(&ring, sqe), 0);
	EQUAL(answer_to(&ring, 2).res, -ETIME);
	sqe = request(&ring);
	io_uring_prep_timeout_remove(sqe, 2, 0);
	EQUAL(result_of(&ring, sqe), -ENOENT);
	io_uring_queue_exit(&ring);
}

static void a_linked_timeout_ends_a_read(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct __kernel_timespec time = MILLISECONDS(20);
	int ends[2];
	char in;
	new_pipe(ends);
	for (int in_time = 0; in_time <= 1; in_time++) {
		if (in_time)
			EQUAL(write(ends[1], "x", 1), 1);
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_read(sqe, ends[0], &in, 1, 0);
		named(sqe, 1, IOSQE_IO_LINK);
		sqe = request(&ring);
		io_uring_prep_link_timeout(sqe, &time, 0);
		named(sqe, 2, 0);
		EQUAL(io_uring_submit_and_wait(&ring, 2), 2);
		for (int index = 0; index < 2; index++) {
			struct answer answer = next_answer(&ring);
			if (answer.user_data == 2)
				EQUAL(answer.res, in_time ? -ECANCELED : -ETIME);
			else if (in_time)
				EQUAL(answer.res, 1);
			else
				HOLDS(answer.res == -ECANCELED || answer.res == -EINTR);
		}
	}
	io_uring_queue_exit(&ring);
}

static void waiting_for_an_answer_times_out(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct __kernel_timespec time = MILLISECONDS(20);
	struct io_uring_cqe *cqe;
	long long begin = milliseconds_now();

	EQUAL(io_uring_wait_cqe_timeout(&ring, &cqe, &time), -ETIME);
	HOLDS(milliseconds_now() - begin >= 19);
	io_uring_prep_nop(request(&ring));
	EQUAL(io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &time, NULL), 1);
	io_uring_cqe_seen(&ring, cqe);
	io_uring_queue_exit(&ring);
}

static void *write_later(void *end)
{
	usleep(10000);
	EQUAL(write(*(int *)end, "late", 4), 4);
	return NULL;
}

static void a_read_waits_for_data(void)
{
	struct io_uring ring = new_ring(8, 0);
	pthread_t writer;
	int ends[2];
	char in[8];
	new_pipe(ends);
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_read(sqe, ends[0], in, sizeof in, 0);
	named(sqe, 1, 0);
	EQUAL(io_uring_submit(&ring), 1);
	nothing_left(&ring);
	EQUAL(pthread_create(&writer, NULL, write_later, &ends[1]), 0);
	EQUAL(answer_to(&ring, 1).res, 4);
	HOLDS(memcmp(in, "late", 4) == 0);
	pthread_join(writer, NULL);
	/* The end of the pipe must complete a read that waits, too. */
	sqe = request(&ring);
	io_uring_prep_read(sqe, ends[0], in, sizeof in, 0);
	named(sqe, 2, 0);
	EQUAL(io_uring_submit(&ring), 1);
	close(ends[1]);
	EQUAL(answer_to(&ring, 2).res, 0);
	io_uring_queue_exit(&ring);
}

static void a_poll_answers_once_or_often(void)
{
	struct io_uring ring = new_ring(8, 0);
	int events = eventfd(0, EFD_NONBLOCK);
	uint64_t count;
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_poll_add(sqe, events, POLLIN);
	named(sqe, 1, 0);
	EQUAL(io_uring_submit(&ring), 1);
	nothing_left(&ring);
	EQUAL(eventfd_write(events, 1), 0);
	struct answer answer = answer_to(&ring, 1);
	EQUAL(answer.res, POLLIN);
	EQUAL(answer.flags & IORING_CQE_F_MORE, 0);
	EQUAL(read(events, &count, 8), 8);
	sqe = request(&ring);
	io_uring_prep_poll_multishot(sqe, events, POLLIN);
	named(sqe, 2, 0);
	EQUAL(io_uring_submit(&ring), 1);
	for (int index = 0; index < 5; index++) {
		EQUAL(eventfd_write(events, 1), 0);
		answer = answer_to(&ring, 2);
		EQUAL(answer.res, POLLIN);
		HOLDS(answer.flags & IORING_CQE_F_MORE);
		EQUAL(read(events, &count, 8), 8);
	}
	sqe = request(&ring);
	io_uring_prep_poll_remove(sqe, 2);
	named(sqe, 3, 0);
	EQUAL(io_uring_submit(&ring), 1);
	for (int index = 0; index < 2; index++) {
		answer = next_answer(&ring);
		EQUAL(answer.res, answer.user_data == 2 ? -ECANCELED : 0);
	}
	nothing_left(&ring);
	io_uring_queue_exit(&ring);
	close(events);
}

static void requests_can_be_cancelled(void)
{
	struct io_uring ring = new_ring(16, 0);
	int ends[2], cancelled = 0;
	char in[8];
	new_pipe(ends);
	struct io_uring_sqe *sqe;

	for (int name = 1; name <= 5; name++) {
		sqe = request(&ring);
		io_uring_prep_read(sqe, ends[0], in, 1, 0);
		named(sqe, name, 0);
	}
	EQUAL(io_uring_submit(&ring), 5);
	sqe = request(&ring);
	io_uring_prep_cancel64(sqe, 3, 0);
	named(sqe, 10, 0);
	EQUAL(io_uring_submit(&ring), 1);
	for (int index = 0; index < 2; index++) {
		struct answer answer = next_answer(&ring);
		HOLDS(answer.user_data == 3 || answer.user_data == 10);
		EQUAL(answer.res, answer.user_data == 3 ? -ECANCELED : 0);
	}
	sqe = request(&ring);
	io_uring_prep_cancel64(sqe, 3, 0);
	EQUAL(result_of(&ring, sqe), -ENOENT);
	sqe = request(&ring);
	io_uring_prep_cancel_fd(sqe, ends[0], IORING_ASYNC_CANCEL_ALL);
	named(sqe, 11, 0);
	EQUAL(io_uring_submit(&ring), 1);
	for (int index = 0; index < 5; index++) {
		struct answer answer = next_answer(&ring);
		if (answer.user_data == 11)
			EQUAL(answer.res, 4);
		else
			cancelled += answer.res == -ECANCELED;
	}
	EQUAL(cancelled, 4);
	nothing_left(&ring);
	io_uring_queue_exit(&ring);
}

static void a_closed_descriptor_still_answers(void)
{
	struct io_uring ring = new_ring(8, 0);
	int ends[2], others[2];
	char in[8] = "";
	new_pipe(ends);
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_read(sqe, ends[0], in, sizeof in, 0);
	named(sqe, 1, 0);
	EQUAL(io_uring_submit(&ring), 1);
	int number = ends[0];
	close(number);
	/* The number of the closed descriptor now belongs to another pipe, which has data. */
	new_pipe(others);
	EQUAL(others[0], number);
	EQUAL(write(others[1], "wrong", 5), 5);
	EQUAL(write(ends[1], "right", 5), 5);
	EQUAL(answer_to(&ring, 1).res, 5);
	HOLDS(memcmp(in, "right", 5) == 0);
	io_uring_queue_exit(&ring);
}

static volatile sig_atomic_t interrupted;

static void note(int signal)
{
	(void)signal;
	interrupted++;
}

static volatile sig_atomic_t enough;

/* Sends signals again and again, because one may come before the wait. */
static void *signal_later(void *thread)
{
	do {
		usleep(20000);
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
	} while (!enough);
	return NULL;
}

static void a_signal_interrupts_the_wait(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct sigaction action = { .sa_handler = note, .sa_flags = SA_RESTART };
	struct __kernel_timespec time = { .tv_sec = 1000 };
	pthread_t self = pthread_self(), sender;
	struct io_uring_cqe *cqe;

	interrupted = enough = 0;
	sigaction(SIGUSR1, &action, NULL);
	EQUAL(pthread_create(&sender, NULL, signal_later, &self), 0);
	EQUAL(io_uring_wait_cqe(&ring, &cqe), -EINTR);
	HOLDS(interrupted > 0);
	enough = 1;
	pthread_join(sender, NULL);
	interrupted = enough = 0;
	EQUAL(pthread_create(&sender, NULL, signal_later, &self), 0);
	EQUAL(io_uring_wait_cqe_timeout(&ring, &cqe, &time), -EINTR);
	HOLDS(interrupted > 0);
	enough = 1;
	pthread_join(sender, NULL);
	io_uring_queue_exit(&ring);
}

static void a_wait_can_let_a_blocked_signal_in(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct sigaction action = { .sa_handler = note };
	sigset_t blocked, before, now;
	struct io_uring_cqe *cqe;

	interrupted = 0;
	sigaction(SIGUSR1, &action, NULL);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &blocked, &before);
	pthread_kill(pthread_self(), SIGUSR1);
	EQUAL(interrupted, 0);
	EQUAL(io_uring_wait_cqes(&ring, &cqe, 1, NULL, &before), -EINTR);
	EQUAL(interrupted, 1);
	/* After the wait the signal mask must be that from before the wait. */
	pthread_sigmask(SIG_SETMASK, &before, &now);
	HOLDS(sigismember(&now, SIGUSR1));
	io_uring_queue_exit(&ring);
}

static void a_ring_may_go_while_requests_wait(void)
{
	struct __kernel_timespec time = { .tv_sec = 1000 };
	int ends[2];
	static char in[64];
	new_pipe(ends);

	for (int round = 0; round < 50; round++) {
		struct io_uring ring = new_ring(8, 0);
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_read(sqe, ends[0], in, 1, 0);
		sqe = request(&ring);
		io_uring_prep_poll_multishot(sqe, ends[0], POLLIN);
		sqe = request(&ring);
		io_uring_prep_timeout(sqe, &time, 0, 0);
		EQUAL(io_uring_submit(&ring), 3);
		io_uring_queue_exit(&ring);
	}
	EQUAL(write(ends[1], "x", 1), 1);
	EQUAL(read(ends[0], in, 8), 1);
}

static const struct check checks[] = {
	{ "a timeout takes its time", a_timeout_takes_its_time },
	{ "an absolute timeout means the clock", an_absolute_timeout_means_the_clock },
	{ "a timeout ends after so many completions", a_timeout_ends_after_so_many_completions },
	{ "a timeout can be updated and removed", a_timeout_can_be_updated_and_removed },
	{ "a linked timeout ends a read", a_linked_timeout_ends_a_read },
	{ "waiting for an answer times out", waiting_for_an_answer_times_out },
	{ "a read waits for data", a_read_waits_for_data },
	{ "a poll answers once or often", a_poll_answers_once_or_often },
	{ "requests can be cancelled", requests_can_be_cancelled },
	{ "a closed descriptor still answers", a_closed_descriptor_still_answers },
	{ "a signal interrupts the wait", a_signal_interrupts_the_wait },
	{ "a wait can let a blocked signal in", a_wait_can_let_a_blocked_signal_in },
	{ "a ring may go while requests wait", a_ring_may_go_while_requests_wait },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
