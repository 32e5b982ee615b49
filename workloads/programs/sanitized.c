/*
 * Planted bugs that `usring run --check` finds only in programs that are built with
 * AddressSanitizer, each with its fixed twin. Arguments: the bug's name, and "fixed" for the twin.
 * The comments "NAME: submission" and others mark the lines that the report has to name.
 * `workloads/tests/sanitizers.rs` runs this program.
 */
#include "check.h"
#include <fcntl.h>
#include <liburing.h>
#include <stdbool.h>
#include <sys/wait.h>

#define LENGTH 100

static struct io_uring ring;
static char global[LENGTH];

static int reap(void)
{
	struct io_uring_cqe *cqe;
	int result;

	EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
	result = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return result;
}

static void feed(int end, size_t bytes)
{
	static char zeroes[LENGTH];

	EQUAL(write(end, zeroes, bytes), bytes);
}

static int new_file(void)
{
	int file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);

	HOLDS(file >= 0);
	return file;
}

/* Reads into a block that was freed before the submission. */
static void use_freed(bool fixed)
{
	char *buffer = malloc(LENGTH), *volatile copy = buffer;
	int ends[2];

	HOLDS(pipe(ends) == 0);
	feed(ends[1], 1);
	if (!fixed)
		free(buffer); /* use-freed: recorded */
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], copy, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1); /* use-freed: submission */
	EQUAL(reap(), 1);
	if (fixed)
		free(buffer);
}

/* Reads more bytes than its block has. The pipe has fewer, so that no memory is damaged. */
static void overrun(bool fixed)
{
	char *buffer = malloc(LENGTH); /* overrun: recorded */
	int ends[2];

	HOLDS(pipe(ends) == 0);
	feed(ends[1], 1);
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], buffer, fixed ? LENGTH : LENGTH + 1, 0);
	EQUAL(io_uring_submit(&ring), 1); /* overrun: submission */
	EQUAL(reap(), 1);
	free(buffer);
}

/* Writes bytes from beyond the end of a global variable. */
static void global_overrun(bool fixed)
{
	size_t length = fixed ? sizeof global : sizeof global + 8;

	io_uring_prep_write(io_uring_get_sqe(&ring), new_file(), global, length, 0);
	EQUAL(io_uring_submit(&ring), 1); /* global-overrun: submission */
	EQUAL(reap(), length);
}

/* Writes bytes from beyond the end of a local variable. */
static void local_overrun(bool fixed)
{
	char local[LENGTH];
	size_t length = fixed ? sizeof local : sizeof local + 8;

	memset(local, 'x', sizeof local);
	io_uring_prep_write(io_uring_get_sqe(&ring), new_file(), local, length, 0);
	EQUAL(io_uring_submit(&ring), 1); /* local-overrun: submission */
	EQUAL(reap(), length);
}

/* Looks into the memory of a read before the read is done. */
static void touched(bool fixed)
{
	char *buffer = calloc(1, LENGTH);
	int ends[2];

	HOLDS(pipe(ends) == 0);
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], buffer, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1); /* touched: submission */
	if (!fixed)
		putchar(buffer[8]); /* touched: misdeed */
	feed(ends[1], 1);
	EQUAL(reap(), 1);
	putchar(buffer[8]);
	free(buffer);
}

/* Copies into the memory of a read before the read is done. */
static void copied(bool fixed)
{
	char *buffer = calloc(1, LENGTH);
	int ends[2];

	HOLDS(pipe(ends) == 0);
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], buffer, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1); /* copied: submission */
	if (!fixed)
		memcpy(buffer, global, LENGTH); /* copied: misdeed */
	feed(ends[1], 1);
	EQUAL(reap(), 1);
	memcpy(buffer, global, LENGTH);
	free(buffer);
}

