/*
 * A device that blocks its caller. The device is a file: a write to it takes its bytes from a page
 * that is missing until this program supplies the page (userfaultfd). If no thread is inside the
 * ring, the ring watcher starts such a write, and must still serve other rings. If the submitter
 * itself is blocked, no other thread may be affected.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <linux/aio_abi.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { BLOCK = 4096, LIMIT = 30000 };

static char *missing;
static int faults;

/* Returns whether this program may use userfaultfd(2). If so, makes the missing page. */
static int has_missing_page(void)
{
	faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (faults < 0)
		return 0;
	missing = mmap(NULL, 2 * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(missing != MAP_FAILED);
	struct uffdio_api api = { .api = UFFD_API };
	EQUAL(ioctl(faults, UFFDIO_API, &api), 0);
	struct uffdio_register range = {
		.range = { (uintptr_t)missing, 2 * BLOCK },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	EQUAL(ioctl(faults, UFFDIO_REGISTER, &range), 0);
	return 1;
}

/* Waits until a thread has touched the missing page. */
static void stands_still(void)
{
	struct pollfd fault = { .fd = faults, .events = POLLIN };
	EQUAL(poll(&fault, 1, LIMIT), 1);
	struct uffd_msg message;
	EQUAL(read(faults, &message, sizeof(message)), sizeof(message));
}

static void supply_at(char *address)
{
	struct uffdio_zeropage page = { .range = { (uintptr_t)address, BLOCK } };
	EQUAL(ioctl(faults, UFFDIO_ZEROPAGE, &page), 0);
}

static void supply(void)
{
	supply_at(missing);
}

static void take_away(void)
{
	EQUAL(madvise(missing, 2 * BLOCK, MADV_DONTNEED), 0);
}

static void join_soon(pthread_t thread)
{
	struct timespec end;
	EQUAL(clock_gettime(CLOCK_REALTIME, &end), 0);
	end.tv_sec += LIMIT / 1000;
	EQUAL(pthread_timedjoin_np(thread, NULL, &end), 0);
}

static void see(struct io_uring *ring, unsigned count)
{
	long long end = milliseconds_now() + LIMIT;
	while (io_uring_cq_ready(ring) < count)
		HOLDS(milliseconds_now() < end);
}

static struct __kernel_timespec soon = { .tv_nsec = 20000000 };

static void wait_for_time(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_timeout(sqe, &soon, 0, IORING_TIMEOUT_ETIME_SUCCESS);
	named(sqe, 1, 0);
}

/*
 * A ring with a write that follows a read of one byte. When that byte is sent, no thread is inside
 * the ring.
 */
struct sent {
	struct io_uring ring;
	int ends[2];
	char byte;
};

static void prepare(struct sent *sent, int disk)
{
	sent->ring = new_ring(4, 0);
	EQUAL(pipe(sent->ends), 0);
	struct io_uring_sqe *sqe = request(&sent->ring);
	io_uring_prep_read(sqe, sent->ends[0], &sent->byte, 1, 0);
	named(sqe, 1, IOSQE_IO_LINK);
	sqe = request(&sent->ring);
	io_uring_prep_write(sqe, disk, missing, BLOCK, 0);
	named(sqe, 2, 0);
	EQUAL(io_uring_submit(&sent->ring), 2);
	EQUAL(write(sent->ends[1], "x", 1), 1);
	stands_still();
}

static void done(struct sent *sent)
{
	io_uring_queue_exit(&sent->ring);
	close(sent->ends[0]);
	close(sent->ends[1]);
}

static void other_rings_are_watched(void)
{
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	struct sent sent;
	prepare(&sent, disk);
	struct io_uring other = new_ring(4, 0);
	wait_for_time(&other);
	EQUAL(io_uring_submit(&other), 1);
	see(&other, 1);
	EQUAL(io_uring_cq_ready(&sent.ring), 1);
	supply();
	see(&sent.ring, 2);
	EQUAL(next_answer(&sent.ring).res, 1);
	EQUAL(next_answer(&sent.ring).res, BLOCK);
	io_uring_queue_exit(&other);
	done(&sent);
	close(disk);
}

/* While a ring's submitter is blocked, the ring's timers must still be served. */
struct entering {
	struct io_uring *ring;
	int disk;
};

static void *enters(void *argument)
{
	struct entering *entering = argument;
	wait_for_time(entering->ring);
	struct io_uring_sqe *sqe = request(entering->ring);
	io_uring_prep_write(sqe, entering->disk, missing, BLOCK, 0);
	named(sqe, 2, 0);
	EQUAL(io_uring_submit(entering->ring), 2);
	return NULL;
}

static void its_own_ring_is_watched(void)
{
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	take_away();
	struct io_uring ring = new_ring(4, 0);
	struct entering entering = { &ring, disk };
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, enters, &entering), 0);
	stands_still();
	see(&ring, 1);
	EQUAL(next_answer(&ring).user_data, 1);
	supply();
	pthread_join(thread, NULL);
	see(&ring, 1);
	EQUAL(next_answer(&ring).res, BLOCK);
	io_uring_queue_exit(&ring);
	close(disk);
}

