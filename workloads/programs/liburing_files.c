/*
 * Files by liburing: every way to read, write, sync, open and close; links and drains; registered
 * files and buffers.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <sys/uio.h>

static void write_and_read(void)
{
	struct io_uring ring = new_ring(8, 0);
	int file = new_file();
	char out[] = "one and two", in[32] = "";

	io_uring_prep_write(request(&ring), file, out, 11, 5);
	EQUAL(io_uring_submit_and_wait(&ring, 1), 1);
	EQUAL(next_answer(&ring).res, 11);
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_read(sqe, file, in, sizeof in, 0);
	EQUAL(result_of(&ring, sqe), 16);
	HOLDS(memcmp(in, "\0\0\0\0\0one and two", 16) == 0);
	sqe = request(&ring);
	io_uring_prep_read(sqe, file, in, sizeof in, 100);
	EQUAL(result_of(&ring, sqe), 0);
	io_uring_queue_exit(&ring);
	close(file);
}

static void vectors_and_file_position(void)
{
	struct io_uring ring = new_ring(8, 0);
	int file = new_file();
	char first[3], second[5];
	struct iovec out[] = { { "abc", 3 }, { "", 0 }, { "defgh", 5 } };
	struct iovec in[] = { { second, 5 }, { first, 3 } };
	struct io_uring_sqe *sqe = request(&ring);

	io_uring_prep_writev(sqe, file, out, 3, -1);
	EQUAL(result_of(&ring, sqe), 8);
	EQUAL(lseek(file, 0, SEEK_CUR), 8);
	EQUAL(lseek(file, 0, SEEK_SET), 0);
	sqe = request(&ring);
	io_uring_prep_readv2(sqe, file, in, 2, -1, 0);
	EQUAL(result_of(&ring, sqe), 8);
	EQUAL(lseek(file, 0, SEEK_CUR), 8);
	HOLDS(memcmp(second, "abcde", 5) == 0 && memcmp(first, "fgh", 3) == 0);
	io_uring_queue_exit(&ring);
	close(file);
}

static void registered_buffers(void)
{
	struct io_uring ring = new_ring(8, 0);
	int file = new_file();
	static char pages[2][8192] __attribute__((aligned(4096)));
	struct iovec buffers[] = { { pages[0], 8192 }, { pages[1], 8192 } };
	struct io_uring_sqe *sqe = request(&ring);

	EQUAL(io_uring_register_buffers(&ring, buffers, 2), 0);
	memset(pages[0], 'x', sizeof pages[0]);
	io_uring_prep_write_fixed(sqe, file, pages[0] + 100, 5000, 0, 0);
	EQUAL(result_of(&ring, sqe), 5000);
	sqe = request(&ring);
	io_uring_prep_read_fixed(sqe, file, pages[1] + 10, 6000, 0, 1);
	EQUAL(result_of(&ring, sqe), 5000);
	HOLDS(pages[1][9] == 0 && pages[1][10] == 'x' && pages[1][5009] == 'x' && pages[1][5010] == 0);
	/*
	 * The first read is beyond the end of its registered buffer. The second one names an index
	 * without a buffer.
	 */
	sqe = request(&ring);
	io_uring_prep_read_fixed(sqe, file, pages[1] + 8000, 193, 0, 1);
	EQUAL(result_of(&ring, sqe), -EFAULT);
	sqe = request(&ring);
	io_uring_prep_read_fixed(sqe, file, pages[1], 10, 0, 2);
	EQUAL(result_of(&ring, sqe), -EFAULT);
	EQUAL(io_uring_unregister_buffers(&ring), 0);
	EQUAL(io_uring_unregister_buffers(&ring), -ENXIO);
	io_uring_queue_exit(&ring);
	close(file);
}

static void registered_files(void)
{
	struct io_uring ring = new_ring(8, 0);
	int files[] = { new_file(), -1, new_file(), -1 };
	char in[4] = "";
	struct io_uring_sqe *sqe = request(&ring);

	EQUAL(io_uring_register_files(&ring, files, 4), 0);
	io_uring_prep_write(sqe, 2, "two", 3, 0);
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	EQUAL(result_of(&ring, sqe), 3);
	/*
	 * The descriptor may be closed, because the table of registered files keeps the file open.
	 */
	close(files[2]);
	sqe = request(&ring);
	io_uring_prep_read(sqe, 2, in, 3, 0);
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	EQUAL(result_of(&ring, sqe), 3);
	HOLDS(memcmp(in, "two", 3) == 0);
	for (int empty = 1; empty <= 4; empty += 3) {
		sqe = request(&ring);
		io_uring_prep_read(sqe, empty, in, 3, 0);
		io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
		EQUAL(result_of(&ring, sqe), -EBADF);
	}
	/* Puts another file into slot 2, and empties slot 0. */
	int update[] = { -1, IORING_REGISTER_FILES_SKIP, files[0] };
	EQUAL(io_uring_register_files_update(&ring, 0, update, 3), 3);
	sqe = request(&ring);
	io_uring_prep_read(sqe, 2, in, 3, 0);
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	EQUAL(result_of(&ring, sqe), 0);
	EQUAL(io_uring_unregister_files(&ring), 0);
	io_uring_queue_exit(&ring);
	close(files[0]);
}

