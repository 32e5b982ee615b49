/*
 * Rings whose buffers, vectors, messages and paths are in ordinary mappings. Under `usring run
 * --swap` most of this memory is evicted when a request names it. While the request waits, the
 * memory is evicted again.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
/*
 * Flags that some headers lack. With such headers the addresses of the ring's memory go into the
 * fields `resv2`.
 */
#define NO_MMAP (1U << 14)
#define NO_SQARRAY (1U << 16)

static unsigned char *memory;
static const size_t length = 16 * MIB;

static uint64_t mark(size_t page)
{
	return page * 0x9e3779b97f4a7c15UL + 1;
}

/* Touches all swapped memory, so that the pages that were resident before are evicted. */
static void drive_out(void)
{
	for (size_t page = 0; page < length / PAGE; page++)
		*(uint64_t *)(memory + page * PAGE + PAGE - 8) = mark(page);
}

/*
 * Returns the address of `bytes` bytes of swapped memory that were not used for long. Each call
 * returns another address, 64 bytes behind the start of a page.
 */
static unsigned char *place(size_t bytes)
{
	static size_t next = 3;
	size_t room = length / PAGE - bytes / PAGE - 2;
	next = (next + length / PAGE / 3) % room;
	return memory + next * PAGE + 64;
}

static void write_pattern(unsigned char *to, size_t bytes, unsigned seed)
{
	for (size_t byte = 0; byte < bytes; byte++)
		to[byte] = (unsigned char)(seed + byte * 7 + byte / 251);
}

static int has_pattern(const unsigned char *at, size_t bytes, unsigned seed)
{
	for (size_t byte = 0; byte < bytes; byte++)
		if (at[byte] != (unsigned char)(seed + byte * 7 + byte / 251))
			return 0;
	return 1;
}

static void files_with(unsigned flags)
{
	struct io_uring ring = new_ring(16, flags);
	int file = new_file();
	size_t sizes[] = { 100, PAGE, 3 * PAGE + 5, MIB, 5 * MIB };
	for (unsigned each = 0; each < sizeof sizes / sizeof *sizes; each++) {
		size_t size = sizes[each];
		unsigned char *from = place(size), *to;
		write_pattern(from, size, each);
		drive_out();
		/*
		 * `drive_out` has overwritten the last word of each page, so the pattern is written
		 * again.
		 */
		write_pattern(from, size, each);
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_write(sqe, file, from, size, 0);
		EQUAL(result_of(&ring, sqe), size);
		drive_out();
		to = place(size);
		sqe = request(&ring);
		io_uring_prep_read(sqe, file, to, size, 0);
		EQUAL(result_of(&ring, sqe), size);
		HOLDS(has_pattern(to, size, each));
		/* The iovec itself is evicted when the engine reads it. */
		struct iovec *vector = (struct iovec *)place(sizeof *vector * 2);
		to = place(size);
		vector[0] = (struct iovec){ to, size / 3 };
		vector[1] = (struct iovec){ to + size / 3, size - size / 3 };
		drive_out();
		sqe = request(&ring);
		io_uring_prep_readv(sqe, file, vector, 2, 0);
		EQUAL(result_of(&ring, sqe), size);
		HOLDS(has_pattern(to, size, each));
	}
	close(file);
	io_uring_queue_exit(&ring);
}

static void files(void)
{
	files_with(0);
}

static void files_by_an_sq_thread(void)
{
	files_with(IORING_SETUP_SQPOLL);
}

static void registered_buffers(void)
{
	struct io_uring ring = new_ring(16, 0);
	int file = new_file();
	struct iovec parts[3];
	for (unsigned each = 0; each < 3; each++) {
		parts[each] = (struct iovec){ place(MIB), MIB };
		write_pattern(parts[each].iov_base, MIB, each);
	}
	EQUAL(io_uring_register_buffers(&ring, parts, 3), 0);
	for (unsigned each = 0; each < 3; each++) {
		drive_out();
		write_pattern(parts[each].iov_base, MIB, each);
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_write_fixed(sqe, file, parts[each].iov_base, MIB, each * MIB, each);
		EQUAL(result_of(&ring, sqe), MIB);
	}
	for (unsigned each = 0; each < 3; each++) {
		drive_out();
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_read_fixed(sqe, file, parts[each].iov_base, MIB, (2 - each) * MIB, each);
		EQUAL(result_of(&ring, sqe), MIB);
		HOLDS(has_pattern(parts[each].iov_base, MIB, 2 - each));
	}
	EQUAL(io_uring_unregister_buffers(&ring), 0);
	close(file);
	io_uring_queue_exit(&ring);
}

