/*
 * A server with as many connections as its limit of open files allows. On each connection a request
 * waits. Every request must be served, and the program must get every descriptor number below its
 * limit. The argument, if there is one, is the soft limit of the second check.
 */
#define _GNU_SOURCE
#include "check.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { MOST = 30000, BATCH = 64 };

/* Numbers that are not connections: standard streams, the ring, and inherited files. */
enum { FEW = 32 };

/*
 * If the limit is above AMPLE, usring takes BORROWED of the numbers below it for itself
 * (docs/compatibility.md).
 */
enum { AMPLE = 8192, BORROWED = 1024 };

static int ends[MOST], spare[MOST];
static char bytes[MOST];
static rlim_t wanted;

static void submit_all(struct io_uring *ring)
{
	while (io_uring_sq_ready(ring) > 0)
		HOLDS(io_uring_submit(ring) > 0);
}

/*
 * Submits a request that waits for data at one end of a connection. Every second request is a
 * receive, and the others are polls.
 */
static void wait_for(struct io_uring *ring, int index)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	if (!sqe) {
		submit_all(ring);
		sqe = io_uring_get_sqe(ring);
	}
	if (index % 2)
		io_uring_prep_recv(sqe, ends[index], &bytes[index], 1, 0);
	else
		io_uring_prep_poll_add(sqe, ends[index], POLLIN);
	io_uring_sqe_set_data64(sqe, index);
}

/* Opens connections until the limit is reached, and serves each of them. */
static void serve(rlim_t soft, rlim_t hard)
{
	struct rlimit limit = { soft, hard };
	struct io_uring_params params = { .flags = IORING_SETUP_CQSIZE, .cq_entries = 65536 };
	struct io_uring ring;
	int count = 0, spares = 0, served, index, highest = 0, number;

	EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
	EQUAL(io_uring_queue_init_params(BATCH, &ring, &params), 0);
	while (count + 2 <= MOST && socketpair(AF_UNIX, SOCK_STREAM, 0, &ends[count]) == 0) {
		wait_for(&ring, count);
		wait_for(&ring, count + 1);
		count += 2;
	}
	EQUAL(errno, EMFILE);
	submit_all(&ring);
	/* The program must also get the remaining numbers up to the limit. */
	while ((number = eventfd(0, 0)) >= 0)
		spare[spares++] = number;
	EQUAL(errno, EMFILE);
	for (index = 0; index < count; index++)
		highest = ends[index] > highest ? ends[index] : highest;
	for (index = 0; index < spares; index++)
		highest = spare[index] > highest ? spare[index] : highest;
	EQUAL(highest, (long long)soft - 1);
	HOLDS(count + spares + FEW >= (long long)soft - (soft > AMPLE ? BORROWED : 0));

	for (index = 0; index < count; index++)
		EQUAL(send(ends[index ^ 1], "x", 1, MSG_DONTWAIT), 1);
	for (served = 0; served < count; served++) {
		struct io_uring_cqe *cqe;
		EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
		EQUAL(cqe->res, cqe->user_data % 2 ? 1 : POLLIN);
		io_uring_cqe_seen(&ring, cqe);
	}
	printf("%d requests waited below a limit of %llu\n", count, (unsigned long long)soft);
	for (index = 0; index < count; index++)
		close(ends[index]);
	for (index = 0; index < spares; index++)
		close(spare[index]);
	io_uring_queue_exit(&ring);
}

static rlim_t hard_limit(void)
{
	struct rlimit limit;
	EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
	return limit.rlim_max;
}

/*
 * Uses the usual soft limit of 1,024. If the hard limit is low, uses a lower soft limit, so that a
 * ring and its requests have room between the two limits.
 */
static void usual_limit(void)
{
	rlim_t hard = hard_limit();
	serve(hard > 2048 + 64 ? 1024 : hard / 2 - 64, hard);
}

/*
 * Each waiting request has a duplicate of its descriptor. The number of the duplicate is between
 * the soft and the hard limit.
 */
static void as_many_as_the_hard_limit_allows(void)
{
	rlim_t hard = hard_limit();
	rlim_t most = hard < 40000 ? hard / 2 - 64 : 20000;
	serve(wanted ? wanted : most, hard);
}

/* Calls close(2) by a bare `syscall` instruction, so that no libc function of usring's sees it. */
static void close_plainly(int number)
{
	long answer;
	asm volatile("syscall" : "=a"(answer) : "0"(3L), "D"((long)number) : "rcx", "r11", "memory");
	(void)answer;
}

/*
 * The program closes descriptor numbers that do not belong to it. If the program opens a file at
 * such a number later, no part of usring may use that file.
 */
static void numbers_that_are_not_the_programs(void)
{
	enum { LOW = 256, WAITING = 40, FIRST_WATCHED = 600 };
	struct rlimit limit = { LOW, hard_limit() };
	struct io_uring ring;
	int pair[2], index, spares = 0, number;
	char byte;

	EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
	EQUAL(io_uring_queue_init(BATCH, &ring, 0), 0);
	for (index = 0; index < WAITING; index += 2) {
		EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, &ends[index]), 0);
		wait_for(&ring, index);
		wait_for(&ring, index + 1);
	}
	submit_all(&ring);
	for (number = LOW; number < FIRST_WATCHED; number++)
		close_plainly(number);
	/*
	 * Opens a pair of sockets at the first numbers above the limit, if the program can get them
	 * at all.
	 */
	while ((number = eventfd(0, 0)) >= 0 && number < LOW - 1)
		spare[spares++] = number;
	if (number >= 0)
		spare[spares++] = number;
	int has_pair = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0;
	for (index = 0; index < WAITING; index++)
		EQUAL(send(ends[index ^ 1], "x", 1, MSG_DONTWAIT), 1);
	for (index = 0; index < WAITING; index++) {
		struct io_uring_cqe *cqe;
		EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
		HOLDS(cqe->res > 0);
		io_uring_cqe_seen(&ring, cqe);
	}
	io_uring_submit(&ring);
	if (has_pair) {
		close_plainly(pair[0]);
		EQUAL(read(pair[1], &byte, 1), 0);
		close_plainly(pair[1]);
	}
	for (index = 0; index < WAITING; index++)
		close(ends[index]);
	for (index = 0; index < spares; index++)
		close(spare[index]);
	io_uring_queue_exit(&ring);
}

static const struct check checks[] = {
	{ "numbers that are not the program's", numbers_that_are_not_the_programs },
	{ "usual limit", usual_limit },
	{ "as many as the hard limit allows", as_many_as_the_hard_limit_allows },
};

int main(int count, char **arguments)
{
	wanted = count > 1 ? strtoull(arguments[1], NULL, 0) : 0;
	return run_checks(checks, sizeof checks / sizeof *checks, NULL);
}
