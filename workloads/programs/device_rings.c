/*
 * Rings on devices. The program waits for completions in every way, or does not wait at all. The
 * device `disk` has at least 1 MiB. The device `silent` never answers.
 */
#define _GNU_SOURCE
#include "ring.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/time.h>

enum {
	BLOCK = 4096,
	REQUESTS = 8,
	/*
	 * Maximum number of requests of a small ring that are in flight on one device. Further
	 * requests wait for room.
	 */
	OUT = 128,
	ROUNDS = 50,
	/* Time limit of every wait, in milliseconds. */
	LIMIT = 30000,
	/* Milliseconds that a check spends on trying to hit a race. */
	TRIED = 2500,
	/* A constant that Debian's headers lack. */
	SETUP_HYBRID_IOPOLL = 1 << 17,
	/* BLOCK_URING_CMD_DISCARD, which is _IO(0x12, 0). */
	DISCARD = 0x1200,
};

static char *memory;
static int disk, silent;
/* Whether the disk stores the data that is written to it. */
static int keeps;

static void start(void)
{
	disk = open("disk", O_RDWR | O_DIRECT);
	silent = open("silent", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0 && silent >= 0);
	HOLDS(posix_memalign((void **)&memory, BLOCK, REQUESTS * BLOCK) == 0);
	memset(memory, 1, BLOCK);
	EQUAL(pwrite(disk, memory, BLOCK, 0), BLOCK);
	memset(memory, 0, BLOCK);
	EQUAL(pread(disk, memory, BLOCK, 0), BLOCK);
	keeps = memory[0];
}

static void read_block(struct io_uring *ring, int file, int index, unsigned flags)
{
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_read(sqe, file, memory + index * BLOCK, BLOCK, (uint64_t)index * BLOCK);
	named(sqe, (uint64_t)index, flags);
}

/*
 * Submits the pushed SQEs, `count` of them. On a ring with an SQ thread, the result of
 * io_uring_submit does not count the SQEs that the SQ thread has already taken.
 */
static void submit(struct io_uring *ring, int count)
{
	int submitted = io_uring_submit(ring);
	if (ring->flags & IORING_SETUP_SQPOLL)
		HOLDS(submitted >= 0);
	else
		EQUAL(submitted, count);
}

static void read_blocks(struct io_uring *ring, unsigned flags)
{
	for (int index = 0; index < REQUESTS; index++)
		read_block(ring, disk, index, index + 1 < REQUESTS ? flags : 0);
	submit(ring, REQUESTS);
}

/* Polls the CQ in memory, without a system call, until the CQ holds `count` completions. */
static void see(struct io_uring *ring, unsigned count)
{
	long long end = milliseconds_now() + LIMIT;
	while (io_uring_cq_ready(ring) < count)
		HOLDS(milliseconds_now() < end);
}

static void take(struct io_uring *ring, unsigned count)
{
	while (count-- > 0)
		EQUAL(next_answer(ring).res, BLOCK);
}

static const unsigned UNPOLLED[] = { 0, IORING_SETUP_COOP_TASKRUN, IORING_SETUP_SQPOLL };

static void nobody_calls(unsigned flags)
{
	for (size_t kind = 0; kind < sizeof UNPOLLED / sizeof *UNPOLLED; kind++) {
		struct io_uring ring = new_ring(REQUESTS, UNPOLLED[kind]);
		for (int round = 0; round < ROUNDS; round++) {
			read_blocks(&ring, flags);
			see(&ring, REQUESTS);
			take(&ring, REQUESTS);
		}
		io_uring_queue_exit(&ring);
	}
}

static void seen_in_memory(void)
{
	nobody_calls(0);
}

static void chains_in_memory(void)
{
	nobody_calls(IOSQE_IO_LINK);
}

static void drains_in_memory(void)
{
	nobody_calls(IOSQE_IO_DRAIN);
}

/*
 * A worker carries out a write of a part of a block. The read that is linked behind this write must
 * complete, and find the written byte.
 */
