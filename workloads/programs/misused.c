/*
 * Planted bugs: ways to misuse a ring, each with its fixed twin. Arguments: the bug's name, and
 * "fixed" for the twin. The comments "NAME: submission" and "NAME: misdeed" mark the lines that
 * `usring run --check` has to name. `workloads/tests/check.rs` runs this program.
 */
#include "check.h"
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define LENGTH 4096

static struct io_uring ring;

/* Returns an SQE whose request cannot be confused with another. */
static struct io_uring_sqe *next(void)
{
	static unsigned long long count;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

	HOLDS(sqe != NULL);
	sqe->user_data = ++count;
	return sqe;
}

static int reap(void)
{
	struct io_uring_cqe *cqe;
	int result;

	EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
	result = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return result;
}

static void make_pipe(int ends[2])
{
	HOLDS(pipe(ends) == 0);
}

static void feed(int end)
{
	EQUAL(write(end, "x", 1), 1);
}

static int new_file(void)
{
	int file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);

	HOLDS(file >= 0);
	return file;
}

/* Frees the memory of a read that waits for its pipe. */
static void freed(bool fixed)
{
	char *buffer = malloc(LENGTH);
	int ends[2];

	make_pipe(ends);
	io_uring_prep_read(next(), ends[0], buffer, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1); /* freed: submission */
	if (!fixed)
		free(buffer); /* freed: misdeed */
	feed(ends[1]);
	EQUAL(reap(), 1);
	if (fixed)
		free(buffer);
}

/* Grows the memory of a read that waits, so that the memory moves. */
static void moved(bool fixed)
{
	char *buffer = malloc(LENGTH), *behind = malloc(LENGTH);
	int ends[2];

	make_pipe(ends);
	io_uring_prep_read(next(), ends[0], buffer, fixed ? 0 : LENGTH, 0);
	if (fixed)
		io_uring_prep_poll_add(io_uring_get_sqe(&ring), ends[0], POLLIN);
	HOLDS(io_uring_submit(&ring) > 0); /* moved: submission */
	buffer = realloc(buffer, 64 * LENGTH); /* moved: misdeed */
	feed(ends[1]);
	HOLDS(reap() >= 0);
	if (fixed)
		HOLDS(reap() > 0);
	free(buffer);
	free(behind);
}

/* Unmaps the memory of a read that waits. */
static void unmapped(bool fixed)
{
	char *buffer = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ends[2];

	HOLDS(buffer != MAP_FAILED);
	make_pipe(ends);
	io_uring_prep_read(next(), ends[0], buffer, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1); /* unmapped: submission */
	if (fixed) {
		feed(ends[1]);
		EQUAL(reap(), 1);
	}
	EQUAL(munmap(buffer, LENGTH), 0); /* unmapped: misdeed */
	if (!fixed) {
		feed(ends[1]);
		EQUAL(reap(), -EFAULT);
	}
}

/* Fills a socket, so that the next send waits. Returns the number of bytes. */
static size_t fill(int socket)
{
	static char zeroes[1 << 16];
	size_t total = 0;
	ssize_t sent;

	while ((sent = send(socket, zeroes, sizeof zeroes, MSG_DONTWAIT)) > 0)
		total += sent;
	return total;
}

static void empty(int socket, size_t bytes)
{
	static char heap[1 << 16];

	while (bytes > 0) {
		ssize_t received = recv(socket, heap, bytes < sizeof heap ? bytes : sizeof heap, 0);

		HOLDS(received > 0);
		bytes -= received;
	}
}

/* Reuses the memory of a send that waits. */
static void changed(bool fixed)
{
	static char buffer[LENGTH];
	int pair[2];
	size_t filled;

	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	filled = fill(pair[0]);
	memset(buffer, 'a', sizeof buffer);
	io_uring_prep_send(next(), pair[0], buffer, sizeof buffer, 0);
	EQUAL(io_uring_submit(&ring), 1); /* changed: submission */
	if (!fixed)
		memset(buffer, 'b', sizeof buffer);
	empty(pair[1], filled);
	EQUAL(reap(), sizeof buffer);
	if (fixed)
		memset(buffer, 'b', sizeof buffer);
}

__attribute__((noinline)) static void begin_read(int file, char *target)
{
	char local[64];

	io_uring_prep_read(next(), file, target ? target : local, sizeof local, 0);
	EQUAL(io_uring_submit(&ring), 1); /* dead-frame: submission */
}

/* Reads into a local variable of a function that returns before the read is done. */
static void dead_frame(bool fixed)
{
	char buffer[64];
	int ends[2];

	make_pipe(ends);
	begin_read(ends[0], fixed ? buffer : NULL);
	io_uring_prep_nop(next());
	EQUAL(io_uring_submit(&ring), 1); /* dead-frame: misdeed */
	EQUAL(reap(), 0);
	feed(ends[1]);
	EQUAL(reap(), 1);
}

/* Closes a socket while a receive waits for it. */
static void closed_file(bool fixed)
{
	char buffer[64];
	int pair[2];

	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	io_uring_prep_recv(next(), pair[0], buffer, sizeof buffer, 0);
	EQUAL(io_uring_submit(&ring), 1); /* closed-file: submission */
	if (fixed) {
		io_uring_prep_cancel64(next(), 1, 0);
		EQUAL(io_uring_submit(&ring), 1);
		HOLDS(reap() <= 0 && reap() <= 0);
	}
	EQUAL(close(pair[0]), 0); /* closed-file: misdeed */
	if (!fixed) {
		feed(pair[1]);
		EQUAL(reap(), 1);
	}
}