static void open_into_the_table(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct io_uring_sqe *sqe = request(&ring);
	char in[4] = "";

	EQUAL(io_uring_register_files_sparse(&ring, 4), 0);
	io_uring_prep_openat_direct(sqe, AT_FDCWD, ".", O_TMPFILE | O_RDWR, 0600, 3);
	EQUAL(result_of(&ring, sqe), 0);
	/* The chain writes, reads back, and closes. */
	sqe = request(&ring);
	io_uring_prep_write(sqe, 3, "abc", 3, 0);
	named(sqe, 1, IOSQE_FIXED_FILE | IOSQE_IO_LINK);
	sqe = request(&ring);
	io_uring_prep_read(sqe, 3, in, 3, 0);
	named(sqe, 2, IOSQE_FIXED_FILE | IOSQE_IO_LINK);
	sqe = request(&ring);
	io_uring_prep_close_direct(sqe, 3);
	named(sqe, 3, 0);
	EQUAL(io_uring_submit_and_wait(&ring, 3), 3);
	EQUAL(answer_to(&ring, 1).res, 3);
	EQUAL(answer_to(&ring, 2).res, 3);
	EQUAL(answer_to(&ring, 3).res, 0);
	HOLDS(memcmp(in, "abc", 3) == 0);
	sqe = request(&ring);
	io_uring_prep_close_direct(sqe, 3);
	EQUAL(result_of(&ring, sqe), -EBADF);
	io_uring_queue_exit(&ring);
}

static void open_stat_close(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct statx found;
	struct io_uring_sqe *sqe = request(&ring);
	char name[64];

	snprintf(name, sizeof name, "opened-%d", getpid());
	io_uring_prep_openat(sqe, AT_FDCWD, name, O_CREAT | O_EXCL | O_RDWR, 0640);
	int file = result_of(&ring, sqe);
	HOLDS(file >= 0 && fcntl(file, F_GETFL) >= 0);
	sqe = request(&ring);
	io_uring_prep_fallocate(sqe, file, 0, 0, 12345);
	EQUAL(result_of(&ring, sqe), 0);
	sqe = request(&ring);
	io_uring_prep_statx(sqe, AT_FDCWD, name, 0, STATX_ALL, &found);
	EQUAL(result_of(&ring, sqe), 0);
	EQUAL(found.stx_size, 12345);
	struct open_how how = { .flags = O_RDONLY };
	sqe = request(&ring);
	io_uring_prep_openat2(sqe, AT_FDCWD, "no such file", &how);
	EQUAL(result_of(&ring, sqe), -ENOENT);
	sqe = request(&ring);
	io_uring_prep_close(sqe, file);
	EQUAL(result_of(&ring, sqe), 0);
	EQUAL(fcntl(file, F_GETFL), -1);
	EQUAL(unlink(name), 0);
	io_uring_queue_exit(&ring);
}

static void syncs_and_advice(void)
{
	struct io_uring ring = new_ring(8, 0);
	int file = new_file();
	static char page[4096] __attribute__((aligned(4096)));
	struct io_uring_sqe *sqe = request(&ring);

	EQUAL(pwrite(file, page, sizeof page, 0), 4096);
	io_uring_prep_fsync(sqe, file, 0);
	EQUAL(result_of(&ring, sqe), 0);
	sqe = request(&ring);
	io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
	EQUAL(result_of(&ring, sqe), 0);
	sqe = request(&ring);
	io_uring_prep_sync_file_range(sqe, file, 4096, 0, SYNC_FILE_RANGE_WRITE);
	EQUAL(result_of(&ring, sqe), 0);
	sqe = request(&ring);
	io_uring_prep_fadvise(sqe, file, 0, 4096, POSIX_FADV_DONTNEED);
	EQUAL(result_of(&ring, sqe), 0);
	sqe = request(&ring);
	io_uring_prep_fsync(sqe, -1, 0);
	EQUAL(result_of(&ring, sqe), -EBADF);
	io_uring_queue_exit(&ring);
	close(file);
}