static void behind_a_worker(void)
{
	struct io_uring ring = new_ring(REQUESTS, 0);
	int buffered = open("disk", O_RDWR);
	for (int round = 0; round < ROUNDS; round++) {
		char wanted = (char)round;
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_write(sqe, buffered, &wanted, 1, 7);
		named(sqe, 100, IOSQE_IO_LINK);
		read_block(&ring, disk, 0, 0);
		EQUAL(io_uring_submit(&ring), 2);
		see(&ring, 2);
		EQUAL(answer_to(&ring, 100).res, 1);
		EQUAL(answer_to(&ring, 0).res, BLOCK);
		EQUAL(memory[7], keeps ? wanted : 0);
	}
	close(buffered);
	io_uring_queue_exit(&ring);
}

enum { DEFERS = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN };

static void readable(int file)
{
	struct pollfd one = { .fd = file, .events = POLLIN };
	EQUAL(poll(&one, 1, LIMIT), 1);
}

/*
 * A ring with deferred task work must report that work is pending: by a flag, by its descriptor,
 * and by an eventfd.
 */
static void deferred_work_is_told(void)
{
	struct io_uring ring = new_ring(REQUESTS, DEFERS | IORING_SETUP_TASKRUN_FLAG);
	for (int round = 0; round < ROUNDS; round++) {
		read_blocks(&ring, 0);
		long long end = milliseconds_now() + LIMIT;
		while (!(IO_URING_READ_ONCE(*ring.sq.kflags) & IORING_SQ_TASKRUN) && !io_uring_cq_ready(&ring))
			HOLDS(milliseconds_now() < end);
		take(&ring, REQUESTS);
	}
	io_uring_queue_exit(&ring);

	ring = new_ring(REQUESTS, DEFERS);
	for (int round = 0; round < ROUNDS; round++) {
		read_blocks(&ring, 0);
		readable(ring.ring_fd);
		take(&ring, REQUESTS);
	}
	int event = eventfd(0, 0);
	uint64_t count;
	EQUAL(io_uring_register_eventfd(&ring, event), 0);
	for (int round = 0; round < ROUNDS; round++) {
		read_blocks(&ring, 0);
		readable(event);
		EQUAL(read(event, &count, sizeof count), sizeof count);
		take(&ring, REQUESTS);
	}
	io_uring_queue_exit(&ring);
	close(event);
}

/* There are far more completions than the CQ has room for. None may be lost. */
static void nothing_overflows_for_good(void)
{
	static const unsigned KINDS[] = { 0, IORING_SETUP_IOPOLL, DEFERS };
	for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) {
		struct io_uring_params params = {
			.flags = KINDS[kind] | IORING_SETUP_CQSIZE,
			.cq_entries = REQUESTS,
		};
		struct io_uring ring;
		EQUAL(io_uring_queue_init_params(REQUESTS, &ring, &params), 0);
		for (int round = 0; round < ROUNDS; round++)
			read_blocks(&ring, 0);
		take(&ring, ROUNDS * REQUESTS);
		io_uring_queue_exit(&ring);
	}
}

/* A linked timeout fires for a request that is in flight. The request stays in flight. */
static void a_linked_timeout_fires(void)
{
	struct __kernel_timespec time = { .tv_nsec = 20 * 1000 * 1000 };
	struct io_uring ring = new_ring(REQUESTS, 0);
	read_block(&ring, silent, 0, IOSQE_IO_LINK);
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_link_timeout(sqe, &time, 0);
	named(sqe, 100, 0);
	EQUAL(io_uring_submit(&ring), 2);
	EQUAL(answer_to(&ring, 100).res, -ENOENT);
	nothing_left(&ring);
	io_uring_queue_exit(&ring);

	time.tv_sec = 1000;
	ring = new_ring(REQUESTS, 0);
	read_block(&ring, disk, 0, IOSQE_IO_LINK);
	sqe = request(&ring);
	io_uring_prep_link_timeout(sqe, &time, 0);
	named(sqe, 100, 0);
	EQUAL(io_uring_submit(&ring), 2);
	EQUAL(answer_to(&ring, 0).res, BLOCK);
	EQUAL(answer_to(&ring, 100).res, -ECANCELED);
	io_uring_queue_exit(&ring);
}

