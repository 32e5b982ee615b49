/*
 * Polled AIO as declared in usring_aio.h: checks every rule of a polled context.
 *
 * The run has three devices: `disk` (in memory), `slow` (whose requests take a second), and `told`
 * (which cannot be polled). `plain` is an ordinary file of 16 blocks.
 */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <usring.h>

enum { BLOCK = 4096, BLOCKS = 256, SLOW = 1000, PER_CALL = 127 };

/* The kernel's structure at the address of a context. */
struct aio_ring {
	unsigned id, nr, head, tail, magic, compat, incompat, header_length;
};

static char *memory;
static int disk, slow;

/* Returns the value as libaio's functions do: a negative errno on failure. */
static long answer(long value)
{
	return value < 0 ? -errno : value;
}

static long submit(struct io_context *context, long count, struct iocb **list)
{
	return answer(syscall(SYS_io_submit, context, count, list));
}

static long get(struct io_context *context, long least, long most, struct io_event *events, struct timespec *timeout)
{
	return answer(syscall(SYS_io_getevents, context, least, most, events, timeout));
}

static long destroy(struct io_context *context)
{
	return answer(syscall(SYS_io_destroy, context));
}

static struct io_context *make(unsigned flags)
{
	struct io_context *context = NULL;
	EQUAL(io_setup2(64, flags, NULL, NULL, &context), 0);
	return context;
}

static struct io_context *polled(void)
{
	return make(IOCTX_FLAG_IOPOLL);
}

static struct iocb request(int command, int file, long block)
{
	return (struct iocb) {
		.aio_data = block,
		.aio_lio_opcode = command,
		.aio_fildes = file,
		.aio_buf = (uintptr_t)(memory + block % BLOCKS * BLOCK),
		.aio_nbytes = BLOCK,
		.aio_offset = block % BLOCKS * BLOCK,
		.aio_flags = IOCB_FLAG_HIPRI,
	};
}

static long submit_one(struct io_context *context, struct iocb *iocb)
{
	return submit(context, 1, &iocb);
}

static void setup_refuses(void)
{
	struct io_context *context = NULL;
	for (unsigned bit = 1; bit < 32; bit++)
		EQUAL(io_setup2(8, 1U << bit, NULL, NULL, &context), -EINVAL);
	EQUAL(io_setup2(0, IOCTX_FLAG_IOPOLL, NULL, NULL, &context), -EINVAL);
	EQUAL(io_setup2(0x10000000 / 32 + 1, IOCTX_FLAG_IOPOLL, NULL, NULL, &context), -EINVAL);
	EQUAL(io_setup2(8, IOCTX_FLAG_IOPOLL, memory, NULL, &context), -EINVAL);
	EQUAL(io_setup2(8, IOCTX_FLAG_IOPOLL, NULL, memory, &context), -EINVAL);
	EQUAL(io_setup2(8, IOCTX_FLAG_IOPOLL, NULL, NULL, NULL), -EFAULT);
	HOLDS(context == NULL);
	context = polled();
	struct io_context *again = context;
	EQUAL(io_setup2(8, IOCTX_FLAG_IOPOLL, NULL, NULL, &again), -EINVAL);
	EQUAL(destroy(context), 0);
	EQUAL(destroy(context), -EINVAL);
}

static void reads_and_writes(void)
{
	struct io_context *context = polled();
	struct iocb iocbs[64], *list[64];
	struct io_event events[64];
	for (int round = 0; round < 2; round++) {
		for (int block = 0; block < 64; block++) {
			if (round == 0)
				memset(memory + block * BLOCK, block + 1, BLOCK);
			else
				memset(memory + block * BLOCK, 0, BLOCK);
			iocbs[block] = request(round == 0 ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD, disk, block);
			list[block] = &iocbs[block];
		}
		EQUAL(submit(context, 64, list), 64);
		unsigned long long seen = 0;
		for (int taken = 0; taken < 64;) {
			long count = get(context, 1, 64, events, NULL);
			HOLDS(count > 0);
			for (int index = 0; index < count; index++) {
				unsigned block = events[index].data;
				HOLDS(block < 64 && !(seen >> block & 1));
				seen |= 1ULL << block;
				EQUAL(events[index].res, BLOCK);
				EQUAL(events[index].res2, 0);
				HOLDS(events[index].obj == (uintptr_t)&iocbs[block]);
			}
			taken += count;
		}
		HOLDS(seen == ~0ULL);
	}
	for (int block = 0; block < 64; block++)
		HOLDS(memory[block * BLOCK] == block + 1 && memory[block * BLOCK + BLOCK - 1] == block + 1);
	EQUAL(destroy(context), 0);
}

