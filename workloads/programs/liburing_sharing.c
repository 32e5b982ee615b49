/*
 * Rings that other parts of a program use, too, by liburing: several threads, event loops, SQ
 * threads, forked children, duplicated descriptors, other rings.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

enum { THREADS = 4, ROUNDS = 2000 };

static void *own_ring(void *unused)
{
	struct io_uring ring = new_ring(32, 0);
	int file = new_file();
	(void)unused;
	for (long round = 0; round < ROUNDS; round++) {
		long in = -1;
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_write(sqe, file, &round, sizeof round, 8 * (round % 100));
		named(sqe, 1, IOSQE_IO_LINK);
		sqe = request(&ring);
		io_uring_prep_read(sqe, file, &in, sizeof in, 8 * (round % 100));
		named(sqe, 2, 0);
		EQUAL(io_uring_submit_and_wait(&ring, 2), 2);
		EQUAL(answer_to(&ring, 1).res, 8);
		EQUAL(answer_to(&ring, 2).res, 8);
		EQUAL(in, round);
	}
	io_uring_queue_exit(&ring);
	close(file);
	return NULL;
}

static void every_thread_may_have_a_ring(void)
{
	pthread_t threads[THREADS];
	for (int index = 0; index < THREADS; index++)
		EQUAL(pthread_create(&threads[index], NULL, own_ring, NULL), 0);
	for (int index = 0; index < THREADS; index++)
		pthread_join(threads[index], NULL);
}

static void *reap(void *shared)
{
	uint64_t sum = 0;
	for (int index = 0; index < ROUNDS; index++)
		sum += next_answer(shared).user_data;
	return (void *)sum;
}

static void one_thread_submits_and_another_reaps(void)
{
	struct io_uring ring = new_ring(16, 0);
	pthread_t reaper;
	void *sum;
	int file = new_file();
	char in[16];

	EQUAL(pthread_create(&reaper, NULL, reap, &ring), 0);
	for (int index = 0; index < ROUNDS; index++) {
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_read(sqe, file, in, sizeof in, 0);
		named(sqe, index, index % 7 ? 0 : IOSQE_ASYNC);
		EQUAL(io_uring_submit(&ring), 1);
	}
	pthread_join(reaper, &sum);
	EQUAL((uintptr_t)sum, (long)ROUNDS * (ROUNDS - 1) / 2);
	io_uring_queue_exit(&ring);
	close(file);
}

static void an_sq_thread_submits(void)
{
	struct io_uring_params parameters = { .flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 20 };
	struct io_uring ring;
	int file = new_file();

	EQUAL(io_uring_queue_init_params(16, &ring, &parameters), 0);
	for (int round = 0; round < 6; round++) {
		for (int index = 0; index < 8; index++) {
			struct io_uring_sqe *sqe = request(&ring);
			io_uring_prep_write(sqe, file, "12345678", 8, 8 * index);
			named(sqe, 8 * round + index, 0);
		}
		HOLDS(io_uring_submit(&ring) >= 0);
		for (int index = 0; index < 8; index++)
			EQUAL(next_answer(&ring).res, 8);
		/*
		 * In every third round the SQ thread goes to sleep during this pause, and the next
		 * submission must wake it.
		 */
		if (round % 3 == 2)
			usleep(60000);
	}
	io_uring_queue_exit(&ring);
	close(file);
}

static void completions_appear_without_a_call(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct io_uring_cqe *cqe = NULL;
	int ends[2];
	char in[8];
	new_pipe(ends);
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_read(sqe, ends[0], in, sizeof in, 0);
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(write(ends[1], "abc", 3), 3);
	/*
	 * Only reads the CQ in memory, without a system call. If the completion never comes, the
	 * check's alarm ends the program.
	 */
	while (io_uring_cq_ready(&ring) == 0)
		usleep(10);
	EQUAL(io_uring_peek_cqe(&ring, &cqe), 0);
	EQUAL(cqe->res, 3);
	io_uring_queue_exit(&ring);
}

static void an_event_loop_watches_the_ring(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct epoll_event event = { .events = EPOLLIN };
	int loop = epoll_create1(0), ends[2];
	char in[8];
	new_pipe(ends);

	EQUAL(epoll_ctl(loop, EPOLL_CTL_ADD, ring.ring_fd, &event), 0);
	for (int round = 0; round < 20; round++) {
		EQUAL(epoll_wait(loop, &event, 1, 0), 0);
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_read(sqe, ends[0], in, sizeof in, 0);
		named(sqe, round, 0);
		EQUAL(io_uring_submit(&ring), 1);
		EQUAL(epoll_wait(loop, &event, 1, 0), 0);
		EQUAL(write(ends[1], "x", 1), 1);
		EQUAL(epoll_wait(loop, &event, 1, 30000), 1);
		EQUAL(event.events, EPOLLIN);
		struct pollfd poller = { .fd = ring.ring_fd, .events = POLLIN };
		EQUAL(poll(&poller, 1, 0), 1);
		EQUAL(answer_to(&ring, round).res, 1);
		EQUAL(poll(&poller, 1, 0), 0);
	}
	EQUAL(epoll_ctl(loop, EPOLL_CTL_DEL, ring.ring_fd, NULL), 0);
	io_uring_queue_exit(&ring);
}

static void a_registered_eventfd_counts_answers(void)
{
	struct io_uring ring = new_ring(8, 0);
	int events = eventfd(0, EFD_NONBLOCK);
	eventfd_t count;

	EQUAL(io_uring_register_eventfd(&ring, events), 0);
	for (int index = 0; index < 3; index++) {
		io_uring_prep_nop(request(&ring));
		EQUAL(io_uring_submit(&ring), 1);
	}
	EQUAL(eventfd_read(events, &count), 0);
	EQUAL(count, 3);
	EQUAL(io_uring_unregister_eventfd(&ring), 0);
	io_uring_prep_nop(request(&ring));
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(eventfd_read(events, &count), -1);
	io_uring_queue_exit(&ring);
}

