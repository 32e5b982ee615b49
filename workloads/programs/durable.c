/* A small store with planted bugs, for the tests of `usring crash`. It stores the numbers 1 to 3 in
 * the file "value" and prints each number once it is durable.
 *
 * usage: durable KIND BUG WAY
 *
 * KIND is rename (writes a new file, and renames it over the old one) or log (appends a body, and
 * then writes a header that counts the bodies). WAY is call or ring.
 *
 * - BUG none: the store is right.
 * - BUG linked: the store is right, too. It submits write and fsync as a chain.
 * - BUG folder: it forgets fsync of the folder.
 * - BUG nosync: it renames without fsync of the new file.
 * - BUG early: it prints before fsync.
 * - BUG header: it writes and syncs the header before the body.
 * - BUG retry: it repeats an fsync that failed, and goes on.
 * - BUG beside: it submits write and fsync in one batch, without a link. */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BODY = 1024, LINE = 16 };

static bool by_ring;
static struct io_uring ring;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int wait_for_one(void)
{
	struct io_uring_cqe *cqe;
	if (io_uring_submit_and_wait(&ring, 1) < 0 || io_uring_wait_cqe(&ring, &cqe) < 0)
		fail("io_uring_wait_cqe");
	int result = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return result;
}

static void put(int file, const void *data, unsigned size, off_t at)
{
	int written;
	if (by_ring) {
		io_uring_prep_write(io_uring_get_sqe(&ring), file, data, size, at);
		written = wait_for_one();
	} else {
		written = pwrite(file, data, size, at);
	}
	if (written != (int)size)
		fail("write");
}

/* Returns 0, or an errno. */
static int sync_file(int file)
{
	if (!by_ring)
		return fsync(file) == 0 ? 0 : errno;
	io_uring_prep_fsync(io_uring_get_sqe(&ring), file, 0);
	return -wait_for_one();
}

static void must_sync(int file)
{
	int error = sync_file(file);
	if (error) {
		errno = error;
		fail("fsync");
	}
}

static void promise(int number)
{
	printf("%d\n", number);
	fflush(stdout);
}

static bool is(const char *bug, const char *name)
{
	return strcmp(bug, name) == 0;
}

static void move(void)
{
	int failed;
	if (by_ring) {
		io_uring_prep_renameat(io_uring_get_sqe(&ring), AT_FDCWD, "new", AT_FDCWD, "value", 0);
		failed = wait_for_one();
	} else {
		failed = rename("new", "value");
	}
	if (failed)
		fail("rename");
}

static void store_by_rename(int number, const char *bug)
{
	char line[LINE];
	int size = snprintf(line, sizeof line, "%d\n", number);
	int file = open("new", O_CREAT | O_TRUNC | O_WRONLY, 0644);
	put(file, line, size, 0);
	if (is(bug, "early"))
		promise(number);
	if (!is(bug, "nosync"))
		must_sync(file);
	close(file);
	move();
	if (!is(bug, "folder")) {
		int folder = open(".", O_RDONLY | O_DIRECTORY);
		must_sync(folder);
		close(folder);
	}
	if (!is(bug, "early"))
		promise(number);
}

/* Submits the write and the fsync in one batch. Only IO_LINK makes the fsync wait for the write. */
static void put_and_sync(int file, const char *body, off_t at, bool links)
{
	io_uring_prep_write(io_uring_get_sqe(&ring), file, body, BODY, at);
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	io_uring_prep_fsync(sqe, file, 0);
	if (links) {
		/* The write is the entry before. */
		(sqe - 1)->flags |= IOSQE_IO_LINK;
	}
	for (int count = 0; count < 2; count++) {
		if (wait_for_one() < 0)
			fail("batch");
	}
}

/* The file begins with a header line, which counts the records. A record is the digit of its
 * number, repeated BODY times. */
static void store_in_log(int file, int number, const char *bug)
{
	char body[BODY], header[LINE] = { 0 };
	memset(body, '0' + number, sizeof body);
	snprintf(header, sizeof header, "%d\n", number);
	off_t at = LINE + (off_t)(number - 1) * BODY;
	if (is(bug, "header")) {
		put(file, header, sizeof header, 0);
		must_sync(file);
	}
	if (is(bug, "beside") || is(bug, "linked")) {
		put_and_sync(file, body, at, is(bug, "linked"));
	} else {
		put(file, body, sizeof body, at);
		if (is(bug, "early"))
			promise(number);
		if (sync_file(file) != 0) {
			if (!is(bug, "retry"))
				fail("fsync");
			must_sync(file);
		}
	}
	if (!is(bug, "header")) {
		put(file, header, sizeof header, 0);
		must_sync(file);
	}
	if (!is(bug, "early"))
		promise(number);
}

int main(int count, char **arguments)
{
	if (count != 4)
		return 2;
	const char *bug = arguments[2];
	by_ring = is(arguments[3], "ring");
	if (by_ring && io_uring_queue_init(8, &ring, 0) < 0)
		return 2;
	if (is(arguments[1], "rename")) {
		for (int number = 1; number <= 3; number++)
			store_by_rename(number, bug);
		return 0;
	}
	int file = open("value", O_RDWR);
	for (int number = 1; number <= 3; number++)
		store_in_log(file, number, bug);
	return 0;
}