/* Does not take the completion of a write. */
static void unreaped(bool fixed)
{
	static char buffer[LENGTH];

	io_uring_prep_write(next(), new_file(), buffer, sizeof buffer, 0);
	EQUAL(io_uring_submit_and_wait(&ring, 1), 1); /* unreaped: submission */
	if (fixed)
		EQUAL(reap(), sizeof buffer);
}

/* Ends while a send waits. */
static void leaked(bool fixed)
{
	static char buffer[LENGTH];
	int pair[2];
	size_t filled;

	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	filled = fill(pair[0]);
	io_uring_prep_send(next(), pair[0], buffer, sizeof buffer, 0);
	EQUAL(io_uring_submit(&ring), 1); /* leaked: submission */
	if (fixed) {
		empty(pair[1], filled);
		EQUAL(reap(), sizeof buffer);
	}
}

/*
 * Links a write behind a read. The read is short, so the write is cancelled. Only the fixed twin
 * submits the rest again.
 */
static void broken_link(bool fixed)
{
	static char buffer[LENGTH];
	int ends[2], file = new_file(), length = sizeof buffer;
	struct io_uring_sqe *sqe;
	bool again;

	do {
		make_pipe(ends);
		feed(ends[1]);
		sqe = next();
		io_uring_prep_read(sqe, ends[0], buffer, length, 0);
		sqe->flags |= IOSQE_IO_LINK;
		io_uring_prep_write(next(), file, buffer, length, 0);
		EQUAL(io_uring_submit(&ring), 2); /* broken-link: submission */
		length = reap();
		again = reap() == -ECANCELED && fixed;
	} while (again);
}

/* Never fetches the completions for which the CQ has no room. */
static void overflowed(bool fixed)
{
	static long long one = 1;
	int ends[2], submitted = 0, count;

	/* A write into a pipe that has room is complete at once. */
	make_pipe(ends);
	for (; submitted < 40; submitted++) {
		io_uring_prep_write(next(), ends[1], &one, sizeof one, 0);
		EQUAL(io_uring_submit(&ring), 1); /* overflowed: submission */
	}
	/* The CQ has 16 entries. */
	for (count = 0; count < (fixed ? 40 : 16); count++)
		EQUAL(reap(), sizeof one);
}

/* Gives two polls the same user_data. */
static void user_data(bool fixed)
{
	int first[2], second[2];

	make_pipe(first);
	make_pipe(second);
	io_uring_prep_poll_add(next(), first[0], POLLIN);
	EQUAL(io_uring_submit(&ring), 1); /* user-data: misdeed */
	io_uring_prep_poll_add(next(), second[0], POLLIN);
	if (!fixed)
		ring.sq.sqes[(ring.sq.sqe_tail - 1) & *ring.sq.kring_mask].user_data = 1;
	EQUAL(io_uring_submit(&ring), 1); /* user-data: submission */
	feed(first[1]);
	feed(second[1]);
	EQUAL(reap(), POLLIN);
	EQUAL(reap(), POLLIN);
	/* The user_data of a completed request may be used again. */
	io_uring_prep_nop(next());
	ring.sq.sqes[(ring.sq.sqe_tail - 1) & *ring.sq.kring_mask].user_data = 1;
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(reap(), 0);
}

/*
 * Changes an SQE after the submission, while the SQ thread still takes the SQEs before it. If the
 * SQ thread was faster, tries again. The completion shows which user_data the SQ thread has taken.
 */
static void overwritten(bool fixed)
{
	enum { COUNT = 2048 };
	struct io_uring_sqe *sqe = NULL;
	struct io_uring_cqe *cqe;
	bool was_taken = false;
	int tries, index;

	io_uring_queue_exit(&ring);
	EQUAL(io_uring_queue_init(COUNT, &ring, IORING_SETUP_SQPOLL), 0);
	for (tries = 0; tries < 50 && !was_taken; tries++) {
		for (index = 0; index < COUNT; index++)
			io_uring_prep_nop(sqe = next());
		sqe->user_data = 1;
		HOLDS(io_uring_submit(&ring) >= 0); /* overwritten: submission */
		if (!fixed)
			*(volatile unsigned long long *)&sqe->user_data = 2;
		for (index = 0; index < COUNT; index++) {
			EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
			was_taken = index == COUNT - 1 && cqe->user_data == 2;
			io_uring_cqe_seen(&ring, cqe);
		}
	}
	HOLDS(fixed || was_taken);
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(bool fixed);
	} bugs[] = {
		{"freed", freed},
		{"moved", moved},
		{"unmapped", unmapped},
		{"changed", changed},
		{"dead-frame", dead_frame},
		{"closed-file", closed_file},
		{"unreaped", unreaped},
		{"leaked", leaked},
		{"broken-link", broken_link},
		{"overflowed", overflowed},
		{"user-data", user_data},
		{"overwritten", overwritten},
	};
	const char *name = count > 1 ? arguments[1] : "";
	size_t index;

	alarm(SECONDS_PER_CHECK);
	EQUAL(io_uring_queue_init(8, &ring, 0), 0);
	for (index = 0; index < sizeof bugs / sizeof *bugs; index++) {
		if (strcmp(bugs[index].name, name) == 0) {
			running = name;
			bugs[index].run(count > 2);
			printf("%s is done\n", name);
			return 0;
		}
	}
	printf("there is no bug '%s'\n", name);
	return 1;
}
