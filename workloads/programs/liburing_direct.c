/*
 * Files open with O_DIRECT, by liburing. A direct transfer waits for the disk. So the thread that
 * submits must not make the transfer itself by a read or write call. Linux counts the bytes of
 * such calls for each thread (/proc/PID/task/TID/io). It does not count transfers by AIO there, and
 * counts a worker's transfers for the worker.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <dirent.h>
#include <sys/uio.h>

enum { BLOCK = 64 * 1024, BLOCKS = 8, ROUNDS = 2 };

static unsigned char *blocks;
static struct iovec vectors[BLOCKS];
/* Each block in two parts. */
static struct iovec halves[BLOCKS][2];

/* Returns how many bytes a thread has moved by read and write calls of its own. */
static long long moved_by(const char *thread)
{
	char path[64], line[64];
	long long number, moved = 0;
	int lines = 0;
	snprintf(path, sizeof path, "/proc/self/task/%s/io", thread);
	FILE *file = fopen(path, "r");
	HOLDS(file != NULL);
	while (fgets(line, sizeof line, file) != NULL)
		if (sscanf(line, "rchar: %lld", &number) == 1 || sscanf(line, "wchar: %lld", &number) == 1) {
			moved += number;
			lines++;
		}
	fclose(file);
	EQUAL(lines, 2);
	return moved;
}

/*
 * Returns how many bytes the calling thread and all SQ threads have moved by read and write calls
 * of their own.
 */
static long long moved_by_submitters(void)
{
	char name[64];
	snprintf(name, sizeof name, "%d", gettid());
	long long moved = moved_by(name);
	DIR *threads = opendir("/proc/self/task");
	HOLDS(threads != NULL);
	for (struct dirent *entry; (entry = readdir(threads)) != NULL;) {
		char path[300], command[32] = "";
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
		FILE *file = fopen(path, "r");
		if (file == NULL)
			continue;
		if (fgets(command, sizeof command, file) != NULL && strncmp(command, "iou-sqp", 7) == 0)
			moved += moved_by(entry->d_name);
		fclose(file);
	}
	closedir(threads);
	return moved;
}

typedef void prepare(struct io_uring_sqe *sqe, int file, int block, uint64_t offset);

static void by_write(struct io_uring_sqe *sqe, int file, int block, uint64_t offset)
{
	io_uring_prep_write(sqe, file, vectors[block].iov_base, BLOCK, offset);
}

static void by_writev(struct io_uring_sqe *sqe, int file, int block, uint64_t offset)
{
	io_uring_prep_writev(sqe, file, halves[block], 2, offset);
}

static void by_write_fixed(struct io_uring_sqe *sqe, int file, int block, uint64_t offset)
{
	io_uring_prep_write_fixed(sqe, file, vectors[block].iov_base, BLOCK, offset, block);
}

static void by_read(struct io_uring_sqe *sqe, int file, int block, uint64_t offset)
{
	io_uring_prep_read(sqe, file, vectors[block].iov_base, BLOCK, offset);
}

static void by_readv(struct io_uring_sqe *sqe, int file, int block, uint64_t offset)
{
	io_uring_prep_readv(sqe, file, halves[block], 2, offset);
}

static void by_read_fixed(struct io_uring_sqe *sqe, int file, int block, uint64_t offset)
{
	io_uring_prep_read_fixed(sqe, file, vectors[block].iov_base, BLOCK, offset, block);
}

static prepare *const writes[] = { by_write, by_writev, by_write_fixed };
static prepare *const reads[] = { by_read, by_readv, by_read_fixed };

/*
 * Flags of a request. With FIXED it names the file by index 0 of the ring's table, otherwise by
 * descriptor.
 */
enum { FIXED = IOSQE_FIXED_FILE, ASYNC = IOSQE_ASYNC };

/*
 * Moves all blocks at once. Fails if the submitting threads have moved a block or more by read and
 * write calls of their own.
 */