static void a_ring_watches_another_ring(void)
{
	struct io_uring outer = new_ring(8, 0), inner = new_ring(8, 0);
	struct io_uring_sqe *sqe = request(&outer);

	io_uring_prep_poll_add(sqe, inner.ring_fd, POLLIN);
	named(sqe, 1, 0);
	EQUAL(io_uring_submit(&outer), 1);
	nothing_left(&outer);
	sqe = request(&inner);
	io_uring_prep_nop(sqe);
	named(sqe, 2, 0);
	EQUAL(io_uring_submit(&inner), 1);
	EQUAL(answer_to(&outer, 1).res & POLLIN, POLLIN);
	EQUAL(answer_to(&inner, 2).res, 0);
	io_uring_queue_exit(&inner);
	io_uring_queue_exit(&outer);
}

static void a_child_may_close_and_exit(void)
{
	struct io_uring ring = new_ring(8, 0);
	int ends[2], status;
	char in[8];
	new_pipe(ends);
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_read(sqe, ends[0], in, sizeof in, 0);
	named(sqe, 1, 0);
	EQUAL(io_uring_submit(&ring), 1);
	for (int how = 0; how < 2; how++) {
		pid_t child = how ? vfork() : fork();
		if (child == 0) {
			close(ring.ring_fd);
			_exit(7);
		}
		EQUAL(waitpid(child, &status, 0), child);
		HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 7);
		/*
		 * The vfork child has a descriptor table of its own. So its close must not affect
		 * the parent's ring.
		 */
		HOLDS(fcntl(ring.ring_fd, F_GETFD) >= 0);
	}
	EQUAL(write(ends[1], "abc", 3), 3);
	EQUAL(answer_to(&ring, 1).res, 3);
	io_uring_queue_exit(&ring);
}

static void a_child_may_have_a_ring_of_its_own(void)
{
	struct io_uring ring = new_ring(8, 0);
	int status;
	pid_t child = fork();

	if (child == 0) {
		running = "the child's ring";
		own_ring(NULL);
		_exit(8);
	}
	own_ring(NULL);
	EQUAL(waitpid(child, &status, 0), child);
	HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 8);
	io_uring_queue_exit(&ring);
}

static void a_duplicate_keeps_the_ring(void)
{
	struct io_uring ring = new_ring(8, 0);
	int number = ring.ring_fd, other = dup(number);

	HOLDS(other >= 0);
	EQUAL(close(number), 0);
	io_uring_prep_nop(request(&ring));
	EQUAL(io_uring_submit(&ring), -EBADF);
	ring.ring_fd = ring.enter_ring_fd = other;
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(next_answer(&ring).res, 0);
	io_uring_queue_exit(&ring);
	EQUAL(fcntl(other, F_GETFD), -1);
}

static void rings_come_and_go(void)
{
	/* In total, this makes more rings than the process may have descriptors at a time. */
	for (int round = 0; round < 3000; round++) {
		struct io_uring ring = new_ring(4, 0);
		io_uring_prep_nop(request(&ring));
		EQUAL(io_uring_submit(&ring), 1);
		EQUAL(next_answer(&ring).res, 0);
		io_uring_queue_exit(&ring);
	}
}

static void the_ring_may_be_entered_by_its_registered_number(void)
{
	struct io_uring ring = new_ring(8, 0);

	EQUAL(io_uring_register_ring_fd(&ring), 1);
	io_uring_prep_nop(request(&ring));
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(next_answer(&ring).res, 0);
	EQUAL(io_uring_unregister_ring_fd(&ring), 1);
	io_uring_queue_exit(&ring);
}

static void the_probe_names_what_works(void)
{
	struct io_uring_probe *probe = io_uring_get_probe();
	static const int opcodes[] = { IORING_OP_NOP,	   IORING_OP_READ,    IORING_OP_WRITE,
				       IORING_OP_READV,	   IORING_OP_FSYNC,   IORING_OP_POLL_ADD,
				       IORING_OP_TIMEOUT,  IORING_OP_OPENAT2, IORING_OP_STATX,
				       IORING_OP_ASYNC_CANCEL };

	HOLDS(probe != NULL);
	for (size_t index = 0; index < sizeof opcodes / sizeof *opcodes; index++)
		HOLDS(io_uring_opcode_supported(probe, opcodes[index]));
	io_uring_free_probe(probe);
}

static const struct check checks[] = {
	{ "every thread may have a ring", every_thread_may_have_a_ring },
	{ "one thread submits and another reaps", one_thread_submits_and_another_reaps },
	{ "an SQ thread submits", an_sq_thread_submits },
	{ "completions appear without a call", completions_appear_without_a_call },
	{ "an event loop watches the ring", an_event_loop_watches_the_ring },
	{ "a registered eventfd counts answers", a_registered_eventfd_counts_answers },
	{ "a ring watches another ring", a_ring_watches_another_ring },
	{ "a child may close and exit", a_child_may_close_and_exit },
	{ "a child may have a ring of its own", a_child_may_have_a_ring_of_its_own },
	{ "a duplicate keeps the ring", a_duplicate_keeps_the_ring },
	{ "rings come and go", rings_come_and_go },
	{ "the ring may be entered by its registered number", the_ring_may_be_entered_by_its_registered_number },
	{ "the probe names what works", the_probe_names_what_works },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
