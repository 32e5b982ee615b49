/*
 * Shows what faults do to a ring. Without an argument it submits five NOPs at once. It prints the
 * number of CQEs, whether the CQ has overflowed, the count of the registered eventfd, and the order
 * of the completions.
 *
 * - `wait`: submits a read of an empty pipe instead, and prints its result.
 * - `ways`: prints the results of three reads instead. The first finds data in a pipe, the second
 *   waits for data, and a worker makes the third.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <sys/eventfd.h>

int main(int count, char **words)
{
	struct io_uring ring = new_ring(16, 0);
	if (count > 1 && words[1][1] == 'a' && words[1][2] == 'y') {
		char bytes[2];
		int ends[2], file = new_file();
		new_pipe(ends);
		EQUAL(write(file, "ab", 2), 2);
		EQUAL(write(ends[1], "ab", 2), 2);
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_read(sqe, ends[0], bytes, 2, 0);
		printf("inline %d", result_of(&ring, sqe));
		sqe = request(&ring);
		io_uring_prep_read(sqe, ends[0], bytes, 2, 0);
		named(sqe, 1, 0);
		EQUAL(io_uring_submit(&ring), 1);
		EQUAL(write(ends[1], "ab", 2), 2);
		printf(" poll %d", answer_to(&ring, 1).res);
		sqe = request(&ring);
		io_uring_prep_read(sqe, file, bytes, 2, 0);
		named(sqe, 2, IOSQE_ASYNC);
		EQUAL(io_uring_submit(&ring), 1);
		printf(" worker %d\n", answer_to(&ring, 2).res);
		return 0;
	}
	if (count > 1) {
		char byte;
		int ends[2];
		new_pipe(ends);
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_read(sqe, ends[0], &byte, 1, 0);
		int result = result_of(&ring, sqe);
		printf("%s\n", result < 0 ? strerrorname_np(-result) : "done");
		return 0;
	}
	int event = eventfd(0, EFD_NONBLOCK);
	EQUAL(io_uring_register_eventfd(&ring, event), 0);
	for (int number = 1; number <= 5; number++) {
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_nop(sqe);
		named(sqe, number, 0);
	}
	EQUAL(io_uring_submit(&ring), 5);
	uint64_t signals = 0;
	EQUAL(read(event, &signals, sizeof signals), sizeof signals);
	printf("ready %u overflow %d signals %u:", io_uring_cq_ready(&ring), io_uring_cq_has_overflow(&ring),
	       (unsigned)signals);
	for (int number = 1; number <= 5; number++)
		printf(" %u", (unsigned)next_answer(&ring).user_data);
	printf("\n");
	return 0;
}