static void vectors(void)
{
	struct io_context *context = polled();
	struct iovec halves[2] = { { memory + BLOCK, BLOCK }, { memory, BLOCK } };
	struct io_event event;
	struct iocb iocb = request(IOCB_CMD_PWRITEV, disk, 0);
	iocb.aio_buf = (uintptr_t)halves, iocb.aio_nbytes = 2;
	memset(memory, 'a', BLOCK), memset(memory + BLOCK, 'b', BLOCK);
	EQUAL(submit_one(context, &iocb), 1);
	EQUAL(get(context, 1, 1, &event, NULL), 1);
	EQUAL(event.res, 2 * BLOCK);
	iocb.aio_lio_opcode = IOCB_CMD_PREADV, iocb.aio_nbytes = 1;
	EQUAL(submit_one(context, &iocb), 1);
	EQUAL(get(context, 1, 1, &event, NULL), 1);
	EQUAL(event.res, BLOCK);
	HOLDS(memory[0] == 'a' && memory[BLOCK] == 'b');
	EQUAL(destroy(context), 0);
}

static void never_mixed(void)
{
	struct io_context *context = polled();
	struct iocb iocb = request(IOCB_CMD_PREAD, disk, 0);
	struct io_event event;
	iocb.aio_flags = 0;
	EQUAL(submit_one(context, &iocb), -EINVAL);
	struct io_context *other = make(0);
	EQUAL(submit_one(other, &iocb), 1);
	EQUAL(get(other, 1, 1, &event, NULL), 1);
	EQUAL(event.res, BLOCK);
	iocb.aio_flags = IOCB_FLAG_HIPRI;
	EQUAL(submit_one(other, &iocb), -EINVAL);
	/* A context of io_setup ignores IOCB_FLAG_HIPRI, as today's kernels do. */
	aio_context_t plain = 0;
	EQUAL(answer(syscall(SYS_io_setup, 8, &plain)), 0);
	EQUAL(submit_one((struct io_context *)plain, &iocb), 1);
	EQUAL(get((struct io_context *)plain, 1, 1, &event, NULL), 1);
	EQUAL(event.res, BLOCK);
	EQUAL(destroy(context), 0);
	EQUAL(destroy(other), 0);
	EQUAL(destroy((struct io_context *)plain), 0);
}

static void other_commands(void)
{
	struct io_context *context = polled();
	for (int command = 0; command < 12; command++) {
		struct iocb iocb = request(command, disk, 0);
		if (command == IOCB_CMD_PREAD || command == IOCB_CMD_PWRITE || command == 7 || command == 8)
			continue;
		iocb.aio_buf = 0, iocb.aio_nbytes = 0, iocb.aio_offset = 0;
		EQUAL(submit_one(context, &iocb), -EINVAL);
	}
	struct iocb iocb = request(IOCB_CMD_PREAD, disk, 0);
	iocb.aio_flags |= IOCB_FLAG_RESFD, iocb.aio_resfd = eventfd(0, 0);
	EQUAL(submit_one(context, &iocb), -EINVAL);
	close(iocb.aio_resfd);
	EQUAL(destroy(context), 0);
}

static long submit_to(struct io_context *context, const char *path, int flags, int command)
{
	int file = open(path, flags);
	HOLDS(file >= 0);
	struct iocb iocb = request(command, file, 0);
	long submitted = submit_one(context, &iocb);
	struct io_event event;
	if (submitted == 1) {
		EQUAL(get(context, 1, 1, &event, NULL), 1);
		EQUAL(event.res, BLOCK);
	}
	close(file);
	return submitted;
}

static void files(void)
{
	struct io_context *context = polled();
	EQUAL(submit_to(context, "disk", O_RDWR | O_DIRECT, IOCB_CMD_PREAD), 1);
	EQUAL(submit_to(context, "disk", O_RDWR, IOCB_CMD_PREAD), -EOPNOTSUPP);
	EQUAL(submit_to(context, "told", O_RDWR | O_DIRECT, IOCB_CMD_PREAD), -EOPNOTSUPP);
	EQUAL(submit_to(context, "plain", O_RDWR | O_DIRECT, IOCB_CMD_PREAD), 1);
	EQUAL(submit_to(context, "plain", O_RDWR, IOCB_CMD_PREAD), -EOPNOTSUPP);
	EQUAL(submit_to(context, "disk", O_WRONLY | O_DIRECT, IOCB_CMD_PREAD), -EBADF);
	EQUAL(submit_to(context, "disk", O_RDONLY | O_DIRECT, IOCB_CMD_PWRITE), -EBADF);
	struct iocb iocb = request(IOCB_CMD_PREAD, -1, 0);
	EQUAL(submit_one(context, &iocb), -EBADF);
	iocb = request(IOCB_CMD_PREAD, disk, 0), iocb.aio_reserved2 = 1;
	EQUAL(submit_one(context, &iocb), -EINVAL);
	EQUAL(destroy(context), 0);
}

