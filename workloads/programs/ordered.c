/*
 * Programs whose completions may come in several orders (usring run --order).
 *
 *     ordered trace       prints the order of its completions.
 *     ordered peeking     prints it, too, and looks for completions without waiting.
 *     ordered listening   prints it, too, and waits for the ring's eventfd.
 *     ordered sockets     receives from TCP connections that are ready at the same time.
 *     ordered threads     has two threads with a ring each.
 *     ordered assumes     reads a file in parts. Its bug: it takes the order for that of submission.
 *     ordered fixed       is the same program, and looks at user_data.
 *     ordered overflow    has more reads in flight than the CQ has entries.
 *     ordered loses       has more reads in flight than the CQ has entries, and takes completions only
 *                         from memory. Its bug: it ignores IORING_SQ_CQ_OVERFLOW.
 *     ordered flushes     is the same program, and enters the kernel when it sees the flag.
 *     ordered roomy-loses, ordered roomy-flushes
 *                         are these two programs with a CQ that has room for all their requests.
 *     ordered sleepy      submits to an SQ thread. Its bug: it ignores IORING_SQ_NEED_WAKEUP.
 *     ordered awake       is the same program, and wakes the SQ thread.
 *     ordered promised    checks the orders that the kernel keeps.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "check.h"

enum { BLOCK = 512, PARTS = 24 };

static char memory[PARTS][BLOCK];

/* Makes a file without a name: each part is filled with its own letter. */
static int new_file(void)
{
	char name[] = "/tmp/usring-ordered-XXXXXX", block[BLOCK];
	int part, file = mkstemp(name);

	HOLDS(file >= 0 && unlink(name) == 0);
	for (part = 0; part < PARTS; part++) {
		memset(block, 'a' + part, BLOCK);
		EQUAL(pwrite(file, block, BLOCK, (off_t)part * BLOCK), BLOCK);
	}
	return file;
}

static struct io_uring_sqe *request(struct io_uring *ring, unsigned long data)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	HOLDS(sqe != NULL);
	memset(sqe, 0, sizeof *sqe);
	sqe->user_data = data;
	return sqe;
}

/* Prepares a request and keeps its user_data, which some versions of liburing would clear. */
#define PREPARE(how, sqe, ...)                             \
	do {                                               \
		struct io_uring_sqe *sqe_ = (sqe);         \
		unsigned long data_ = sqe_->user_data;     \
		io_uring_prep_##how(sqe_, ##__VA_ARGS__);  \
		sqe_->user_data = data_;                   \
	} while (0)

static struct io_uring_cqe completion(struct io_uring *ring)
{
	struct io_uring_cqe *cqe, copy;
	int error;

	while ((error = io_uring_wait_cqe(ring, &cqe)) == -EINTR)
		;
	EQUAL(error, 0);
	copy = *cqe;
	io_uring_cqe_seen(ring, cqe);
	return copy;
}

/* Puts requests of many kinds into the SQ. Their user_data count from `first` on. */
static unsigned long fill(struct io_uring *ring, int file, int other, unsigned long first)
{
	static struct statx status[4];
	static char written[BLOCK];
	unsigned long data = first;
	int part;

	for (part = 0; part < 4; part++) {
		struct io_uring_sqe *sqe = request(ring, data++);

		PREPARE(read, sqe, file, memory[data % PARTS], BLOCK, (part + 3) * BLOCK);
		sqe = request(ring, data++);
		PREPARE(write, sqe, part % 2 ? other : file, written, BLOCK, (part * 2) * BLOCK);
		sqe = request(ring, data++);
		PREPARE(statx, sqe, AT_FDCWD, "/", 0, STATX_ALL, &status[part]);
		if (part % 2) {
			sqe = request(ring, data++);
			PREPARE(fsync, sqe, other, 0);
		}
		sqe = request(ring, data++);
		PREPARE(nop, sqe);
	}
	return data;
}

static void trace(void)
{
	struct io_uring ring;
	int file = new_file(), other = new_file(), round;
	unsigned long data = 0, seen = 0;

	EQUAL(io_uring_queue_init(64, &ring, 0), 0);
	for (round = 0; round < 4; round++) {
		data = fill(&ring, file, other, data);
		HOLDS(io_uring_submit(&ring) > 0);
		/* Some requests stay in flight while the next ones are submitted. */
		for (; seen + 7 < data; seen++)
			printf("%llu ", completion(&ring).user_data);
	}
	for (; seen < data; seen++)
		printf("%llu ", completion(&ring).user_data);
	printf("\n");
}