/* Two reads into one block: the block is the program's only after the second completion. */
static void second_target(bool fixed)
{
	char *buffer = calloc(1, LENGTH);
	int first[2], second[2];

	HOLDS(pipe(first) == 0 && pipe(second) == 0);
	io_uring_prep_read(io_uring_get_sqe(&ring), first[0], buffer, LENGTH, 0);
	io_uring_prep_read(io_uring_get_sqe(&ring), second[0], buffer, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 2); /* second-target: submission */
	feed(first[1], 1);
	EQUAL(reap(), 1);
	if (!fixed)
		putchar(buffer[8]); /* second-target: misdeed */
	feed(second[1], 1);
	EQUAL(reap(), 1);
	putchar(buffer[8]);
	free(buffer);
}

/* The first request of a chain reads bytes, and the second writes these bytes. */
static void copy_by_a_chain(void)
{
	char *buffer = calloc(1, LENGTH);
	struct io_uring_sqe *sqe;
	int ends[2];

	HOLDS(pipe(ends) == 0);
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_read(sqe, ends[0], buffer, LENGTH, 0);
	sqe->flags |= IOSQE_IO_LINK;
	io_uring_prep_write(io_uring_get_sqe(&ring), new_file(), buffer, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 2);
	feed(ends[1], LENGTH);
	EQUAL(reap(), LENGTH);
	EQUAL(reap(), LENGTH);
	free(buffer);
}

/* The bytes beside a read's memory are the program's. */
static void neighbours(void)
{
	struct {
		char before[3], target[26], after[3];
	} *mixed = calloc(1, sizeof *mixed);
	int ends[2];

	HOLDS(pipe(ends) == 0);
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], mixed->target, sizeof mixed->target, 0);
	EQUAL(io_uring_submit(&ring), 1);
	memset(mixed->before, 'b', sizeof mixed->before);
	memset(mixed->after, 'a', sizeof mixed->after);
	feed(ends[1], 1);
	EQUAL(reap(), 1);
	free(mixed);
}

/* A forked child has a memory of its own, into which no request reads. */
static void forked_child(void)
{
	char *buffer = calloc(1, LENGTH);
	int ends[2], status;
	pid_t child;

	HOLDS(pipe(ends) == 0);
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], buffer, LENGTH, 0);
	EQUAL(io_uring_submit(&ring), 1);
	child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		memset(buffer, 'c', LENGTH);
		_exit(7);
	}
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 7 << 8);
	feed(ends[1], 1);
	EQUAL(reap(), 1);
	free(buffer);
}

/*
 * After a read was cancelled, its memory belongs to the program again. So does the memory of a read
 * whose ring was closed.
 */
static void cancelled(void)
{
	char *buffer = calloc(1, LENGTH);
	struct io_uring other;
	int ends[2];

	HOLDS(pipe(ends) == 0);
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], buffer, LENGTH, 0);
	io_uring_prep_cancel(io_uring_get_sqe(&ring), NULL, IORING_ASYNC_CANCEL_ANY);
	EQUAL(io_uring_submit(&ring), 2);
	HOLDS(reap() <= 1 && reap() <= 1);
	memset(buffer, 'c', LENGTH);
	EQUAL(io_uring_queue_init(4, &other, 0), 0);
	io_uring_prep_read(io_uring_get_sqe(&other), ends[0], buffer, LENGTH, 0);
	EQUAL(io_uring_submit(&other), 1);
	io_uring_queue_exit(&other);
	memset(buffer, 'd', LENGTH);
	free(buffer);
}

static void allowed(bool fixed)
{
	(void)fixed;
	copy_by_a_chain();
	neighbours();
	forked_child();
	cancelled();
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(bool fixed);
	} bugs[] = {
		{"use-freed", use_freed},
		{"overrun", overrun},
		{"global-overrun", global_overrun},
		{"local-overrun", local_overrun},
		{"touched", touched},
		{"copied", copied},
		{"second-target", second_target},
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
			printf("%s is done\n", name);
			return 0;
		}
	}
	printf("there is no bug '%s'\n", name);
	return 1;
}
