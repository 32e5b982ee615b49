/*
 * Submits requests that do not complete, prints a line, and waits until standard input ends. The
 * requests are a READ of an empty pipe (user data 0x77), a NOP that is linked to it (0x78), and a
 * TIMEOUT (0x79). Before that, a forked child with a POLL_ADD in a ring of its own was killed.
 */
#include <liburing.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void child(int file)
{
	struct io_uring ring;

	if (io_uring_queue_init(8, &ring, 0) != 0)
		_exit(1);
	io_uring_prep_poll_add(io_uring_get_sqe(&ring), file, POLLIN);
	if (io_uring_submit(&ring) != 1)
		_exit(2);
	raise(SIGKILL);
}

int main(void)
{
	static char buffer[16];
	struct __kernel_timespec hour = {3600, 0};
	struct io_uring_sqe *sqe;
	struct io_uring ring;
	int ends[2], status;
	pid_t process;

	if (pipe(ends) != 0 || io_uring_queue_init(8, &ring, 0) != 0)
		return 1;
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_read(sqe, ends[0], buffer, sizeof buffer, -1);
	sqe->user_data = 0x77;
	sqe->flags |= IOSQE_IO_LINK;
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_nop(sqe);
	sqe->user_data = 0x78;
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_timeout(sqe, &hour, 0, 0);
	sqe->user_data = 0x79;
	if (io_uring_submit(&ring) != 3) /* submission */
		return 2;
	process = fork();
	if (process == 0)
		child(ends[0]);
	if (waitpid(process, &status, 0) != process || !WIFSIGNALED(status))
		return 3;
	printf("waiting\n");
	fflush(stdout);
	while (read(0, buffer, sizeof buffer) > 0)
		;
	return 0;
}
