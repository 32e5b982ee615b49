/*
 * Planted bugs that faults bring to light (usring run --inject), each with its fixed twin. The
 * program copies a file through a ring, and then compares the copy with the file.
 *
 *     careless short [fixed]      Its bug: it takes each transfer for whole.
 *     careless error [fixed]      Its bug: it ignores the errors of requests.
 *     careless eintr [fixed]      Its bug: if a signal interrupts io_uring_enter, it makes its
 *                                 request a second time.
 *     careless chain [fixed]      reads and writes by a chain. Its bug: it does not repeat the chain
 *                                 that a short read has broken.
 *
 * Prints "copied", "the copy differs" (with status 1), or "not copied" if it has noticed an error.
 */
#include <fcntl.h>
#include <liburing.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "check.h"

enum { BLOCK = 512, BLOCKS = 32, LENGTH = BLOCK * BLOCKS };

static struct io_uring ring;
static const char *bug;
static bool is_fixed;

/* Returns whether the program has this bug. */
static bool has(const char *name)
{
	return !is_fixed && strcmp(bug, name) == 0;
}

static void prepare(bool writes, int file, char *data, unsigned length, off_t at)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

	HOLDS(sqe != NULL);
	if (writes)
		io_uring_prep_write(sqe, file, data, length, at);
	else
		io_uring_prep_read(sqe, file, data, length, at);
}

static int result(void)
{
	struct io_uring_cqe *cqe;
	int error;

	while ((error = io_uring_wait_cqe(&ring, &cqe)) == -EINTR)
		;
	EQUAL(error, 0);
	error = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return error;
}

/* Makes one transfer, and returns its result. */
static int transfer(bool writes, int file, char *data, unsigned length, off_t at)
{
	int submitted;

	prepare(writes, file, data, length, at);
	while ((submitted = io_uring_submit(&ring)) == -EINTR)
		if (has("eintr"))
			prepare(writes, file, data, length, at);
	HOLDS(submitted >= 1);
	while (submitted-- > 1)
		result();
	return result();
}

/* Transfers all bytes. Returns false after an error. */
static bool transfer_all(bool writes, int file, char *data, unsigned length, off_t at)
{
	unsigned done = 0;

	while (done < length) {
		/* The copy is appended to, so its writes have no offset. */
		int moved = transfer(writes, file, data + done, length - done, writes ? -1 : at + done);

		if (moved < 0 && has("error"))
			return true;
		if (moved <= 0)
			return false;
		done += has("short") ? length : (unsigned)moved;
	}
	return true;
}

static bool copy(int source, int target)
{
	char data[BLOCK];
	int block;

	for (block = 0; block < BLOCKS; block++)
		if (!transfer_all(false, source, data, BLOCK, (off_t)block * BLOCK) ||
		    !transfer_all(true, target, data, BLOCK, -1))
			return false;
	return true;
}

/* Copies a block by a read and a write that is linked to it. */
static bool copy_by_chains(int source, int target)
{
	char data[BLOCK];
	int block;

	for (block = 0; block < BLOCKS; block++) {
		int read, written;

		do {
			prepare(false, source, data, BLOCK, (off_t)block * BLOCK);
			ring.sq.sqes[(ring.sq.sqe_tail - 1) & ring.sq.ring_mask].flags |= IOSQE_IO_LINK;
			prepare(true, target, data, BLOCK, -1);
			EQUAL(io_uring_submit(&ring), 2);
			read = result();
			written = result();
			if (read < 0 || (written < 0 && written != -ECANCELED))
				return false;
		} while (written == -ECANCELED && !has("chain"));
	}
	return true;
}

int main(int count, char **arguments)
{
	char written[LENGTH], found[LENGTH + 1];
	int source = open("source", O_RDWR | O_CREAT | O_TRUNC, 0600), index;
	int target = open("target", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
	bool is_whole;

	HOLDS(count >= 2 && source >= 0 && target >= 0);
	bug = arguments[1];
	is_fixed = count > 2 && strcmp(arguments[2], "fixed") == 0;
	alarm(SECONDS_PER_CHECK);
	for (index = 0; index < LENGTH; index++)
		written[index] = 'a' + index / BLOCK % 26;
	EQUAL(pwrite(source, written, LENGTH, 0), LENGTH);
	EQUAL(io_uring_queue_init(8, &ring, 0), 0);
	is_whole = strcmp(bug, "chain") == 0 ? copy_by_chains(source, target) : copy(source, target);
	if (!is_whole) {
		printf("not copied\n");
		return 0;
	}
	if (pread(target, found, sizeof found, 0) != LENGTH || memcmp(found, written, LENGTH) != 0) {
		printf("the copy differs\n");
		return 1;
	}
	printf("copied\n");
	return 0;
}