static void quiet(int signal)
{
	(void)signal;
}

/* A signal must interrupt a thread that polls for a completion that never comes. */
static void polling_is_interrupted(void)
{
	struct io_uring ring = new_ring(REQUESTS, IORING_SETUP_IOPOLL);
	struct sigaction action = { .sa_handler = quiet }, before;
	read_block(&ring, silent, 0, 0);
	EQUAL(io_uring_submit(&ring), 1);
	/* The timer repeats, because its first signal may come before the call. */
	struct itimerval often = { { 0, 100 * 1000 }, { 1, 0 } }, never = { { 0, 0 }, { 0, 0 } };
	sigaction(SIGALRM, &action, &before);
	setitimer(ITIMER_REAL, &often, NULL);
	EQUAL(io_uring_enter((unsigned)ring.ring_fd, 0, 1, IORING_ENTER_GETEVENTS, NULL), -EINTR);
	setitimer(ITIMER_REAL, &never, NULL);
	sigaction(SIGALRM, &before, NULL);
	alarm(SECONDS_PER_CHECK);
	io_uring_queue_exit(&ring);
}

/*
 * If a wait asks for more completions than requests are in flight, it returns when all have
 * completed.
 */
static void no_more_is_waited_for_than_is_out(void)
{
	struct io_uring ring = new_ring(2 * REQUESTS, IORING_SETUP_IOPOLL);
	for (int round = 0; round < ROUNDS; round++) {
		for (int index = 0; index < REQUESTS; index++)
			read_block(&ring, disk, index, 0);
		EQUAL(io_uring_submit_and_wait(&ring, 2 * REQUESTS), REQUESTS);
		EQUAL(io_uring_cq_ready(&ring), REQUESTS);
		take(&ring, REQUESTS);
	}
	io_uring_queue_exit(&ring);
}

static int cancel(struct io_uring *ring, uint64_t name)
{
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_cancel64(sqe, name, 0);
	named(sqe, 1000, 0);
	EQUAL(io_uring_submit(ring), 1);
	return answer_to(ring, 1000).res;
}

/*
 * A request that the device has taken cannot be cancelled. A request that waits for room in the
 * device can be cancelled.
 */
static void what_waits_for_room_is_cancelled(void)
{
	struct io_uring ring = new_ring(REQUESTS, 0);
	for (int index = 0; index < OUT + REQUESTS; index++) {
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_read(sqe, silent, memory, BLOCK, 0);
		named(sqe, (uint64_t)index, 0);
		EQUAL(io_uring_submit(&ring), 1);
	}
	EQUAL(cancel(&ring, 0), -ENOENT);
	EQUAL(cancel(&ring, OUT - 1), -ENOENT);
	for (int index = OUT; index < OUT + REQUESTS; index++) {
		EQUAL(cancel(&ring, (uint64_t)index), 0);
		EQUAL(answer_to(&ring, (uint64_t)index).res, -ECANCELED);
	}
	EQUAL(cancel(&ring, OUT), -ENOENT);
	nothing_left(&ring);
	io_uring_queue_exit(&ring);
}

/* A registered buffer is replaced while a read into this buffer is in flight. */
static void a_buffer_is_retired_in_flight(void)
{
	static const unsigned KINDS[] = { 0, IORING_SETUP_IOPOLL };
	struct iovec whole = { .iov_base = memory, .iov_len = REQUESTS * BLOCK };
	for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) {
		struct io_uring ring = new_ring(REQUESTS, KINDS[kind]);
		for (int round = 0; round < ROUNDS; round++) {
			EQUAL(io_uring_register_buffers(&ring, &whole, 1), 0);
			memset(memory, round, REQUESTS * BLOCK);
			EQUAL(pwrite(disk, memory, REQUESTS * BLOCK, 0), REQUESTS * BLOCK);
			memset(memory, ~round, REQUESTS * BLOCK);
			for (int index = 0; index < REQUESTS; index++) {
				struct io_uring_sqe *sqe = request(&ring);
				io_uring_prep_read_fixed(sqe, disk, memory + index * BLOCK, BLOCK,
							 (uint64_t)index * BLOCK, 0);
			}
			EQUAL(io_uring_submit(&ring), REQUESTS);
			EQUAL(io_uring_unregister_buffers(&ring), 0);
			take(&ring, REQUESTS);
			for (int at = 0; keeps && at < REQUESTS * BLOCK; at++)
				EQUAL(memory[at], (char)round);
		}
		io_uring_queue_exit(&ring);
	}
}

