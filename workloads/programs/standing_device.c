/* A device that has its caller stand still (a write to a file whose bytes are not
 * there until this program supplies them) where nobody is inside the ring: its
 * requests are begun by whoever watches all rings of the process, and that one
 * goes on.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { BLOCK = 4096, LIMIT = 30000 };

static char *missing;
static int faults;

/* Whether the system lets us see who stands still. */
static int has_missing_page(void)
{
	faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (faults < 0)
		return 0;
	missing = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(missing != MAP_FAILED);
	struct uffdio_api api = { .api = UFFD_API };
	EQUAL(ioctl(faults, UFFDIO_API, &api), 0);
	struct uffdio_register range = {
		.range = { (uintptr_t)missing, BLOCK },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	EQUAL(ioctl(faults, UFFDIO_REGISTER, &range), 0);
	return 1;
}

static void see(struct io_uring *ring, unsigned count)
{
	long long end = milliseconds_now() + LIMIT;
	while (io_uring_cq_ready(ring) < count)
		HOLDS(milliseconds_now() < end);
}

static struct __kernel_timespec soon = { .tv_nsec = 20000000 };

static void wait_for_time(struct io_uring *ring, unsigned flags)
{
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_timeout(sqe, &soon, 0, IORING_TIMEOUT_ETIME_SUCCESS);
	named(sqe, 1, flags);
}

static void other_rings_are_watched(void)
{
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	struct io_uring ring = new_ring(4, 0), other = new_ring(4, 0);
	wait_for_time(&ring, IOSQE_IO_LINK);
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_write(sqe, disk, missing, BLOCK, 0);
	named(sqe, 2, 0);
	EQUAL(io_uring_submit(&ring), 2);
	struct pollfd fault = { .fd = faults, .events = POLLIN };
	EQUAL(poll(&fault, 1, LIMIT), 1);
	wait_for_time(&other, 0);
	EQUAL(io_uring_submit(&other), 1);
	see(&other, 1);
	EQUAL(io_uring_cq_ready(&ring), 1);
	struct uffdio_zeropage page = { .range = { (uintptr_t)missing, BLOCK } };
	EQUAL(ioctl(faults, UFFDIO_ZEROPAGE, &page), 0);
	see(&ring, 2);
	EQUAL(next_answer(&ring).res, -ETIME);
	EQUAL(next_answer(&ring).res, BLOCK);
	io_uring_queue_exit(&other);
	io_uring_queue_exit(&ring);
}

static const struct check checks[] = { { "other rings are watched", other_rings_are_watched } };

int main(int count, char **arguments)
{
	if (!has_missing_page()) {
		puts("the system has no userfaultfd for us");
		return 0;
	}
	return RUN(checks, count, arguments);
}