/* The memory of a waiting request is evicted again before the data comes. */
static void sockets(void)
{
	struct io_uring ring = new_ring(16, 0);
	int kinds[] = { SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };
	for (unsigned each = 0; each < 3; each++) {
		int pair[2];
		enum { SIZE = 20000 };
		EQUAL(socketpair(AF_UNIX, kinds[each], 0, pair), 0);
		unsigned char *from = place(SIZE), *to = place(SIZE);
		struct io_uring_sqe *sqe = request(&ring);
		io_uring_prep_recv(sqe, pair[1], to, SIZE, kinds[each] == SOCK_STREAM ? MSG_WAITALL : 0);
		named(sqe, 1, 0);
		EQUAL(io_uring_submit(&ring), 1);
		write_pattern(from, SIZE, each);
		drive_out();
		write_pattern(from, SIZE, each);
		sqe = request(&ring);
		io_uring_prep_send(sqe, pair[0], from, SIZE, 0);
		named(sqe, 2, 0);
		EQUAL(io_uring_submit(&ring), 1);
		for (int both = 0; both < 2; both++)
			EQUAL(next_answer(&ring).res, SIZE);
		HOLDS(has_pattern(to, SIZE, each));
		/* The message header, its vector and its buffer are all in swapped memory. */
		struct msghdr *message = (struct msghdr *)place(sizeof *message);
		struct iovec *vector = (struct iovec *)place(sizeof *vector);
		to = place(SIZE);
		*vector = (struct iovec){ to, SIZE };
		*message = (struct msghdr){ .msg_iov = vector, .msg_iovlen = 1 };
		drive_out();
		sqe = request(&ring);
		io_uring_prep_recvmsg(sqe, pair[1], message, 0);
		named(sqe, 3, 0);
		EQUAL(io_uring_submit(&ring), 1);
		drive_out();
		EQUAL(send(pair[0], "a message", 10, 0), 10);
		EQUAL(answer_to(&ring, 3).res, 10);
		HOLDS(memcmp(to, "a message", 10) == 0);
		close(pair[0]);
		close(pair[1]);
	}
	io_uring_queue_exit(&ring);
}

static void provided_buffers(void)
{
	enum { COUNT = 8, SIZE = 8000, GROUP = 5 };
	struct io_uring ring = new_ring(16, 0);
	int pair[2];
	EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
	/* Both the buffers and the ring of buffers are in swapped memory. */
	unsigned char *buffers = place(COUNT * SIZE);
	struct io_uring_buf_ring *group = (struct io_uring_buf_ring *)(memory + 6 * MIB);
	struct io_uring_buf_reg said = { .ring_addr = (uintptr_t)group, .ring_entries = COUNT, .bgid = GROUP };
	EQUAL(io_uring_register_buf_ring(&ring, &said, 0), 0);
	io_uring_buf_ring_init(group);
	for (int each = 0; each < COUNT; each++)
		io_uring_buf_ring_add(group, buffers + each * SIZE, SIZE, each, COUNT - 1, each);
	io_uring_buf_ring_advance(group, COUNT);
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_recv_multishot(sqe, pair[1], NULL, 0, 0);
	sqe->buf_group = GROUP;
	named(sqe, 1, IOSQE_BUFFER_SELECT);
	EQUAL(io_uring_submit(&ring), 1);
	for (unsigned each = 0; each < COUNT; each++) {
		unsigned char text[SIZE];
		write_pattern(text, SIZE, each);
		/*
		 * Touches the memory behind the ring of buffers. The ring's own page is left out,
		 * because the kernel and the program use its words.
		 */
		for (size_t page = 6 * MIB / PAGE + 1; page < length / PAGE; page++)
			*(volatile unsigned char *)(memory + page * PAGE) += 1;
		EQUAL(send(pair[0], text, SIZE, 0), SIZE);
		struct answer answer = answer_to(&ring, 1);
		EQUAL(answer.res, SIZE);
		HOLDS(answer.flags & IORING_CQE_F_BUFFER);
		HOLDS(has_pattern(buffers + (answer.flags >> IORING_CQE_BUFFER_SHIFT) * SIZE, SIZE, each));
	}
	io_uring_queue_exit(&ring);
	close(pair[0]);
	close(pair[1]);
}