/* The process executes another program while requests are in flight. */
static void executed_in_flight(void)
{
	for (int round = 0; round < 4; round++) {
		pid_t child = fork();
		HOLDS(child >= 0);
		if (child == 0) {
			alarm(SECONDS_PER_CHECK);
			struct io_uring ring = new_ring(2 * REQUESTS, round % 2 ? IORING_SETUP_IOPOLL : 0);
			for (int index = 0; index < REQUESTS; index++) {
				read_block(&ring, disk, index, 0);
				read_block(&ring, silent, index, 0);
			}
			EQUAL(io_uring_submit(&ring), 2 * REQUESTS);
			execl("/bin/true", "true", NULL);
			_exit(4);
		}
		int status;
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(status, 0);
		EQUAL(pread(disk, memory, BLOCK, 0), BLOCK);
	}
}

/* Makes io_submit(2) fail with EAGAIN from now on, as if the kernel's AIO had no room. */
static void take_all_room(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_submit, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = 4, .filter = filter };
	EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EQUAL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* A request for which the kernel has no room must not delay other requests. */
static void a_kernel_without_room_holds_nobody_up(void)
{
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		struct io_uring ring = new_ring(REQUESTS, 0);
		alarm(SECONDS_PER_CHECK);
		take_all_room();
		read_block(&ring, disk, 0, 0);
		EQUAL(io_uring_submit(&ring), 1);
		for (int round = 0; round < ROUNDS; round++) {
			struct io_uring_sqe *sqe = request(&ring);
			io_uring_prep_nop(sqe);
			named(sqe, 100, 0);
			EQUAL(io_uring_submit(&ring), 1);
			while (next_answer(&ring).user_data != 100)
				;
		}
		_exit(0);
	}
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

/*
 * On rings with hybrid polling every request must complete. On such a ring, a wait sleeps once for
 * each request before it polls.
 */
static void hybrid_rings_answer(void)
{
	struct io_uring ring = new_ring(REQUESTS, IORING_SETUP_IOPOLL | SETUP_HYBRID_IOPOLL);
	for (int round = 0; round < ROUNDS; round++) {
		read_blocks(&ring, 0);
		take(&ring, REQUESTS);
	}
	EQUAL(io_uring_cq_ready(&ring), 0);
	io_uring_queue_exit(&ring);
}

static int discard(struct io_uring *ring, uint64_t start, uint64_t length)
{
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_rw(IORING_OP_URING_CMD, sqe, disk, NULL, 0, DISCARD);
	sqe->addr = start;
	sqe->addr3 = length;
	named(sqe, 0, 0);
	EQUAL(io_uring_submit(ring), 1);
	return next_answer(ring).res;
}

/*
 * A ring discards a whole block of the disk by BLOCK_URING_CMD_DISCARD. A misaligned range, a range
 * beyond the disk, and a ring with IOPOLL are refused.
 */
static void a_range_is_discarded(void)
{
	struct io_uring ring = new_ring(REQUESTS, 0), polled = new_ring(REQUESTS, IORING_SETUP_IOPOLL);
	memset(memory, 1, 2 * BLOCK);
	EQUAL(pwrite(disk, memory, 2 * BLOCK, 0), 2 * BLOCK);
	EQUAL(discard(&ring, 0, BLOCK), 0);
	EQUAL(discard(&ring, 100, BLOCK), -EINVAL);
	EQUAL(discard(&ring, 0, 1LL << 40), -EINVAL);
	EQUAL(discard(&polled, 0, BLOCK), -EOPNOTSUPP);
	memset(memory, 2, 2 * BLOCK);
	EQUAL(pread(disk, memory, 2 * BLOCK, 0), 2 * BLOCK);
	if (keeps) {
		EQUAL(memory[0], 0);
		EQUAL(memory[BLOCK], 1);
	}
	io_uring_queue_exit(&ring);
	io_uring_queue_exit(&polled);
}