static void a_failed_link_cancels_the_rest(void)
{
	struct io_uring ring = new_ring(8, 0);
	int file = new_file();
	char in[8];
	/* A short read must break a link, but not a hard link. */
	for (int hard = 0; hard <= 1; hard++) {
		unsigned link = hard ? IOSQE_IO_HARDLINK : IOSQE_IO_LINK;
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_read(sqe, file, in, 8, 0);
		named(sqe, 1, link);
		sqe = request(&ring);
		io_uring_prep_nop(sqe);
		named(sqe, 2, link);
		sqe = request(&ring);
		io_uring_prep_nop(sqe);
		named(sqe, 3, 0);
		EQUAL(io_uring_submit_and_wait(&ring, 3), 3);
		EQUAL(answer_to(&ring, 1).res, 0);
		EQUAL(answer_to(&ring, 2).res, hard ? 0 : -ECANCELED);
		EQUAL(answer_to(&ring, 3).res, hard ? 0 : -ECANCELED);
	}
	io_uring_queue_exit(&ring);
	close(file);
}

static void a_drained_request_comes_last(void)
{
	struct io_uring ring = new_ring(64, 0);
	int file = new_file();
	static char page[65536];

	for (int index = 0; index < 32; index++) {
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_write(sqe, file, page, sizeof page, index * sizeof page);
		named(sqe, index, index % 3 ? 0 : IOSQE_ASYNC);
	}
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_fsync(sqe, file, 0);
	named(sqe, 32, IOSQE_IO_DRAIN);
	EQUAL(io_uring_submit_and_wait(&ring, 33), 33);
	uint64_t seen = 0;
	for (int index = 0; index < 32; index++) {
		struct answer answer = next_answer(&ring);
		HOLDS(answer.user_data < 32);
		EQUAL(answer.res, sizeof page);
		seen |= 1ULL << answer.user_data;
	}
	EQUAL(seen, 0xffffffff);
	EQUAL(answer_to(&ring, 32).res, 0);
	io_uring_queue_exit(&ring);
	close(file);
}

static void bad_requests_get_their_errors(void)
{
	struct io_uring ring = new_ring(8, 0);
	int file = new_file();
	struct io_uring_sqe *sqe = request(&ring);

	EQUAL(ftruncate(file, 4096), 0);
	io_uring_prep_read(sqe, file, (void *)8, 100, 0);
	EQUAL(result_of(&ring, sqe), -EFAULT);
	sqe = request(&ring);
	io_uring_prep_readv(sqe, file, (void *)8, 1, 0);
	EQUAL(result_of(&ring, sqe), -EFAULT);
	sqe = request(&ring);
	io_uring_prep_nop(sqe);
	sqe->opcode = 250;
	EQUAL(result_of(&ring, sqe), -EINVAL);
	sqe = request(&ring);
	io_uring_prep_read(sqe, 12345, NULL, 0, 0);
	EQUAL(result_of(&ring, sqe), -EBADF);
	io_uring_queue_exit(&ring);
	close(file);
}

static void success_may_stay_silent(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct io_uring_sqe *sqe;

	for (int index = 0; index < 3; index++) {
		sqe = request(&ring);
		io_uring_prep_nop(sqe);
		named(sqe, index, IOSQE_CQE_SKIP_SUCCESS);
	}
	sqe = request(&ring);
	io_uring_prep_close(sqe, 12345);
	named(sqe, 3, IOSQE_CQE_SKIP_SUCCESS);
	EQUAL(io_uring_submit(&ring), 4);
	EQUAL(answer_to(&ring, 3).res, -EBADF);
	nothing_left(&ring);
	io_uring_queue_exit(&ring);
}

static void nothing_is_lost_when_the_queue_overflows(void)
{
	struct io_uring ring = new_ring(4, 0);
	unsigned char seen[64] = { 0 };

	for (int index = 0; index < 64; index++) {
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_nop(sqe);
		named(sqe, index, 0);
		EQUAL(io_uring_submit(&ring), 1);
	}
	for (int index = 0; index < 64; index++) {
		struct answer answer = next_answer(&ring);
		HOLDS(answer.user_data < 64 && !seen[answer.user_data]);
		seen[answer.user_data] = 1;
	}
	nothing_left(&ring);
	io_uring_queue_exit(&ring);
}

static const struct check checks[] = {
	{ "write and read", write_and_read },
	{ "vectors and file position", vectors_and_file_position },
	{ "registered buffers", registered_buffers },
	{ "registered files", registered_files },
	{ "open into the table", open_into_the_table },
	{ "open, stat, close", open_stat_close },
	{ "syncs and advice", syncs_and_advice },
	{ "a failed link cancels the rest", a_failed_link_cancels_the_rest },
	{ "a drained request comes last", a_drained_request_comes_last },
	{ "bad requests get their errors", bad_requests_get_their_errors },
	{ "success may stay silent", success_may_stay_silent },
	{ "nothing is lost when the queue overflows", nothing_is_lost_when_the_queue_overflows },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
