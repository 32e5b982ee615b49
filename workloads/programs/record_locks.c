/*
 * A POSIX record lock of the program survives requests, registrations and rings on the same file:
 * none of these counts as a close(2) of that file.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <sys/wait.h>

static struct io_uring ring;
static int file;

/* Returns whether another process sees the lock. */
static int is_locked(void)
{
	pid_t child = fork();
	if (child == 0) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
		int other = open("record_locks.file", O_RDWR);
		_exit(fcntl(other, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
	}
	int status = 0;
	EQUAL(waitpid(child, &status, 0), child);
	return WEXITSTATUS(status);
}

static void before_anything(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	file = open("record_locks.file", O_RDWR | O_CREAT, 0600);
	HOLDS(file >= 0 && fcntl(file, F_SETLK, &lock) == 0);
	ring = new_ring(8, 0);
	HOLDS(is_locked());
}

/*
 * A worker carries out syncs and buffered writes. Meanwhile usring has a duplicate of the file's
 * descriptor, and closing this duplicate must not release the lock.
 */
static void after_requests(void)
{
	for (int round = 0; round < 8; round++) {
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_fsync(sqe, file, 0);
		EQUAL(result_of(&ring, sqe), 0);
		sqe = request(&ring);
		io_uring_prep_write(sqe, file, "x", 1, round);
		EQUAL(result_of(&ring, sqe), 1);
	}
	HOLDS(is_locked());
}

static void while_registered(void)
{
	EQUAL(io_uring_register_files(&ring, &file, 1), 0);
	HOLDS(is_locked());
}

static void after_unregistering(void)
{
	EQUAL(io_uring_unregister_files(&ring), 0);
	HOLDS(is_locked());
}

/* Only a close(2) by the program releases the lock. */
static void after_the_ring(void)
{
	EQUAL(io_uring_register_files(&ring, &file, 1), 0);
	io_uring_queue_exit(&ring);
	HOLDS(is_locked());
	close(file);
	HOLDS(!is_locked());
}

int main(void)
{
	static const struct check checks[] = {
		{ "before anything", before_anything },
		{ "after requests", after_requests },
		{ "while the file is registered", while_registered },
		{ "after it was unregistered", after_unregistering },
		{ "after the ring was closed", after_the_ring },
	};
	return run_checks(checks, sizeof checks / sizeof *checks, NULL);
}