/* Rings are closed with requests in flight. No descriptor may stay open. */
static void closed_in_flight(void)
{
	int before = dup(disk);
	close(before);
	for (int round = 0; round < ROUNDS; round++) {
		struct io_uring ring = new_ring(2 * REQUESTS, round % 2 ? IORING_SETUP_IOPOLL : 0);
		for (int index = 0; index < REQUESTS; index++) {
			read_block(&ring, disk, index, 0);
			read_block(&ring, silent, index, 0);
		}
		EQUAL(io_uring_submit(&ring), 2 * REQUESTS);
		io_uring_queue_exit(&ring);
	}
	int after = dup(disk);
	EQUAL(after, before);
	close(after);
}

/*
 * A descriptor number is closed while the SQ thread looks it up. Afterwards the number belongs to a
 * ring.
 */
static void closed_under_the_sq_thread(void)
{
	struct io_uring ring = new_ring(REQUESTS, IORING_SETUP_SQPOLL);
	/*
	 * The number of rounds is limited by time, because on a busy machine each round waits for
	 * the SQ thread.
	 */
	long long end = milliseconds_now() + TRIED;
	for (int round = 0; round < 100 * ROUNDS && milliseconds_now() < end; round++) {
		int file = open("disk", O_RDWR);
		HOLDS(file >= 0);
		read_block(&ring, file, 0, 0);
		submit(&ring, 1);
		for (volatile int pause = 0; pause < round % 100 * 20; pause++)
			;
		EQUAL(close(file), 0);
		int res = next_answer(&ring).res;
		HOLDS(res == BLOCK || res == -EBADF);
		struct io_uring other = new_ring(REQUESTS, 0);
		io_uring_queue_exit(&other);
	}
	io_uring_queue_exit(&ring);
}

static void a_path_is_not_open(void)
{
	int path = open("disk", O_PATH);
	struct io_uring ring = new_ring(REQUESTS, 0);
	EQUAL(pread(path, memory, BLOCK, 0), -1);
	EQUAL(errno, EBADF);
	read_block(&ring, path, 0, 0);
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(answer_to(&ring, 0).res, -EBADF);
	io_uring_queue_exit(&ring);
	close(path);
}

/* This check must be the last, because it lowers a limit for good. */
static void no_room_for_numbers(void)
{
	struct rlimit limit = { .rlim_cur = 256, .rlim_max = 256 };
	EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
	EQUAL(open("disk", O_RDWR), -1);
	EQUAL(errno, EMFILE);
}

static const struct check checks[] = {
	{ "seen in memory", seen_in_memory },
	{ "chains in memory", chains_in_memory },
	{ "drains in memory", drains_in_memory },
	{ "behind a worker", behind_a_worker },
	{ "deferred work is told", deferred_work_is_told },
	{ "nothing overflows for good", nothing_overflows_for_good },
	{ "a linked timeout fires", a_linked_timeout_fires },
	{ "polling is interrupted", polling_is_interrupted },
	{ "no more is waited for than is out", no_more_is_waited_for_than_is_out },
	{ "what waits for room is cancelled", what_waits_for_room_is_cancelled },
	{ "a buffer is retired in flight", a_buffer_is_retired_in_flight },
	{ "executed in flight", executed_in_flight },
	{ "a kernel without room holds nobody up", a_kernel_without_room_holds_nobody_up },
	{ "hybrid rings answer", hybrid_rings_answer },
	{ "a range is discarded", a_range_is_discarded },
	{ "closed in flight", closed_in_flight },
	{ "closed under the SQ thread", closed_under_the_sq_thread },
	{ "a path is not open", a_path_is_not_open },
	{ "no room for numbers", no_room_for_numbers },
};

int main(int count, char **arguments)
{
	start();
	return RUN(checks, count, arguments);
}
