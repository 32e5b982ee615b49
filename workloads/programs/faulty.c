/*
 * Shows which faults its calls get: makes COUNT calls of NAME, one after the other, and prints the
 * results.
 *
 *     faulty ring|call|aio NAME COUNT [step]
 *
 * With `step` the program reads a byte from the fifo `go` before each call, and writes one to the
 * fifo `done` after it.
 *
 * Each line is `NUMBER RESULT`. RESULT is the errno's name for an error. These words follow:
 * - `late`: the call took LATE milliseconds or more.
 * - `wrong`: a read has not filled the buffer with the file's bytes. The file has SIZE bytes, and
 *   byte n is n mod 251.
 *
 * Writes append to the file `written`. The last lines have the number of SIGUSR1, if any came, and
 * the file's size.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { SIZE = 4096, LATE = 20 };

static unsigned char buffer[SIZE];
static volatile sig_atomic_t signals;
static int source, target, ends[2], pipe_from[2], pipe_to[2];
static struct io_uring ring;
static aio_context_t context;
static struct __kernel_timespec millisecond = { 0, 1000000 };

static void count_signal(int signal)
{
	(void)signal;
	signals++;
}

static int is(const char *one, const char *other)
{
	return strcmp(one, other) == 0;
}

static long milliseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct iovec halves[2] = { { buffer, SIZE / 2 }, { buffer + SIZE / 2, SIZE / 2 } };

static long by_call(const char *name)
{
	long result = -ENOSYS;
	if (is(name, "read"))
		result = pread(source, buffer, SIZE, 0);
	else if (is(name, "readv"))
		result = preadv(source, halves, 2, 0);
	else if (is(name, "write"))
		result = write(target, buffer, SIZE);
	else if (is(name, "writev"))
		result = writev(target, halves, 2);
	else if (is(name, "read(2)"))
		result = read(source, buffer, SIZE);
	else if (is(name, "readv(2)"))
		result = readv(source, halves, 2);
	else if (is(name, "preadv2"))
		result = preadv2(source, halves, 2, 0, RWF_HIPRI);
	else if (is(name, "pwrite64"))
		result = pwrite(target, buffer, SIZE, 0);
	else if (is(name, "pwritev"))
		result = pwritev(target, halves, 2, 0);
	else if (is(name, "pwritev2"))
		result = pwritev2(target, halves, 2, 0, RWF_HIPRI);
	else if (is(name, "sendfile"))
		result = sendfile(ends[0], source, NULL, SIZE);
	else if (is(name, "splice"))
		result = splice(source, NULL, pipe_to[1], NULL, SIZE, 0);
	else if (is(name, "tee"))
		result = tee(pipe_from[0], pipe_to[1], SIZE, 0);
	else if (is(name, "copy_file_range"))
		result = copy_file_range(source, NULL, target, NULL, SIZE, 0);
	else if (is(name, "fsync"))
		result = fsync(target);
	else if (is(name, "openat"))
		result = openat(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC);
	else if (is(name, "send"))
		result = send(ends[0], buffer, 16, 0);
	else if (is(name, "recv"))
		result = recv(ends[1], buffer, 8, 0);
	else if (is(name, "ftruncate"))
		result = ftruncate(target, 0);
	else if (is(name, "mkdirat"))
		result = mkdirat(AT_FDCWD, "folder", 0700);
	return result < 0 ? -errno : result;
}

static long by_ring(const char *name, int number)
{
	struct io_uring_sqe *sqe = request(&ring);
	if (is(name, "nop"))
		io_uring_prep_nop(sqe);
	else if (is(name, "read"))
		io_uring_prep_read(sqe, source, buffer, SIZE, 0);
	else if (is(name, "readv"))
		io_uring_prep_readv(sqe, source, halves, 2, 0);
	else if (is(name, "write"))
		io_uring_prep_write(sqe, target, buffer, SIZE, -1);
	else if (is(name, "writev"))
		io_uring_prep_writev(sqe, target, halves, 2, -1);
	else if (is(name, "fsync"))
		io_uring_prep_fsync(sqe, target, 0);
	else if (is(name, "openat"))
		io_uring_prep_openat(sqe, AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0);
	else if (is(name, "send"))
		io_uring_prep_send(sqe, ends[0], buffer, 16, 0);
	else if (is(name, "recv"))
		io_uring_prep_recv(sqe, ends[1], buffer, 8, 0);
	else if (is(name, "timeout"))
		io_uring_prep_timeout(sqe, &millisecond, 0, 0);
	else if (is(name, "mkdirat"))
		io_uring_prep_mkdirat(sqe, AT_FDCWD, "folder", 0700);
	named(sqe, 100 + number, 0);
	EQUAL(io_uring_submit(&ring), 1);
	return answer_to(&ring, 100 + number).res;
}

static long by_aio(const char *name)
{
	struct iocb iocb = { .aio_fildes = target };
	iocb.aio_lio_opcode = is(name, "read")	   ? IOCB_CMD_PREAD
			      : is(name, "readv")  ? IOCB_CMD_PREADV
			      : is(name, "write")  ? IOCB_CMD_PWRITE
			      : is(name, "writev") ? IOCB_CMD_PWRITEV
			      : is(name, "fdsync") ? IOCB_CMD_FDSYNC
			      : is(name, "fsync")  ? IOCB_CMD_FSYNC
						   : IOCB_CMD_POLL;
	if (is(name, "read") || is(name, "readv"))
		iocb.aio_fildes = source;
	if (is(name, "read") || is(name, "write")) {
		iocb.aio_buf = (uintptr_t)buffer;
		iocb.aio_nbytes = SIZE;
	} else if (is(name, "readv") || is(name, "writev")) {
		iocb.aio_buf = (uintptr_t)halves;
		iocb.aio_nbytes = 2;
	} else if (is(name, "poll_add")) {
		iocb.aio_fildes = ends[1];
		iocb.aio_buf = POLLIN;
	}
	if (is(name, "write") || is(name, "writev"))
		iocb.aio_offset = lseek(target, 0, SEEK_END);
	struct iocb *list = &iocb;
	struct io_event event;
	if (syscall(SYS_io_submit, context, 1, &list) != 1)
		return -errno;
	EQUAL(syscall(SYS_io_getevents, context, 1, 1, &event, NULL), 1);
	return event.res;
}

static int is_wrong(long result)
{
	for (long at = 0; at < result; at++)
		if (buffer[at] != at % 251)
			return 1;
	return 0;
}

static void call(const char *kind, const char *name, int number)
{
	int reads = strstr(name, "read") != NULL;
	if (reads)
		memset(buffer, 255, SIZE);
	long begin = milliseconds();
	long result = is(kind, "ring") ? by_ring(name, number) : is(kind, "aio") ? by_aio(name) : by_call(name);
	const char *late = milliseconds() - begin >= LATE ? " late" : "";
	const char *wrong = reads && is_wrong(result) ? " wrong" : "";
	if (result < 0)
		printf("%d %s%s\n", number, strerrorname_np(-result), late);
	else
		printf("%d %ld%s%s\n", number, is(name, "openat") ? 0 : result, late, wrong);
}

int main(int count, char **words)
{
	HOLDS(count == 4 || count == 5);
	signal(SIGUSR1, count_signal);
	for (int at = 0; at < SIZE; at++)
		buffer[at] = at % 251;
	source = open("source", O_RDWR | O_CREAT | O_TRUNC, 0600);
	target = open("written", O_RDWR | O_CREAT | O_TRUNC, 0600);
	HOLDS(source >= 0 && target >= 0);
	EQUAL(pwrite(source, buffer, SIZE, 0), SIZE);
	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	EQUAL(pipe(pipe_from), 0);
	EQUAL(pipe(pipe_to), 0);
	if (is(words[2], "tee"))
		EQUAL(write(pipe_from[1], buffer, SIZE), SIZE);
	if (is(words[2], "recv") || is(words[2], "poll_add"))
		EQUAL(write(ends[0], buffer, 512), 512);
	if (is(words[1], "ring"))
		ring = new_ring(8, 0);
	if (is(words[1], "aio"))
		EQUAL(syscall(SYS_io_setup, 8, &context), 0);
	int go = -1, done = -1;
	if (count == 5) {
		go = open("go", O_RDWR);
		done = open("done", O_RDWR);
		HOLDS(go >= 0 && done >= 0);
	}
	for (int number = 1; number <= atoi(words[3]); number++) {
		char byte = 0;
		if (go >= 0)
			EQUAL(read(go, &byte, 1), 1);
		call(words[1], words[2], number);
		if (done >= 0)
			EQUAL(write(done, &byte, 1), 1);
	}
	if (signals)
		printf("signals %d\n", (int)signals);
	struct stat found;
	EQUAL(fstat(target, &found), 0);
	if (found.st_size)
		printf("size %ld\n", (long)found.st_size);
	return 0;
}
