/*
 * A program that tests itself by faults (include/usring_inject.h). Without usring in the process it
 * says so. With usring it adds rules for a ring, for libaio and for plain calls, and checks the
 * results.
 */
#define _GNU_SOURCE
#include "../../include/usring_inject.h"
#include "ring.h"
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int target;
static struct io_uring ring;

static int fsync_by_ring(int user_data)
{
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_fsync(sqe, target, 0);
	named(sqe, user_data, 0);
	EQUAL(io_uring_submit(&ring), 1);
	return answer_to(&ring, user_data).res;
}

static int fsync_by_call(void)
{
	return fsync(target) ? -errno : 0;
}

static int fsync_by_aio(void)
{
	aio_context_t context = 0;
	EQUAL(syscall(SYS_io_setup, 8, &context), 0);
	struct iocb iocb = { .aio_lio_opcode = IOCB_CMD_FSYNC, .aio_fildes = target };
	struct iocb *list = &iocb;
	struct io_event event;
	EQUAL(syscall(SYS_io_submit, context, 1, &list), 1);
	EQUAL(syscall(SYS_io_getevents, context, 1, 1, &event, NULL), 1);
	EQUAL(syscall(SYS_io_destroy, context), 0);
	return event.res;
}

int main(void)
{
	target = open("written", O_RDWR | O_CREAT | O_TRUNC, 0600);
	HOLDS(target >= 0);
	if (usring_inject_once(NULL) == -ENOSYS) {
		EQUAL(usring_injected(), 0);
		EQUAL(usring_inject_once("fsync:error=EIO"), -ENOSYS);
		EQUAL(fsync_by_call(), 0);
		puts("no usring");
		return 0;
	}
	unsigned long before = usring_injected();
	ring = new_ring(8, 0);

	/* A rule makes one fault. */
	EQUAL(usring_inject_once("ring:fsync:error=EIO"), 0);
	EQUAL(fsync_by_call(), 0);
	EQUAL(usring_injected(), before);
	EQUAL(fsync_by_ring(1), -EIO);
	EQUAL(usring_injected(), before + 1);
	EQUAL(fsync_by_ring(1), 0);

	EQUAL(usring_inject_once("call:fsync:error=ENOSPC:when=2"), 0);
	EQUAL(fsync_by_call(), 0);
	EQUAL(fsync_by_call(), -ENOSPC);
	EQUAL(fsync_by_call(), 0);

	EQUAL(usring_inject_once("aio:fsync:error=EDQUOT"), 0);
	EQUAL(fsync_by_aio(), -EDQUOT);
	EQUAL(fsync_by_aio(), 0);
	EQUAL(usring_injected(), before + 3);

	/* A rule for all three kinds of calls also makes only one fault. */
	EQUAL(usring_inject_once("fsync:error=EIO"), 0);
	EQUAL(fsync_by_call(), -EIO);
	EQUAL(fsync_by_ring(1), 0);
	EQUAL(fsync_by_aio(), 0);

	/* Two rules may wait at the same time. */
	EQUAL(usring_inject_once("ring:fsync:error=EIO:user_data=7"), 0);
	EQUAL(usring_inject_once("ring:fsync:error=ENOSPC:user_data=8"), 0);
	EQUAL(fsync_by_ring(7), -EIO);
	EQUAL(fsync_by_ring(8), -ENOSPC);

	/* A rule that was removed makes no fault. */
	EQUAL(usring_inject_once("fsync:error=EIO"), 0);
	EQUAL(usring_inject_once(NULL), 0);
	EQUAL(fsync_by_call(), 0);
	EQUAL(fsync_by_ring(1), 0);

	/* A rule concerns this process alone. */
	EQUAL(usring_inject_once("call:fsync:error=EIO"), 0);
	pid_t child = fork();
	if (child == 0)
		_exit(fsync_by_call() != 0);
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	EQUAL(fsync_by_call(), -EIO);

	/*
	 * The rules of this process do not concern the shell that it starts, although the shell
	 * inherits the filter that traps the calls.
	 */
	EQUAL(system("test -e written"), 0);

	EQUAL(usring_inject_once("fsync:eror=EIO"), -EINVAL);
	EQUAL(usring_inject_once((const char *)8), -EFAULT);
	EQUAL(usring_injected(), before + 7);
	puts("all faults came");
	return 0;
}