/*
 * The ring is closed while the device blocks. The close must not wait for the device. The ring is
 * freed when the blocked thread returns.
 */
static void it_may_be_closed(void)
{
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	take_away();
	struct sent sent;
	prepare(&sent, disk);
	done(&sent);
	supply();
	struct io_uring other = new_ring(4, 0);
	struct io_uring_sqe *sqe = request(&other);
	io_uring_prep_write(sqe, disk, missing, BLOCK, 0);
	named(sqe, 2, 0);
	EQUAL(io_uring_submit_and_wait(&other, 1), 1);
	EQUAL(next_answer(&other).res, BLOCK);
	io_uring_queue_exit(&other);
	close(disk);
}

/* The requests of a batch for several devices are started in order, and only by their submitter. */
struct batch {
	aio_context_t context;
	struct iocb *requests[2];
};

static void *submits(void *argument)
{
	struct batch *batch = argument;
	EQUAL(syscall(SYS_io_submit, batch->context, 2, batch->requests), 2);
	return NULL;
}

static long events_within(aio_context_t context, long least, struct io_event *events, long nanoseconds)
{
	struct timespec span = { .tv_nsec = nanoseconds };
	return syscall(SYS_io_getevents, context, least, 2, events, &span);
}

static void a_batch_is_its_submitters(void)
{
	int disk = open("disk", O_RDWR | O_DIRECT);
	int plain = open("plain", O_RDWR | O_CREAT | O_TRUNC, 0600);
	HOLDS(disk >= 0 && plain >= 0);
	take_away();
	struct batch batch = { 0 };
	EQUAL(syscall(SYS_io_setup, 8, &batch.context), 0);
	struct iocb first = {
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_fildes = disk,
		.aio_buf = (uintptr_t)missing,
		.aio_nbytes = BLOCK,
	};
	struct iocb second = {
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_fildes = plain,
		.aio_buf = (uintptr_t)"text",
		.aio_nbytes = 4,
	};
	batch.requests[0] = &first;
	batch.requests[1] = &second;
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, submits, &batch), 0);
	stands_still();
	struct io_event events[2];
	for (int look = 0; look < 10; look++)
		EQUAL(events_within(batch.context, 1, events, 1000000), 0);
	EQUAL(lseek(plain, 0, SEEK_END), 0);
	supply();
	pthread_join(thread, NULL);
	EQUAL(lseek(plain, 0, SEEK_END), 4);
	EQUAL(syscall(SYS_io_getevents, batch.context, 2, 2, events, NULL), 2);
	EQUAL(syscall(SYS_io_destroy, batch.context), 0);
	close(plain);
	close(disk);
}