static void move(struct io_uring *ring, int file, prepare *way, unsigned flags)
{
	long long before = moved_by_submitters();
	for (int block = 0; block < BLOCKS; block++) {
		struct io_uring_sqe *sqe = request(ring);
		way(sqe, flags & FIXED ? 0 : file, block, (uint64_t)block * BLOCK);
		named(sqe, block, flags);
	}
	EQUAL(io_uring_submit_and_wait(ring, BLOCKS), BLOCKS);
	for (int block = 0; block < BLOCKS; block++)
		EQUAL(next_answer(ring).res, BLOCK);
	HOLDS(moved_by_submitters() - before < BLOCK);
}

/* Moves one block at the file's position. */
static void move_at_position(struct io_uring *ring, int file, prepare *way, unsigned flags)
{
	long long before = moved_by_submitters();
	EQUAL(lseek(file, BLOCK, SEEK_SET), BLOCK);
	struct io_uring_sqe *sqe = request(ring);
	way(sqe, flags & FIXED ? 0 : file, 1, -1);
	sqe->flags |= flags;
	EQUAL(result_of(ring, sqe), BLOCK);
	HOLDS(moved_by_submitters() - before < BLOCK);
}

static void fill(int value)
{
	for (int block = 0; block < BLOCKS; block++)
		memset(vectors[block].iov_base, value + block, BLOCK);
}

static void moves_by_other_means(unsigned setup, unsigned flags)
{
	struct io_uring ring = new_ring(2 * BLOCKS, setup);
	EQUAL(io_uring_register_buffers(&ring, vectors, BLOCKS), 0);
	for (int way = 0; way < 3; way++) {
		int file = open(".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
		HOLDS(file >= 0);
		if (way == 0)
			EQUAL(io_uring_register_files(&ring, &file, 1), 0);
		else
			EQUAL(io_uring_register_files_update(&ring, 0, &file, 1), 1);
		/* In the first round the file grows. In the second round all its blocks exist. */
		for (int round = 0; round < ROUNDS; round++) {
			fill(1 + 16 * round + way);
			move(&ring, file, writes[way], flags);
			fill(0);
			move(&ring, file, reads[way], flags);
			for (int block = 0; block < BLOCKS; block++) {
				unsigned char *bytes = vectors[block].iov_base;
				EQUAL(bytes[0], 1 + 16 * round + way + block);
				HOLDS(memcmp(bytes, bytes + 1, BLOCK - 1) == 0);
			}
		}
		move_at_position(&ring, file, writes[way], flags);
		move_at_position(&ring, file, reads[way], flags);
		close(file);
	}
	io_uring_queue_exit(&ring);
}

static void in_the_call(void)
{
	moves_by_other_means(0, 0);
	moves_by_other_means(0, FIXED);
}

static void on_a_ring_that_defers(void)
{
	moves_by_other_means(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0);
	moves_by_other_means(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, FIXED);
}

static void by_the_sq_thread(void)
{
	moves_by_other_means(IORING_SETUP_SQPOLL, 0);
	moves_by_other_means(IORING_SETUP_SQPOLL, FIXED);
}

static void asynchronous(void)
{
	moves_by_other_means(0, ASYNC);
	moves_by_other_means(IORING_SETUP_SQPOLL, ASYNC | FIXED);
}

static void in_a_chain(void)
{
	moves_by_other_means(0, IOSQE_IO_LINK);
	moves_by_other_means(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IOSQE_IO_LINK | FIXED);
}

static const struct check checks[] = {
	{ "submitted by a call", in_the_call },
	{ "submitted on a ring that defers", on_a_ring_that_defers },
	{ "submitted by the SQ thread", by_the_sq_thread },
	{ "asynchronous", asynchronous },
	{ "in a chain", in_a_chain },
};

int main(int count, char **arguments)
{
	if (access("/proc/thread-self/io", R_OK) != 0) {
		printf("needs the kernel's counts of a thread's calls\n");
		return 0;
	}
	EQUAL(posix_memalign((void **)&blocks, 4096, BLOCK * BLOCKS), 0);
	for (int block = 0; block < BLOCKS; block++) {
		unsigned char *place = blocks + block * BLOCK;
		vectors[block] = (struct iovec){ place, BLOCK };
		halves[block][0] = (struct iovec){ place, BLOCK / 2 };
		halves[block][1] = (struct iovec){ place + BLOCK / 2, BLOCK / 2 };
	}
	return RUN(checks, count, arguments);
}
