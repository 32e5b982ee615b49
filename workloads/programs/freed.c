/*
 * Reads a file by a ring, frees the buffer, and then writes the freed buffer to standard output. A
 * sanitizer must report this error.
 */
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	char *buffer = malloc(64);
	int file = open(arguments[count - 1], O_RDONLY);

	if (!buffer || file < 0 || io_uring_queue_init(4, &ring, 0))
		return 2;
	io_uring_prep_read(io_uring_get_sqe(&ring), file, buffer, 64, 0);
	if (io_uring_submit_and_wait(&ring, 1) != 1 || io_uring_peek_cqe(&ring, &cqe) || cqe->res != 64)
		return 3;
	puts("read by a ring");
	fflush(stdout);
	char *volatile gone = buffer;
	free(buffer);
	return write(1, gone, 64) == 64 ? 0 : 4;
}