static void cannot_be_polled_for(void)
{
	struct io_context *context = polled();
	int ends[2], event = eventfd(1, 0), folder = open(".", O_RDONLY | O_DIRECTORY);
	/* On a pipe, O_DIRECT selects packet mode and not direct I/O. */
	EQUAL(pipe2(ends, O_DIRECT), 0);
	int files[] = { ends[0], event, folder };
	for (int index = 0; index < 3; index++) {
		struct iocb iocb = request(IOCB_CMD_PREAD, files[index], 0);
		EQUAL(submit_one(context, &iocb), -EOPNOTSUPP);
		close(files[index]);
	}
	close(ends[1]);
	EQUAL(destroy(context), 0);
}

static long one(struct io_context *context, struct iocb iocb)
{
	struct io_event event;
	EQUAL(submit_one(context, &iocb), 1);
	EQUAL(get(context, 1, 1, &event, NULL), 1);
	HOLDS(event.obj == (uintptr_t)&iocb && event.data == iocb.aio_data);
	return event.res;
}

/* Ordinary files open with O_DIRECT. The results must be those of the kernel. */
static void ordinary_files(void)
{
	enum { FILE_BLOCKS = 16 };
	struct io_context *context = polled();
	int plain = open("plain", O_RDWR | O_DIRECT);
	struct iovec halves[2] = { { memory + BLOCK, BLOCK }, { memory, BLOCK } };
	HOLDS(plain >= 0);
	memset(memory, 'a', BLOCK), memset(memory + BLOCK, 'b', BLOCK);
	struct iocb iocb = request(IOCB_CMD_PWRITEV, plain, 0);
	iocb.aio_buf = (uintptr_t)halves, iocb.aio_nbytes = 2, iocb.aio_rw_flags = RWF_DSYNC;
	EQUAL(one(context, iocb), 2 * BLOCK);
	EQUAL(one(context, request(IOCB_CMD_PREAD, plain, 0)), BLOCK);
	HOLDS(memory[0] == 'b' && memory[BLOCK - 1] == 'b');
	/* Reads across the end of the file and behind it, and makes the file longer by a write. */
	iocb = request(IOCB_CMD_PREAD, plain, FILE_BLOCKS - 1), iocb.aio_nbytes = 2 * BLOCK;
	EQUAL(one(context, iocb), BLOCK);
	EQUAL(one(context, request(IOCB_CMD_PREAD, plain, FILE_BLOCKS)), 0);
	EQUAL(one(context, request(IOCB_CMD_PWRITE, plain, FILE_BLOCKS)), BLOCK);
	EQUAL(lseek(plain, 0, SEEK_END), (FILE_BLOCKS + 1) * BLOCK);
	EQUAL(ftruncate(plain, FILE_BLOCKS * BLOCK), 0);
	/* Requests that must be refused. */
	iocb = request(IOCB_CMD_PREAD, plain, 0), iocb.aio_nbytes = 100;
	EQUAL(one(context, iocb), -EINVAL);
	iocb = request(IOCB_CMD_PREAD, plain, 0), iocb.aio_offset = 1;
	EQUAL(one(context, iocb), -EINVAL);
	iocb = request(IOCB_CMD_PREAD, plain, 0), iocb.aio_buf = BLOCK;
	EQUAL(one(context, iocb), -EFAULT);
	/*
	 * Each call submits requests for a file and for a device. Together the calls submit more
	 * than a queue takes. The file's descriptor is closed while they are in flight.
	 */
	static struct iocb iocbs[PER_CALL];
	struct iocb *list[PER_CALL];
	static struct io_event events[PER_CALL];
	for (int index = 0; index < PER_CALL; index++) {
		int file = disk >= 0 && index % 3 == 0 ? disk : plain;
		iocbs[index] = request(IOCB_CMD_PREAD, file, index % FILE_BLOCKS), list[index] = &iocbs[index];
	}
	enum { CALLS = 8 };
	for (int call = 0; call < CALLS; call++)
		EQUAL(submit(context, PER_CALL, list), PER_CALL);
	close(plain);
	int other = open("/dev/null", O_RDONLY);
	EQUAL(other, plain);
	for (int taken = 0; taken < PER_CALL * CALLS;) {
		long count = get(context, 1, PER_CALL, events, NULL);
		HOLDS(count > 0);
		for (int index = 0; index < count; index++)
			EQUAL(events[index].res, BLOCK);
		taken += count;
	}
	EQUAL(get(context, 1, 1, events, NULL), 0);
	close(other);
	/* Writes that are in flight when the context is destroyed must still be carried out. */
	plain = open("plain", O_RDWR | O_DIRECT);
	memset(memory, 'c', FILE_BLOCKS * BLOCK);
	for (int index = 0; index < FILE_BLOCKS; index++)
		iocbs[index] = request(IOCB_CMD_PWRITE, plain, index);
	EQUAL(submit(context, FILE_BLOCKS, list), FILE_BLOCKS);
	EQUAL(destroy(context), 0);
	static char content[FILE_BLOCKS * BLOCK];
	int buffered = open("plain", O_RDONLY);
	EQUAL(read(buffered, content, sizeof content), sizeof content);
	for (size_t at = 0; at < sizeof content; at++)
		HOLDS(content[at] == 'c');
	close(buffered), close(plain);
}

