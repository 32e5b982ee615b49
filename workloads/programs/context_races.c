/*
 * Destroys AIO contexts while other threads submit to them and wait for their events:
 * `context_races FILE ROUNDS`. A call after the destruction must get EINVAL, no call may wait for
 * ever, and every event must belong to a request.
 */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>

enum { BLOCK = 4096, BLOCKS = 64, THREADS = 3, BATCH = 8 };

static aio_context_t context;
static char *memory;
static int file;

/* Submits requests and takes their events until the context is destroyed. */
static void *use(void *place)
{
	char *buffers = place;
	unsigned seed = (uintptr_t)place;
	struct iocb iocbs[BATCH], *list[BATCH];
	struct io_event events[2 * BATCH];
	for (;;) {
		for (int index = 0; index < BATCH; index++) {
			iocbs[index] = (struct iocb) {
				.aio_lio_opcode = IOCB_CMD_PREAD,
				.aio_fildes = file,
				.aio_buf = (uintptr_t)(buffers + index * BLOCK),
				.aio_nbytes = BLOCK,
				.aio_offset = rand_r(&seed) % BLOCKS * BLOCK,
			};
			list[index] = &iocbs[index];
		}
		if (syscall(SYS_io_submit, context, BATCH, list) < 0 && errno != EAGAIN) {
			EQUAL(errno, EINVAL);
			return NULL;
		}
		struct timespec limit = { 0, rand_r(&seed) % 2000000 };
		long taken = syscall(SYS_io_getevents, context, rand_r(&seed) % 4, 2 * BATCH, events, &limit);
		if (taken < 0) {
			EQUAL(errno, EINVAL);
			return NULL;
		}
		for (long index = 0; index < taken; index++)
			EQUAL(events[index].res, BLOCK);
	}
}

int main(int count, char **arguments)
{
	HOLDS(count == 3);
	signal(SIGALRM, too_long);
	alarm(SECONDS_PER_CHECK);
	file = open(arguments[1], O_RDONLY | O_DIRECT);
	HOLDS(file >= 0);
	HOLDS(posix_memalign((void **)&memory, BLOCK, THREADS * BATCH * BLOCK) == 0);
	unsigned seed = 7;
	for (int round = atoi(arguments[2]); round > 0; round--) {
		pthread_t threads[THREADS];
		context = 0;
		EQUAL(syscall(SYS_io_setup, 64, &context), 0);
		for (int index = 0; index < THREADS; index++)
			EQUAL(pthread_create(&threads[index], NULL, use, memory + index * BATCH * BLOCK), 0);
		usleep(rand_r(&seed) % 3000);
		EQUAL(syscall(SYS_io_destroy, context), 0);
		for (int index = 0; index < THREADS; index++)
			EQUAL(pthread_join(threads[index], NULL), 0);
	}
	puts("all gone");
	return 0;
}
