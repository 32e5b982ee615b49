/*
 * Counts the notifications that a back end in another process gets. `disk` is a polled device of
 * that back end. usring notifies by write(2), and the kernel counts a process's writes. So the
 * program reads the number of notifications from the kernel's count.
 */
#define _GNU_SOURCE
#include "ring.h"

enum { BLOCK = 4096, BATCH = 32, ROUNDS = 200 };

static long writes(void)
{
	char text[512];
	int file = open("/proc/self/io", O_RDONLY);
	long length = read(file, text, sizeof text - 1);
	HOLDS(length > 0);
	close(file);
	text[length] = 0;
	const char *count = strstr(text, "syscw: ");
	HOLDS(count != NULL);
	return atol(count + strlen("syscw: "));
}

static void a_batch_is_told_of_once(void)
{
	struct io_uring ring = new_ring(BATCH, IORING_SETUP_IOPOLL);
	int disk = open("disk", O_RDWR | O_DIRECT);
	char *memory;
	HOLDS(disk >= 0);
	HOLDS(posix_memalign((void **)&memory, BLOCK, BATCH * BLOCK) == 0);
	long before = writes();
	for (int round = 0; round < ROUNDS; round++) {
		for (int index = 0; index < BATCH; index++) {
			struct io_uring_sqe *sqe = request(&ring);
			io_uring_prep_read(sqe, disk, memory + index * BLOCK, BLOCK, (uint64_t)index * BLOCK);
		}
		EQUAL(io_uring_submit_and_wait(&ring, BATCH), BATCH);
		for (int index = 0; index < BATCH; index++)
			EQUAL(next_answer(&ring).res, BLOCK);
	}
	HOLDS(writes() - before <= ROUNDS);
	io_uring_queue_exit(&ring);
}

static const struct check checks[] = {
	{ "a batch is told of once", a_batch_is_told_of_once },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
