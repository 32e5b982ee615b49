/*
 * Requests whose way through usring is known, for tests of `usring run --trace`.
 *
 * argv[1]:
 * - ways: one request for each way: inline, poll, worker, chain, drain, timer, error, multishot;
 * - drains: a drain with nothing in front, a read after it, and another read;
 * - children: requests of a parent, a forked child, and an executed program;
 * - nops N: N requests, one at a time;
 * - handler: a read, submitted by a signal handler on a stack of 8 KiB;
 * - hostile: a request, and then stores to the memory of the trace, which it also tries to cut;
 * - killed: ten requests, then SIGKILL.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

static void nops(int count)
{
	struct io_uring ring = new_ring(8, 0);
	for (int index = 0; index < count; index++) {
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_nop(sqe);
		EQUAL(result_of(&ring, sqe), 0);
	}
	io_uring_queue_exit(&ring);
}

static void on_files(struct io_uring *ring)
{
	char bytes[512] = "";
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_openat(sqe, AT_FDCWD, "traced.file", O_RDWR | O_CREAT, 0600);
	named(sqe, 0x10, 0);
	EQUAL(io_uring_submit(ring), 1);
	int file = answer_to(ring, 0x10).res;
	HOLDS(file >= 0);
	sqe = request(ring);
	io_uring_prep_write(sqe, file, bytes, sizeof bytes, 1024);
	named(sqe, 0x11, IOSQE_IO_LINK);
	sqe = request(ring);
	io_uring_prep_read(sqe, file, bytes, sizeof bytes, 1024);
	named(sqe, 0x12, 0);
	EQUAL(io_uring_submit(ring), 2);
	EQUAL(answer_to(ring, 0x11).res, sizeof bytes);
	EQUAL(answer_to(ring, 0x12).res, sizeof bytes);
	sqe = request(ring);
	io_uring_prep_read(sqe, file, bytes, sizeof bytes, 0);
	named(sqe, 0x13, IOSQE_ASYNC);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(answer_to(ring, 0x13).res, sizeof bytes);
	sqe = request(ring);
	io_uring_prep_fsync(sqe, file, 0);
	named(sqe, 0x14, 0);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(answer_to(ring, 0x14).res, 0);
	close(file);
	sqe = request(ring);
	io_uring_prep_read(sqe, file, bytes, sizeof bytes, 0);
	named(sqe, 0x15, 0);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(answer_to(ring, 0x15).res, -EBADF);
	sqe = request(ring);
	io_uring_prep_nop(sqe);
	sqe->opcode = 200;
	named(sqe, 0x16, 0);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(answer_to(ring, 0x16).res, -EINVAL);
}

static void waiting(struct io_uring *ring)
{
	struct __kernel_timespec time = { .tv_nsec = 2000000 };
	int pair[2];
	char byte;
	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_recv(sqe, pair[0], &byte, 1, 0);
	named(sqe, 0x20, 0);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(write(pair[1], "a", 1), 1);
	EQUAL(answer_to(ring, 0x20).res, 1);
	sqe = request(ring);
	io_uring_prep_timeout(sqe, &time, 0, 0);
	named(sqe, 0x21, 0);
	sqe = request(ring);
	io_uring_prep_nop(sqe);
	named(sqe, 0x22, IOSQE_IO_DRAIN);
	EQUAL(io_uring_submit(ring), 2);
	EQUAL(answer_to(ring, 0x21).res, -ETIME);
	EQUAL(answer_to(ring, 0x22).res, 0);
	sqe = request(ring);
	io_uring_prep_poll_multishot(sqe, pair[0], POLLIN);
	named(sqe, 0x23, 0);
	EQUAL(io_uring_submit(ring), 1);
	for (int index = 0; index < 3; index++) {
		EQUAL(write(pair[1], "a", 1), 1);
		HOLDS(answer_to(ring, 0x23).flags & IORING_CQE_F_MORE);
		EQUAL(read(pair[0], &byte, 1), 1);
	}
	sqe = request(ring);
	io_uring_prep_nop(sqe);
	named(sqe, 0x24, 0);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(answer_to(ring, 0x24).res, 0);
}

static void drains(void)
{
	char bytes[16];
	struct io_uring ring = new_ring(8, 0);
	int file = open("traced.file", O_RDWR | O_CREAT, 0600);
	HOLDS(file >= 0);
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_nop(sqe);
	named(sqe, 0x30, IOSQE_IO_DRAIN);
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(answer_to(&ring, 0x30).res, 0);
	for (int index = 1; index <= 2; index++) {
		sqe = request(&ring);
		io_uring_prep_read(sqe, file, bytes, sizeof bytes, 0);
		named(sqe, 0x30 + index, 0);
		EQUAL(io_uring_submit(&ring), 1);
		EQUAL(answer_to(&ring, 0x30 + index).res, 0);
	}
	io_uring_queue_exit(&ring);
}

static void children(const char *program)
{
	nops(3);
	for (int executes = 0; executes < 2; executes++) {
		int status;
		pid_t child = fork();
		HOLDS(child >= 0);
		if (child == 0 && executes)
			execl(program, program, "nops", "7", NULL);
		if (child == 0) {
			nops(5);
			_exit(0);
		}
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(status, 0);
	}
}

static struct io_uring *handlers_ring;

static void read_in_handler(int signal)
{
	char bytes[16];
	(void)signal;
	struct io_uring_sqe *sqe = request(handlers_ring);
	io_uring_prep_read(sqe, STDIN_FILENO, bytes, sizeof bytes, 0);
	HOLDS(result_of(handlers_ring, sqe) >= 0);
}

static void in_handler(void)
{
	static char memory[8192];
	stack_t stack = { .ss_sp = memory, .ss_size = sizeof memory };
	struct sigaction action = { .sa_handler = read_in_handler, .sa_flags = SA_ONSTACK };
	struct io_uring ring = new_ring(8, 0);
	handlers_ring = &ring;
	EQUAL(sigaltstack(&stack, NULL), 0);
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	raise(SIGUSR1);
	io_uring_queue_exit(&ring);
}

/* Opens the memory of the trace by the launcher's descriptor. */
static int memory_of_trace(void)
{
	for (int number = 0; number < 4096; number++) {
		char path[64], link[64] = "";
		snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getppid(), number);
		if (readlink(path, link, sizeof link - 1) > 0 && strncmp(link, "/memfd:usring-trace", 19) == 0)
			return open(path, O_RDWR);
	}
	return -1;
}

static void hostile(void)
{
	nops(1);
	int file = memory_of_trace();
	HOLDS(file >= 0);
	uint64_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	HOLDS(words != MAP_FAILED);
	for (int index = 2; index < 512; index++)
		words[index] = 1ull << 40;
	EQUAL(ftruncate(file, 0), -1);
}

int main(int count, char **arguments)
{
	const char *what = count > 1 ? arguments[1] : "";
	if (strcmp(what, "ways") == 0) {
		struct io_uring ring = new_ring(8, 0);
		on_files(&ring);
		waiting(&ring);
		io_uring_queue_exit(&ring);
	} else if (strcmp(what, "drains") == 0) {
		drains();
	} else if (strcmp(what, "children") == 0) {
		children(arguments[0]);
	} else if (strcmp(what, "nops") == 0 && count > 2) {
		nops(atoi(arguments[2]));
	} else if (strcmp(what, "handler") == 0) {
		in_handler();
	} else if (strcmp(what, "hostile") == 0) {
		hostile();
	} else if (strcmp(what, "killed") == 0) {
		nops(10);
		raise(SIGKILL);
	} else {
		return 2;
	}
	return 0;
}