/*
 * Two rings share an SQ thread. While one ring's device blocks, the thread must serve the other
 * ring.
 */
static void a_shared_thread_serves_its_other_ring(void)
{
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	take_away();
	struct io_uring_params first = { .flags = IORING_SETUP_SQPOLL };
	struct io_uring ring, other;
	EQUAL(io_uring_queue_init_params(4, &ring, &first), 0);
	struct io_uring_params second = { .flags = IORING_SETUP_SQPOLL | IORING_SETUP_ATTACH_WQ, .wq_fd = ring.ring_fd };
	EQUAL(io_uring_queue_init_params(4, &other, &second), 0);
	/*
	 * When this NOP has completed, the SQ thread has seen both rings. The result of
	 * io_uring_submit does not count the SQEs that the SQ thread has already taken.
	 */
	io_uring_prep_nop(request(&other));
	HOLDS(io_uring_submit(&other) >= 0);
	next_answer(&other);
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_write(sqe, disk, missing, BLOCK, 0);
	HOLDS(io_uring_submit(&ring) >= 0);
	stands_still();
	io_uring_prep_nop(request(&other));
	HOLDS(io_uring_submit(&other) >= 0);
	see(&other, 1);
	EQUAL(io_uring_cq_ready(&ring), 0);
	supply();
	EQUAL(next_answer(&ring).res, BLOCK);
	io_uring_queue_exit(&other);
	io_uring_queue_exit(&ring);
	close(disk);
}

/*
 * One thread submits more requests than a device takes at a time, so some of them wait for room.
 * Another thread makes room, and must not be blocked by those requests.
 */
enum { MANY = 4096 };

static aio_context_t crowded;
static struct iocb many[MANY + 1], *listed[MANY + 1];
static char block[BLOCK] __attribute__((aligned(BLOCK)));

static void *submits_many(void *argument)
{
	(void)argument;
	EQUAL(syscall(SYS_io_submit, crowded, MANY, listed), MANY);
	return NULL;
}

static void who_finds_room_is_held_up_by_nobody(void)
{
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	take_away();
	EQUAL(syscall(SYS_io_setup, MANY + 1, &crowded), 0);
	for (int index = 0; index <= MANY; index++) {
		many[index] = (struct iocb){
			.aio_lio_opcode = IOCB_CMD_PWRITE,
			.aio_fildes = disk,
			.aio_buf = (uintptr_t)block,
			.aio_nbytes = BLOCK,
		};
		listed[index] = &many[index];
	}
	many[0].aio_buf = (uintptr_t)missing;
	many[MANY].aio_buf = (uintptr_t)missing + BLOCK;
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, submits_many, NULL), 0);
	stands_still();
	EQUAL(syscall(SYS_io_submit, crowded, 1, listed + MANY), 1);
	supply();
	stands_still();
	join_soon(thread);
	supply_at(missing + BLOCK);
	static struct io_event events[MANY + 1];
	EQUAL(syscall(SYS_io_getevents, crowded, MANY + 1, MANY + 1, events, NULL), MANY + 1);
	for (int index = 0; index <= MANY; index++)
		EQUAL(events[index].res, BLOCK);
	EQUAL(syscall(SYS_io_destroy, crowded), 0);
	close(disk);
}

static const struct check checks[] = {
	{ "other rings are watched", other_rings_are_watched },
	{ "its own ring is watched", its_own_ring_is_watched },
	{ "it may be closed", it_may_be_closed },
	{ "a batch is its submitter's", a_batch_is_its_submitters },
	{ "a shared thread serves its other ring", a_shared_thread_serves_its_other_ring },
	{ "who finds room is held up by nobody", who_finds_room_is_held_up_by_nobody },
};

int main(int count, char **arguments)
{
	if (!has_missing_page()) {
		puts("the system has no userfaultfd for us");
		return 0;
	}
	return RUN(checks, count, arguments);
}
