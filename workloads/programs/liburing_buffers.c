/*
 * Provided buffers by liburing: groups to which buffers are added one by one, and rings of buffers
 * in memory of the program.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <sys/mman.h>

enum { GROUP = 7, BUFFER = 64, BUFFERS = 4 };

static char memory[BUFFERS][BUFFER];

static int read_into_group(struct io_uring *ring, int file, struct answer *answer)
{
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_read(sqe, file, NULL, BUFFER, 0);
	named(sqe, 1, IOSQE_BUFFER_SELECT);
	sqe->buf_group = GROUP;
	EQUAL(io_uring_submit(ring), 1);
	*answer = answer_to(ring, 1);
	return answer->res;
}

static void a_group_hands_out_its_buffers(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct answer answer;
	int ends[2];
	unsigned seen = 0;
	new_pipe(ends);

	EQUAL(read_into_group(&ring, ends[0], &answer), -ENOBUFS);
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_provide_buffers(sqe, memory, BUFFER, BUFFERS, GROUP, 10);
	HOLDS(result_of(&ring, sqe) >= 0);
	for (int index = 0; index < BUFFERS; index++) {
		char text[8];
		int length = snprintf(text, sizeof text, "text %d", index);
		EQUAL(write(ends[1], text, length), length);
		EQUAL(read_into_group(&ring, ends[0], &answer), length);
		HOLDS(answer.flags & IORING_CQE_F_BUFFER);
		unsigned number = answer.flags >> IORING_CQE_BUFFER_SHIFT;
		HOLDS(number >= 10 && number < 10 + BUFFERS);
		HOLDS(memcmp(memory[number - 10], text, length) == 0);
		seen |= 1 << (number - 10);
	}
	EQUAL(seen, 15);
	EQUAL(write(ends[1], "x", 1), 1);
	EQUAL(read_into_group(&ring, ends[0], &answer), -ENOBUFS);
	/* One buffer is provided again. The next request must select it. */
	sqe = request(&ring);
	io_uring_prep_provide_buffers(sqe, memory[2], BUFFER, 1, GROUP, 12);
	HOLDS(result_of(&ring, sqe) >= 0);
	EQUAL(read_into_group(&ring, ends[0], &answer), 1);
	EQUAL(answer.flags >> IORING_CQE_BUFFER_SHIFT, 12);
	sqe = request(&ring);
	io_uring_prep_remove_buffers(sqe, 1, GROUP);
	HOLDS(result_of(&ring, sqe) <= 0);
	io_uring_queue_exit(&ring);
}

static void a_ring_of_buffers_is_used_in_order(void)
{
	struct io_uring ring = new_ring(8, 0);
	size_t size = BUFFERS * sizeof(struct io_uring_buf);
	struct io_uring_buf_ring *buffers =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	struct io_uring_buf_reg registration = {
		.ring_addr = (uintptr_t)buffers, .ring_entries = BUFFERS, .bgid = GROUP
	};
	int mask = io_uring_buf_ring_mask(BUFFERS), ends[2];
	struct answer answer;

	HOLDS(buffers != MAP_FAILED);
	new_pipe(ends);
	EQUAL(io_uring_register_buf_ring(&ring, &registration, 0), 0);
	EQUAL(io_uring_register_buf_ring(&ring, &registration, 0), -EEXIST);
	io_uring_buf_ring_init(buffers);
	for (int index = 0; index < BUFFERS; index++)
		io_uring_buf_ring_add(buffers, memory[index], BUFFER, index, mask, index);
	io_uring_buf_ring_advance(buffers, BUFFERS);
	/*
	 * Uses each buffer of the ring three times. A buffer is provided again after its content
	 * was checked.
	 */
	for (int index = 0; index < 3 * BUFFERS; index++) {
		int number = index % BUFFERS;
		char text[16];
		int length = snprintf(text, sizeof text, "turn %d", index);
		EQUAL(write(ends[1], text, length), length);
		EQUAL(read_into_group(&ring, ends[0], &answer), length);
		HOLDS(answer.flags & IORING_CQE_F_BUFFER);
		EQUAL(answer.flags >> IORING_CQE_BUFFER_SHIFT, number);
		HOLDS(memcmp(memory[number], text, length) == 0);
		io_uring_buf_ring_add(buffers, memory[number], BUFFER, number, mask, 0);
		io_uring_buf_ring_advance(buffers, 1);
	}
	EQUAL(io_uring_unregister_buf_ring(&ring, GROUP), 0);
	EQUAL(read_into_group(&ring, ends[0], &answer), -ENOBUFS);
	io_uring_queue_exit(&ring);
	munmap(buffers, size);
}

static void a_waiting_read_has_a_buffer_when_data_comes(void)
{
	struct io_uring ring = new_ring(8, 0);
	int ends[2];
	new_pipe(ends);
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_provide_buffers(sqe, memory, BUFFER, 1, GROUP, 3);
	HOLDS(result_of(&ring, sqe) >= 0);
	sqe = request(&ring);
	io_uring_prep_read(sqe, ends[0], NULL, BUFFER, 0);
	named(sqe, 1, IOSQE_BUFFER_SELECT);
	sqe->buf_group = GROUP;
	EQUAL(io_uring_submit(&ring), 1);
	nothing_left(&ring);
	EQUAL(write(ends[1], "late", 4), 4);
	struct answer answer = answer_to(&ring, 1);
	EQUAL(answer.res, 4);
	HOLDS(answer.flags & IORING_CQE_F_BUFFER);
	EQUAL(answer.flags >> IORING_CQE_BUFFER_SHIFT, 3);
	HOLDS(memcmp(memory[0], "late", 4) == 0);
	io_uring_queue_exit(&ring);
}

static const struct check checks[] = {
	{ "a group hands out its buffers", a_group_hands_out_its_buffers },
	{ "a ring of buffers is used in order", a_ring_of_buffers_is_used_in_order },
	{ "a waiting read has a buffer when data comes", a_waiting_read_has_a_buffer_when_data_comes },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