static void the_first_error_ends_a_call(void)
{
	struct io_context *context = polled();
	struct iocb good = request(IOCB_CMD_PREAD, disk, 0), bad = good;
	bad.aio_flags = 0;
	struct iocb *list[] = { &good, &good, &bad, &good };
	struct io_event events[4];
	EQUAL(submit(context, 4, list), 2);
	EQUAL(get(context, 2, 4, events, NULL), 2);
	EQUAL(submit(context, 2, list + 2), -EINVAL);
	EQUAL(get(context, 1, 4, events, NULL), 0);
	EQUAL(destroy(context), 0);
}

/* A call takes at most 127 iocbs. The number of calls has no limit. */
static void no_limit_but_the_calls(void)
{
	enum { CALLS = 20 };
	static struct iocb iocbs[PER_CALL + 1];
	struct iocb *list[PER_CALL + 1];
	static struct io_event events[PER_CALL * CALLS];
	struct io_context *context = polled();
	for (int index = 0; index <= PER_CALL; index++)
		iocbs[index] = request(IOCB_CMD_PREAD, disk, index), list[index] = &iocbs[index];
	for (int call = 0; call < CALLS; call++)
		EQUAL(submit(context, PER_CALL + 1, list), PER_CALL);
	long taken = 0;
	while (taken < PER_CALL * CALLS) {
		long count = get(context, PER_CALL * CALLS - taken, PER_CALL * CALLS, events, NULL);
		HOLDS(count > 0);
		taken += count;
	}
	EQUAL(taken, PER_CALL * CALLS);
	EQUAL(get(context, 1, 1, events, NULL), 0);
	EQUAL(destroy(context), 0);
}

static void only_by_asking(void)
{
	struct io_context *context = polled();
	struct aio_ring *ring = (struct aio_ring *)context;
	struct iocb iocb = request(IOCB_CMD_PREAD, disk, 0);
	struct io_event event;
	EQUAL(ring->magic, 0);
	EQUAL(submit_one(context, &iocb), 1);
	EQUAL(get(context, 1, 1, &event, NULL), 1);
	iocb = request(IOCB_CMD_PREAD, slow, 0);
	EQUAL(submit_one(context, &iocb), 1);
	struct timespec longer = { SLOW / 1000 + 1, 0 };
	nanosleep(&longer, NULL);
	HOLDS(ring->head == ring->tail);
	EQUAL(get(context, 0, 1, &event, NULL), 1);
	EQUAL(destroy(context), 0);
}

static void counts_and_memory(void)
{
	struct io_context *context = polled();
	struct io_event event;
	EQUAL(get(context, -1, 1, &event, NULL), -EINVAL);
	EQUAL(get(context, 2, 1, &event, NULL), -EINVAL);
	EQUAL(get(NULL, 0, 1, &event, NULL), -EINVAL);
	/*
	 * If no request is in flight, the call must return at once, however many events it asks
	 * for.
	 */
	long long before = milliseconds_now();
	EQUAL(get(context, 1, 1, &event, NULL), 0);
	EQUAL(get(context, 5, 8, &event, NULL), 0);
	HOLDS(milliseconds_now() - before < 30000);
	struct iocb iocb = request(IOCB_CMD_PREAD, disk, 7);
	EQUAL(submit_one(context, &iocb), 1);
	EQUAL(get(context, 1, 1, (struct io_event *)8, NULL), -EFAULT);
	EQUAL(get(context, 1, 1, &event, NULL), 1);
	EQUAL(event.data, 7);
	EQUAL(destroy(context), 0);
}

