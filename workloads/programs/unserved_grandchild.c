/*
 * Prints whether this program can make a ring: `served`, or `absent` if io_uring_setup answers an
 * error.
 */
#include "check.h"
#include <liburing.h>

int main(int count, char **arguments)
{
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	int error = io_uring_queue_init(4, &ring, 0);

	if (count != 2)
		return 2;
	if (strcmp(arguments[1], "absent") == 0)
		return error != -ENOSYS && error != -EPERM;
	EQUAL(error, 0);
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
	EQUAL(cqe->res, 0);
	return 0;
}
