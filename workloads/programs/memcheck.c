/*
 * Planted bugs that Valgrind's memcheck finds in requests, each with its fixed twin. Arguments: the
 * bug's name, and "fixed" for the twin. The comments "NAME: misdeed" mark the lines that memcheck
 * has to name. `workloads/tests/sanitizers.rs` runs this program under Valgrind.
 */
#include "check.h"
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define LENGTH 100

static struct io_uring ring;

static int reap(void)
{
	struct io_uring_cqe *cqe;
	int result;

	EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
	result = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return result;
}

static int new_file(void)
{
	int file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);

	HOLDS(file >= 0);
	return file;
}

static void feed(int end, size_t bytes)
{
	static const char zeroes[LENGTH];

	EQUAL(write(end, zeroes, bytes), bytes);
}

/* Writes a block of which the program has set only the first half. */
static void undefined_write(bool fixed)
{
	char *block = malloc(LENGTH);

	memset(block, 'x', fixed ? LENGTH : LENGTH / 2);
	io_uring_prep_write(io_uring_get_sqe(&ring), new_file(), block, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1); /* undefined-write: misdeed */
	EQUAL(reap(), LENGTH);
	free(block);
}

/* Sends such a block on a socket. */
static void undefined_send(bool fixed)
{
	char *block = malloc(LENGTH);
	int pair[2];

	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	memset(block, 'x', fixed ? LENGTH : LENGTH / 2);
	io_uring_prep_send(io_uring_get_sqe(&ring), pair[0], block, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1); /* undefined-send: misdeed */
	EQUAL(reap(), LENGTH);
	free(block);
}

/* Branches on a byte of the block that a short read has not set. */
static void short_read(bool fixed)
{
	char *block = malloc(LENGTH);
	int ends[2];

	HOLDS(pipe(ends) == 0);
	feed(ends[1], 10);
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], block, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(reap(), 10);
	if (block[fixed ? 9 : 10] == 'x') /* short-read: misdeed */
		puts("an x");
	free(block);
}

/* Reads into a block that was freed. */
static void freed_target(bool fixed)
{
	char *block = malloc(LENGTH), *volatile copy = block;
	int ends[2];

	HOLDS(pipe(ends) == 0);
	feed(ends[1], LENGTH);
	if (!fixed)
		free(block);
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], copy, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1); /* freed-target: misdeed */
	EQUAL(reap(), LENGTH);
	if (fixed)
		free(block);
}

/* Returns whether all bytes have this value. */
static bool all_are(const char *bytes, size_t length, char value)
{
	while (length > 0 && bytes[length - 1] == value)
		length--;
	return length == 0;
}

/*
 * Runs a chain that writes the bytes that it has read. The chain's read waits for its pipe. Then
 * makes a read by a worker.
 */
static void reads_and_a_chain(void)
{
	char *block = malloc(LENGTH);
	struct io_uring_sqe *sqe;
	int ends[2];

	HOLDS(pipe(ends) == 0);
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_read(sqe, ends[0], block, LENGTH, 0);
	sqe->flags |= IOSQE_IO_LINK;
	io_uring_prep_write(io_uring_get_sqe(&ring), new_file(), block, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 2);
	feed(ends[1], LENGTH);
	EQUAL(reap(), LENGTH);
	EQUAL(reap(), LENGTH);
	HOLDS(all_are(block, LENGTH, 0));
	free(block);

	block = malloc(LENGTH);
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_read(sqe, open("data", O_RDONLY), block, LENGTH, 0);
	sqe->flags |= IOSQE_ASYNC;
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(reap(), LENGTH);
	HOLDS(all_are(block, LENGTH, 0));
	free(block);
}

/* The ring in an epoll set is ready exactly while it has completions. */
static void ring_in_an_epoll_set(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int set = epoll_create1(0);

	EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, ring.ring_fd, &event), 0);
	EQUAL(epoll_wait(set, &event, 1, 0), 0);
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(epoll_wait(set, &event, 1, 0), 1);
	EQUAL(reap(), 0);
	EQUAL(epoll_wait(set, &event, 1, 0), 0);
	EQUAL(close(set), 0);
}

static void allowed(bool fixed)
{
	(void)fixed;
	reads_and_a_chain();
	ring_in_an_epoll_set();
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(bool fixed);
	} bugs[] = {
		{"undefined-write", undefined_write},
		{"undefined-send", undefined_send},
		{"short-read", short_read},
		{"freed-target", freed_target},
		{"allowed", allowed},
	};
	const char *name = count > 1 ? arguments[1] : "";
	size_t index;

	alarm(SECONDS_PER_CHECK);
	EQUAL(io_uring_queue_init(8, &ring, 0), 0);
	for (index = 0; index < sizeof bugs / sizeof *bugs; index++) {
		if (strcmp(bugs[index].name, name) == 0) {
			running = name;
			bugs[index].run(count > 2);
			io_uring_queue_exit(&ring);
			printf("%s is done\n", name);
			return 0;
		}
	}
	printf("there is no bug '%s'\n", name);
	return 1;
}