static void the_timeout_means_nothing(void)
{
	struct io_context *context = polled();
	struct iocb iocb = request(IOCB_CMD_PREAD, slow, 0);
	struct io_event event;
	struct timespec none = { 0, 0 };
	EQUAL(submit_one(context, &iocb), 1);
	EQUAL(get(context, 0, 1, &event, &none), 0);
	long long before = milliseconds_now();
	EQUAL(get(context, 1, 1, &event, &none), 1);
	HOLDS(milliseconds_now() - before >= SLOW / 2);
	EQUAL(destroy(context), 0);
}

static struct io_context *shared;
static volatile int asking;

static void *poller(void *nothing)
{
	struct io_event event;
	int got;
	asking = 1;
	/* EBUSY means that the other thread is inside its short call at this moment. */
	while ((got = get(shared, 1, 1, &event, NULL)) == -EBUSY)
		sched_yield();
	EQUAL(got, 1);
	return nothing;
}

static void one_poller(void)
{
	shared = polled();
	struct iocb iocb = request(IOCB_CMD_PREAD, slow, 0);
	struct io_event event;
	pthread_t thread;
	int busy = 0;
	EQUAL(submit_one(shared, &iocb), 1);
	EQUAL(pthread_create(&thread, NULL, poller, NULL), 0);
	while (!asking)
		sched_yield();
	/*
	 * The other thread keeps the context busy as long as the device takes, so a call here must
	 * get EBUSY.
	 */
	for (long long end = milliseconds_now() + SLOW / 2; milliseconds_now() < end && !busy;)
		busy = get(shared, 0, 1, &event, NULL) == -EBUSY;
	EQUAL(pthread_join(thread, NULL), 0);
	HOLDS(busy);
	EQUAL(get(shared, 0, 1, &event, NULL), 0);
	EQUAL(destroy(shared), 0);
}

static void no_cancelling(void)
{
	struct io_context *context = polled();
	struct iocb iocb = request(IOCB_CMD_PREAD, slow, 0);
	struct io_event event;
	EQUAL(submit_one(context, &iocb), 1);
	EQUAL(answer(syscall(SYS_io_cancel, context, &iocb, &event)), -EINVAL);
	EQUAL(get(context, 1, 1, &event, NULL), 1);
	EQUAL(destroy(context), 0);
}

static void destroy_waits(void)
{
	struct io_context *context = polled();
	struct iocb iocb = request(IOCB_CMD_PWRITE, slow, 0);
	struct io_event event;
	long long before = milliseconds_now();
	EQUAL(submit_one(context, &iocb), 1);
	EQUAL(destroy(context), 0);
	HOLDS(milliseconds_now() - before >= SLOW / 2);
	EQUAL(get(context, 0, 1, &event, NULL), -EINVAL);
}

int main(int count, char **arguments)
{
	HOLDS(posix_memalign((void **)&memory, BLOCK, BLOCKS * BLOCK) == 0);
	memset(memory, 0, BLOCKS * BLOCK);
	/* Without devices, only those checks run that need none. */
	disk = open("disk", O_RDWR | O_DIRECT);
	slow = open("slow", O_RDWR | O_DIRECT);
	static const struct check checks[] = {
		{ "io_setup2 refuses", setup_refuses },
		{ "reads and writes", reads_and_writes },
		{ "vectors", vectors },
		{ "polled and other requests are never mixed", never_mixed },
		{ "other commands", other_commands },
		{ "which files", files },
		{ "cannot be polled for", cannot_be_polled_for },
		{ "ordinary files", ordinary_files },
		{ "the first error ends a call", the_first_error_ends_a_call },
		{ "no limit but of a call", no_limit_but_the_calls },
		{ "events only by asking", only_by_asking },
		{ "counts and memory", counts_and_memory },
		{ "the timeout means nothing", the_timeout_means_nothing },
		{ "one poller", one_poller },
		{ "no cancelling", no_cancelling },
		{ "destroy waits", destroy_waits },
	};
	return RUN(checks, count, arguments);
}