static void peeking(void)
{
	struct io_uring ring;
	int file = new_file(), other = new_file();
	unsigned long data, seen = 0;

	EQUAL(io_uring_queue_init(64, &ring, 0), 0);
	data = fill(&ring, file, other, 0);
	HOLDS(io_uring_submit(&ring) > 0);
	while (seen < data) {
		struct io_uring_cqe *cqe;

		if (io_uring_peek_cqe(&ring, &cqe) != 0) {
			look_again();
			continue;
		}
		printf("%llu ", cqe->user_data);
		io_uring_cqe_seen(&ring, cqe);
		seen++;
	}
	printf("\n");
}

static void listening(void)
{
	struct io_uring ring;
	int file = new_file(), other = new_file(), event = eventfd(0, 0);
	unsigned long data, seen = 0;

	EQUAL(io_uring_queue_init(64, &ring, 0), 0);
	EQUAL(io_uring_register_eventfd(&ring, event), 0);
	data = fill(&ring, file, other, 0);
	HOLDS(io_uring_submit(&ring) > 0);
	while (seen < data) {
		struct io_uring_cqe *cqe;
		eventfd_t value;

		EQUAL(eventfd_read(event, &value), 0);
		while (io_uring_peek_cqe(&ring, &cqe) == 0) {
			printf("%llu ", cqe->user_data);
			io_uring_cqe_seen(&ring, cqe);
			seen++;
		}
	}
	printf("\n");
}

