/*
 * Requests that fire the probes of libusring.so, for tests with tracers.
 *
 * argv[1]:
 * - steps FIFO: submits a read of a pipe, says "ready", and waits until FIFO has been opened for
 *   writing and closed. Then makes a request for each probe;
 * - nops: makes requests until it is killed.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Submits the requests that were prepared, and takes as many completions. */
static void done(struct io_uring *ring, int count)
{
	struct io_uring_cqe *cqe;
	EQUAL(io_uring_submit(ring), count);
	for (int index = 0; index < count; index++) {
		EQUAL(io_uring_wait_cqe(ring, &cqe), 0);
		io_uring_cqe_seen(ring, cqe);
	}
}

static void nop(struct io_uring *ring, uint64_t user_data, unsigned flags)
{
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_nop(sqe);
	named(sqe, user_data, flags);
}

static void receive(struct io_uring *ring)
{
	int pair[2];
	char byte;
	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_recv(sqe, pair[0], &byte, 1, 0);
	named(sqe, 0x20, 0);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(write(pair[1], "a", 1), 1);
	EQUAL(answer_to(ring, 0x20).res, 1);
}

static void queue(struct io_uring *ring, uint64_t user_data)
{
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_fsync(sqe, new_file(), 0);
	named(sqe, user_data, 0);
	done(ring, 1);
}

/* A read that is too short breaks its chain. */
static void chain(struct io_uring *ring)
{
	char bytes[8];
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_read(sqe, new_file(), bytes, sizeof bytes, 0);
	named(sqe, 0x40, IOSQE_IO_LINK);
	nop(ring, 0x41, 0);
	done(ring, 2);
}

static void drain(struct io_uring *ring)
{
	struct __kernel_timespec time = { .tv_nsec = 1000000 };
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_timeout(sqe, &time, 0, 0);
	named(sqe, 0x50, 0);
	nop(ring, 0x51, IOSQE_IO_DRAIN);
	done(ring, 2);
}

/* The CQ has 4 entries. */
static void overflow(void)
{
	struct io_uring ring = new_ring(2, 0);
	for (int index = 0; index < 5; index++) {
		nop(&ring, 0x60 + index, 0);
		EQUAL(io_uring_submit(&ring), 1);
	}
	for (int index = 0; index < 5; index++)
		EQUAL(answer_to(&ring, 0x60 + index).res, 0);
}

static void steps(const char *fifo)
{
	char bytes[8];
	int ends[2];
	new_pipe(ends);
	struct io_uring early = new_ring(4, 0);
	struct io_uring_sqe *sqe = request(&early);
	io_uring_prep_read(sqe, ends[0], bytes, sizeof bytes, 0);
	named(sqe, 0x10, 0);
	EQUAL(io_uring_submit(&early), 1);
	puts("ready");
	fflush(stdout);
	int go = open(fifo, O_RDONLY);
	HOLDS(go >= 0);
	EQUAL(read(go, bytes, sizeof bytes), 0);
	EQUAL(write(ends[1], "a", 1), 1);
	EQUAL(answer_to(&early, 0x10).res, 1);

	struct io_uring ring = new_ring(8, IORING_SETUP_SUBMIT_ALL);
	EQUAL(io_uring_register_files_sparse(&ring, 3), 0);
	nop(&ring, 0x11, 0);
	done(&ring, 1);
	sqe = request(&ring);
	io_uring_prep_nop(sqe);
	named(sqe, 0x12, 0);
	sqe->opcode = 200;
	done(&ring, 1);
	receive(&ring);
	queue(&ring, 0x30);
	chain(&ring);
	drain(&ring);
	overflow();
	struct io_uring deferring = new_ring(1, IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER);
	queue(&deferring, 0x31);
}

int main(int count, char **words)
{
	HOLDS(count >= 2);
	if (count == 3 && strcmp(words[1], "steps") == 0) {
		steps(words[2]);
		return 0;
	}
	struct io_uring ring = new_ring(8, 0);
	for (;;) {
		nop(&ring, 0x70, 0);
		done(&ring, 1);
	}
}
