/* Functions for checks that use liburing: make a ring, make a request, and take its completion. */
#pragma once

#include "check.h"
#include <fcntl.h>
#include <liburing.h>
#include <stdint.h>
#include <sys/stat.h>

static inline struct io_uring new_ring(unsigned entries, unsigned flags)
{
	struct io_uring ring;
	EQUAL(io_uring_queue_init(entries, &ring, flags), 0);
	return ring;
}

/* The fields of a CQE, without the flexible array at its end. */
struct answer {
	uint64_t user_data;
	int res;
	unsigned flags;
};

static inline struct io_uring_sqe *request(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	HOLDS(sqe != NULL);
	return sqe;
}

/* Sets user data and flags. Must follow the io_uring_prep_... function, which clears both. */
static inline void named(struct io_uring_sqe *sqe, uint64_t user_data, unsigned flags)
{
	io_uring_sqe_set_data64(sqe, user_data);
	io_uring_sqe_set_flags(sqe, flags);
}

/* Waits for the next completion and takes it from the queue. */
static inline struct answer next_answer(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	EQUAL(io_uring_wait_cqe(ring, &cqe), 0);
	struct answer answer = { cqe->user_data, cqe->res, cqe->flags };
	io_uring_cqe_seen(ring, cqe);
	return answer;
}

/* Waits for the next completion and takes it. Fails if its user data differs from `user_data`. */
static inline struct answer answer_to(struct io_uring *ring, uint64_t user_data)
{
	struct answer answer = next_answer(ring);
	EQUAL(answer.user_data, user_data);
	return answer;
}

/* Submits the one request that was prepared, and returns its result. */
static inline int result_of(struct io_uring *ring, struct io_uring_sqe *sqe)
{
	named(sqe, 4711, sqe->flags);
	EQUAL(io_uring_submit(ring), 1);
	return answer_to(ring, 4711).res;
}

static inline void nothing_left(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	EQUAL(io_uring_peek_cqe(ring, &cqe), -EAGAIN);
}

/* Makes an empty file without a name in the working directory. */
static inline int new_file(void)
{
	int file = open(".", O_TMPFILE | O_RDWR, 0600);
	HOLDS(file >= 0);
	return file;
}

static inline void new_pipe(int ends[2])
{
	EQUAL(pipe(ends), 0);
}