/* Makes a TCP connection of the process to itself. */
static void connected(int ends[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	EQUAL(bind(listener, (struct sockaddr *)&address, length), 0);
	EQUAL(listen(listener, 1), 0);
	EQUAL(getsockname(listener, (struct sockaddr *)&address, &length), 0);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	EQUAL(connect(ends[0], (struct sockaddr *)&address, length), 0);
	ends[1] = accept(listener, NULL, NULL);
	HOLDS(ends[1] >= 0);
	close(listener);
}

static void sockets(void)
{
	struct io_uring ring;
	int ends[8][2], index;

	EQUAL(io_uring_queue_init(8, &ring, 0), 0);
	for (index = 0; index < 8; index++) {
		connected(ends[index]);
		PREPARE(recv, request(&ring, index), ends[index][0], memory[index], 1, 0);
	}
	EQUAL(io_uring_submit(&ring), 8);
	for (index = 0; index < 8; index++)
		EQUAL(write(ends[index][1], "x", 1), 1);
	for (index = 0; index < 8; index++) {
		struct io_uring_cqe cqe = completion(&ring);

		EQUAL(cqe.res, 1);
		printf("%llu ", cqe.user_data);
	}
	printf("\n");
}

static void *trace_in_thread(void *unused)
{
	trace();
	return unused;
}

static void threads(void)
{
	pthread_t thread;

	EQUAL(pthread_create(&thread, NULL, trace_in_thread, NULL), 0);
	EQUAL(pthread_join(thread, NULL), 0);
	trace();
}

/* Copies a file through a ring, several parts at a time. */
static void copy(int looks_at_user_data)
{
	struct io_uring ring;
	int file = new_file(), part;
	char whole[PARTS][BLOCK];

	EQUAL(io_uring_queue_init(64, &ring, 0), 0);
	for (part = 0; part < PARTS; part++)
		PREPARE(read, request(&ring, part), file, memory[part], BLOCK, (off_t)part * BLOCK);
	EQUAL(io_uring_submit(&ring), PARTS);
	for (part = 0; part < PARTS; part++) {
		struct io_uring_cqe cqe = completion(&ring);
		unsigned long place = looks_at_user_data ? cqe.user_data : (unsigned long)part;

		EQUAL(cqe.res, BLOCK);
		/* The bug: without user_data, `place` may be a part whose read has not completed yet. */
		memcpy(whole[place], memory[place], BLOCK);
	}
	for (part = 0; part < PARTS; part++)
		EQUAL(whole[part][0], 'a' + part);
	printf("copied\n");
}

static void assumes(void)
{
	copy(0);
}

static void fixed(void)
{
	copy(1);
}

static void overflow(void)
{
	struct io_uring_params params = { .flags = IORING_SETUP_CQSIZE, .cq_entries = 8 };
	struct io_uring ring;
	int file = new_file(), part, had_flag = 0;
	unsigned long sum = 0;

	EQUAL(io_uring_queue_init_params(8, &ring, &params), 0);
	for (part = 0; part < PARTS; part++) {
		PREPARE(read, request(&ring, part), file, memory[part], BLOCK, (off_t)part * BLOCK);
		if (part % 8 == 7)
			EQUAL(io_uring_submit(&ring), 8);
	}
	for (part = 0; part < PARTS; part++) {
		had_flag |= io_uring_cq_has_overflow(&ring);
		sum += completion(&ring).user_data;
	}
	EQUAL(sum, PARTS * (PARTS - 1) / 2);
	printf(had_flag ? "overflowed\n" : "fitted\n");
}

/* Submits without liburing, which would look at IORING_SQ_CQ_OVERFLOW. */
static void enter(struct io_uring *ring, unsigned count)
{
	__atomic_store_n(ring->sq.ktail, ring->sq.sqe_tail, __ATOMIC_RELEASE);
	ring->sq.sqe_head = ring->sq.sqe_tail;
	EQUAL(syscall(__NR_io_uring_enter, ring->ring_fd, count, 0, 0, NULL, 0), count);
}

/* Makes 96 reads, at most 16 at a time. Looks for their CQEs only in the memory of the CQ. */
static void watch_memory(unsigned entries, int enters)
{
	struct io_uring_params params = { .flags = IORING_SETUP_CQSIZE, .cq_entries = entries };
	unsigned asked = 0, done = 0, sum = 0;
	long long last = milliseconds_now();
	struct io_uring ring;
	int file = new_file();

	EQUAL(io_uring_queue_init_params(4, &ring, &params), 0);
	while (done < 4 * PARTS) {
		struct io_uring_cqe *cqe;
		unsigned head, part, count = 0;

		if (asked < 4 * PARTS && asked - done <= 12) {
			for (part = 0; part < 4; part++)
				PREPARE(read, request(&ring, ++asked), file, memory[asked % PARTS], BLOCK,
					(off_t)(asked % PARTS) * BLOCK);
			enter(&ring, 4);
		}
		io_uring_for_each_cqe(&ring, head, cqe) {
			EQUAL(cqe->res, BLOCK);
			sum += cqe->user_data;
			printf("%llu ", cqe->user_data);
			count++;
		}
		io_uring_cq_advance(&ring, count);
		done += count;
		/* The bug: the kernel keeps completions back until the program enters it. */
		if (enters && count == 0 && io_uring_cq_has_overflow(&ring))
			EQUAL(io_uring_get_events(&ring), 0);
		if (count != 0)
			last = milliseconds_now();
		HOLDS("no completion is missing" && milliseconds_now() < last + 2000);
		look_again();
	}
	EQUAL(sum, 4 * PARTS * (4 * PARTS + 1) / 2);
	printf("\n");
}

static void loses(void)
{
	watch_memory(8, 0);
}

static void flushes(void)
{
	watch_memory(8, 1);
}

static void roomy_loses(void)
{
	watch_memory(32, 0);
}

static void roomy_flushes(void)
{
	watch_memory(32, 1);
}

static void submit_to_thread(int wakes)
{
	struct io_uring_params params = { .flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 2000 };
	struct io_uring ring;
	int round;

	EQUAL(io_uring_queue_init_params(8, &ring, &params), 0);
	for (round = 0; round < 20; round++) {
		struct __kernel_timespec limit = { .tv_nsec = 300000000 };
		struct io_uring_cqe *cqe;

		PREPARE(nop, request(&ring, round));
		if (wakes) {
			EQUAL(io_uring_submit(&ring), 1);
		} else {
			/* Submits as io_uring_submit does, but ignores IORING_SQ_NEED_WAKEUP. */
			__atomic_store_n(ring.sq.ktail, ring.sq.sqe_tail, __ATOMIC_RELEASE);
			ring.sq.sqe_head = ring.sq.sqe_tail;
		}
		EQUAL(io_uring_wait_cqe_timeout(&ring, &cqe, wakes ? NULL : &limit), 0);
		io_uring_cqe_seen(&ring, cqe);
		usleep(200);
	}
	printf("served\n");
}

static void sleepy(void)
{
	submit_to_thread(0);
}

static void awake(void)
{
	submit_to_thread(1);
}

/* The checks of `promised`. */

static void a_chain_keeps_its_order(void)
{
	struct io_uring ring;
	int file = new_file(), copied = new_file(), part;

	EQUAL(io_uring_queue_init(64, &ring, 0), 0);
	for (part = 0; part < 8; part++) {
		struct io_uring_sqe *sqe = request(&ring, 2 * part);

		PREPARE(read, sqe, file, memory[0], BLOCK, (off_t)part * BLOCK);
		sqe->flags |= IOSQE_IO_LINK;
		sqe = request(&ring, 2 * part + 1);
		PREPARE(write, sqe, copied, memory[0], BLOCK, (off_t)(7 - part) * BLOCK);
		sqe->flags |= part < 7 ? IOSQE_IO_LINK : 0;
	}
	EQUAL(io_uring_submit(&ring), 16);
	for (part = 0; part < 16; part++)
		EQUAL(completion(&ring).user_data, part);
	for (part = 0; part < 8; part++) {
		EQUAL(pread(copied, memory[1], BLOCK, (off_t)part * BLOCK), BLOCK);
		EQUAL(memory[1][0], 'a' + 7 - part);
	}
	io_uring_queue_exit(&ring);
}

static void a_broken_chain_ends(void)
{
	struct io_uring ring;
	int file = new_file(), index;

	EQUAL(io_uring_queue_init(8, &ring, 0), 0);
	for (index = 0; index < 3; index++) {
		struct io_uring_sqe *sqe = request(&ring, index);

		/* The first read ends behind the file's end, so it is short. */
		PREPARE(read, sqe, file, memory[0], 2 * BLOCK, index ? 0 : (PARTS - 1) * BLOCK);
		sqe->flags |= index < 2 ? IOSQE_IO_LINK : 0;
	}
	EQUAL(io_uring_submit(&ring), 3);
	for (index = 0; index < 3; index++) {
		struct io_uring_cqe cqe = completion(&ring);

		EQUAL(cqe.user_data, index);
		EQUAL(cqe.res, index ? -ECANCELED : BLOCK);
	}
	io_uring_queue_exit(&ring);
}

static void a_drain_waits_for_all_before_it(void)
{
	struct io_uring ring;
	int file = new_file(), index;

	EQUAL(io_uring_queue_init(64, &ring, 0), 0);
	for (index = 0; index < 21; index++) {
		struct io_uring_sqe *sqe = request(&ring, index);

		if (index == 10) {
			PREPARE(fsync, sqe, file, 0);
			sqe->flags |= IOSQE_IO_DRAIN;
		} else {
			PREPARE(read, sqe, file, memory[index], BLOCK, (off_t)index * BLOCK);
		}
	}
	EQUAL(io_uring_submit(&ring), 21);
	for (index = 0; index < 21; index++) {
		unsigned long data = completion(&ring).user_data;

		HOLDS(index < 10 ? data < 10 : index > 10 ? data > 10 : data == 10);
	}
	io_uring_queue_exit(&ring);
}

static void writes_to_one_file_keep_their_order(void)
{
	struct io_uring ring;
	int file = new_file(), index;

	EQUAL(io_uring_queue_init(64, &ring, 0), 0);
	HOLDS(lseek(file, 0, SEEK_SET) == 0);
	for (index = 0; index < PARTS; index++) {
		memset(memory[index], 'A' + index, BLOCK);
		/* The offset -1 means the file's position, so the order of the writes decides the content. */
		PREPARE(write, request(&ring, index), file, memory[index], BLOCK, -1);
	}
	EQUAL(io_uring_submit(&ring), PARTS);
	for (index = 0; index < PARTS; index++)
		EQUAL(completion(&ring).user_data, index);
	for (index = 0; index < PARTS; index++) {
		EQUAL(pread(file, memory[0], BLOCK, (off_t)index * BLOCK), BLOCK);
		EQUAL(memory[0][0], 'A' + index);
	}
	io_uring_queue_exit(&ring);
}

static void what_the_submitter_does_keeps_its_order(void)
{
	struct io_uring ring;
	int pipes[2], index;

	EQUAL(pipe(pipes), 0);
	EQUAL(io_uring_queue_init(64, &ring, 0), 0);
	for (index = 0; index < 10; index++) {
		PREPARE(nop, request(&ring, 3 * index));
		PREPARE(write, request(&ring, 3 * index + 1), pipes[1], "x", 1, -1);
		PREPARE(read, request(&ring, 3 * index + 2), pipes[0], memory[0], 1, -1);
	}
	EQUAL(io_uring_submit(&ring), 30);
	for (index = 0; index < 30; index++)
		EQUAL(completion(&ring).user_data, index);
	io_uring_queue_exit(&ring);
}

static void waiting_reads_of_pipes_keep_their_order(void)
{
	struct io_uring ring;
	int pipes[8][2], index;

	EQUAL(io_uring_queue_init(64, &ring, 0), 0);
	for (index = 0; index < 8; index++) {
		EQUAL(pipe(pipes[index]), 0);
		PREPARE(read, request(&ring, index), pipes[index][0], memory[index], 1, -1);
	}
	EQUAL(io_uring_submit(&ring), 8);
	for (index = 7; index >= 0; index--)
		EQUAL(write(pipes[index][1], "x", 1), 1);
	for (index = 7; index >= 0; index--)
		EQUAL(completion(&ring).user_data, index);
	io_uring_queue_exit(&ring);
}

static void a_cancelled_request_ends_once(void)
{
	struct io_uring ring;
	int file = new_file(), round;

	EQUAL(io_uring_queue_init(8, &ring, 0), 0);
	for (round = 0; round < 50; round++) {
		struct io_uring_cqe first, second;
		int of_cancel, of_read;

		PREPARE(read, request(&ring, 1), file, memory[0], BLOCK, 0);
		EQUAL(io_uring_submit(&ring), 1);
		PREPARE(cancel64, request(&ring, 2), 1, 0);
		EQUAL(io_uring_submit(&ring), 1);
		first = completion(&ring);
		second = completion(&ring);
		EQUAL(first.user_data + second.user_data, 3);
		of_cancel = first.user_data == 2 ? first.res : second.res;
		of_read = first.user_data == 1 ? first.res : second.res;
		HOLDS(of_read == BLOCK ? of_cancel == -ENOENT || of_cancel == -EALREADY
				       : of_read == -ECANCELED && of_cancel == 0);
	}
	io_uring_queue_exit(&ring);
}

static void a_timeout_comes_in_time(void)
{
	struct __kernel_timespec soon = { .tv_nsec = 5000000 };
	struct io_uring ring;
	int file = new_file(), index, timeouts = 0;

	EQUAL(io_uring_queue_init(8, &ring, 0), 0);
	PREPARE(timeout, request(&ring, 100), &soon, 0, 0);
	PREPARE(read, request(&ring, 1), file, memory[0], BLOCK, 0);
	EQUAL(io_uring_submit(&ring), 2);
	for (index = 0; index < 2; index++) {
		struct io_uring_cqe cqe = completion(&ring);

		EQUAL(cqe.res, cqe.user_data == 100 ? -ETIME : BLOCK);
		timeouts += cqe.user_data == 100;
	}
	EQUAL(timeouts, 1);
	io_uring_queue_exit(&ring);
}

#define CHECK(name) { #name, name }

static const struct check promises[] = {
	CHECK(a_chain_keeps_its_order),
	CHECK(a_broken_chain_ends),
	CHECK(a_drain_waits_for_all_before_it),
	CHECK(writes_to_one_file_keep_their_order),
	CHECK(what_the_submitter_does_keeps_its_order),
	CHECK(waiting_reads_of_pipes_keep_their_order),
	CHECK(a_cancelled_request_ends_once),
	CHECK(a_timeout_comes_in_time),
};

static const struct check programs[] = {
	CHECK(trace),    CHECK(peeking), CHECK(listening), CHECK(threads), CHECK(assumes),
	CHECK(sockets),  CHECK(fixed),    CHECK(overflow), CHECK(sleepy),   CHECK(awake),
	CHECK(loses),    CHECK(flushes),  { "roomy-loses", roomy_loses },   { "roomy-flushes", roomy_flushes },
};

int main(int count, char **arguments)
{
	if (count > 1 && strcmp(arguments[1], "promised") == 0)
		return RUN(promises, count - 1, arguments + 1);
	return RUN(programs, count, arguments);
}