static void names_and_times(void)
{
	struct io_uring ring = new_ring(16, 0);
	char *path = (char *)place(PAGE);
	strcpy(path, "swapped-rings-file");
	struct statx *status = (struct statx *)place(sizeof *status);
	struct __kernel_timespec *soon = (struct __kernel_timespec *)place(sizeof *soon);
	soon->tv_sec = 0, soon->tv_nsec = 1000000;
	drive_out();
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_openat(sqe, AT_FDCWD, path, O_CREAT | O_RDWR, 0600);
	int file = result_of(&ring, sqe);
	HOLDS(file >= 0);
	EQUAL(ftruncate(file, 12345), 0);
	drive_out();
	sqe = request(&ring);
	io_uring_prep_statx(sqe, AT_FDCWD, path, 0, STATX_SIZE, status);
	EQUAL(result_of(&ring, sqe), 0);
	EQUAL(status->stx_size, 12345);
	drive_out();
	sqe = request(&ring);
	io_uring_prep_unlinkat(sqe, AT_FDCWD, path, 0);
	EQUAL(result_of(&ring, sqe), 0);
	drive_out();
	sqe = request(&ring);
	io_uring_prep_timeout(sqe, soon, 0, 0);
	EQUAL(result_of(&ring, sqe), -ETIME);
	close(file);
	io_uring_queue_exit(&ring);
}

/*
 * The ring itself is in swapped memory (NO_MMAP). usring releases that part of the memory to the
 * kernel.
 */
static void rings_in_memory_of_the_programs(void)
{
	unsigned char *rings = memory + 14 * MIB, *entries = rings + 16 * PAGE;
	struct io_uring_params said = { .flags = NO_MMAP | NO_SQARRAY };
	memset(rings, 0, 32 * PAGE);
	said.cq_off.resv2 = (uintptr_t)rings;
	said.sq_off.resv2 = (uintptr_t)entries;
	drive_out();
	memset(rings, 0, 32 * PAGE);
	int ring = syscall(__NR_io_uring_setup, 8, &said);
	HOLDS(ring >= 0);
	for (unsigned each = 0; each < 20; each++) {
		struct io_uring_sqe *sqe = (struct io_uring_sqe *)entries + each % 8;
		*sqe = (struct io_uring_sqe){ .opcode = IORING_OP_NOP, .user_data = each };
		/* Touches all pages except those of the rings. */
		for (size_t page = 0; page < 13 * MIB / PAGE; page++)
			*(volatile unsigned char *)(memory + page * PAGE) += 1;
		__atomic_store_n((unsigned *)(rings + said.sq_off.tail), each + 1, __ATOMIC_RELEASE);
		EQUAL(syscall(__NR_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
		EQUAL(__atomic_load_n((unsigned *)(rings + said.cq_off.tail), __ATOMIC_ACQUIRE), each + 1);
		struct io_uring_cqe *cqes = (struct io_uring_cqe *)(rings + said.cq_off.cqes);
		EQUAL(cqes[each % said.cq_entries].user_data, each);
		__atomic_store_n((unsigned *)(rings + said.cq_off.head), each + 1, __ATOMIC_RELEASE);
	}
	close(ring);
}

int main(int count, char **arguments)
{
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(memory != MAP_FAILED);
	const struct check checks[] = {
		{ "files", files },
		{ "files by an SQ thread", files_by_an_sq_thread },
		{ "registered buffers", registered_buffers },
		{ "sockets", sockets },
		{ "provided buffers", provided_buffers },
		{ "names and times", names_and_times },
		{ "rings in memory of the program's", rings_in_memory_of_the_programs },
	};
	return RUN(checks, count, arguments);
}
