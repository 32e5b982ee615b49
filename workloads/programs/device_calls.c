/*
 * Accesses a device in every way that libc and the processor offer:
 * - by fortified symbols and streams;
 * - by call numbers that the filter lets pass;
 * - by descriptor numbers that belonged to another file before.
 *
 * The device is `disk` and has 1 MiB.
 */
#define _GNU_SOURCE
#include "check.h"

#include <aio.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { SIZE = 1 << 20, LENGTH = 1000 };

static const char path[] = "disk";
static char pattern[LENGTH], found[8192];

/* Makes a system call by an instruction in this program. */
static long bare(long number, long a, long b, long c, long d)
{
	long answer;
	register long fourth __asm__("r10") = d;
	__asm__ volatile("syscall"
			 : "=a"(answer)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
			 : "rcx", "r11", "memory");
	return answer;
}

/* Returns whether the first `length` bytes of `found` are those of the pattern. */
static int holds(size_t length)
{
	int same = memcmp(found, pattern, length) == 0;
	memset(found, 0, sizeof found);
	return same;
}

static void start(void)
{
	for (size_t at = 0; at < LENGTH; at++)
		pattern[at] = (char)(1 + at % 251);
	int device = open(path, O_WRONLY);
	EQUAL(pwrite(device, pattern, LENGTH, 0), LENGTH);
	close(device);
}

static void fortified(void)
{
	/*
	 * The lengths are volatile, so that the compiler does not know them. The fortified
	 * functions then check them at run time.
	 */
	volatile size_t length = 700;
	volatile int flags = O_RDWR;
	int device = open(path, flags), other = openat(AT_FDCWD, path, flags | O_CLOEXEC);
	EQUAL(read(device, found, length), length);
	HOLDS(holds(length));
	EQUAL(pread(other, found, length, 0), length);
	HOLDS(holds(length));
	int low = dup2(device, 20);
	EQUAL(pread(low, found, length, 0), length);
	HOLDS(holds(length));
	close(low);
	close(device);
	close(other);
}

static void streams(void)
{
	for (const char **mode = (const char *[]){ "r", "re", "r+", "rm", NULL }; *mode != NULL; mode++) {
		FILE *file = fopen(path, *mode);
		HOLDS(file != NULL);
		EQUAL(fread(found, 1, LENGTH, file), LENGTH);
		HOLDS(holds(LENGTH));
		fclose(file);
	}
	int device = open(path, O_RDWR);
	EQUAL(dup2(device, 21), 21);
	close(device);
	FILE *file = fdopen(21, "r+");
	EQUAL(fread(found, 1, 10, file), 10);
	HOLDS(holds(10));
	EQUAL(fseek(file, 0, SEEK_SET), 0);
	EQUAL(fwrite(pattern, 1, LENGTH, file), LENGTH);
	EQUAL(fclose(file), 0);
	file = freopen(path, "r", stdin);
	EQUAL(fread(found, 1, LENGTH, file), LENGTH);
	HOLDS(holds(LENGTH));
	fclose(file);
	HOLDS(open("/dev/null", O_RDONLY) == 0);
}

static void bare_instructions(void)
{
	int device = (int)bare(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0);
	HOLDS(device >= 0);
	for (int again = 0; again < 3; again++) {
		EQUAL(bare(SYS_read, device, (long)found, 100, 0), 100);
		HOLDS(holds(100));
		EQUAL(bare(SYS_pread64, device, (long)found, 512, 0), 512);
		HOLDS(holds(512));
		struct iovec vector = { found, 100 };
		EQUAL(bare(SYS_readv, device, (long)&vector, 1, 0), 100);
		HOLDS(memcmp(found, pattern + 100, 100) == 0);
		EQUAL(bare(SYS_lseek, device, 0, SEEK_SET, 0), 0);
	}
	EQUAL(bare(SYS_close, device, 0, 0, 0), 0);
}

/*
 * A descriptor number belonged to another file. By a call that usring does not see, the number now
 * belongs to the device.
 */
static void a_number_again(void)
{
	int other = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	EQUAL(read(other, found, 10), 10);
	EQUAL(bare(SYS_close, other, 0, 0, 0), 0);
	int device = (int)bare(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0);
	EQUAL(device, other);
	EQUAL(read(device, found, 100), 100);
	HOLDS(holds(100));
	EQUAL(bare(SYS_close, device, 0, 0, 0), 0);
	EQUAL(open("/dev/zero", O_RDONLY | O_CLOEXEC), other);
	EQUAL(read(other, found, 100), 100);
	HOLDS(found[0] == 0 && !holds(100));
	close(other);
}

static void sent_through_a_socket(void)
{
	int pair[2], device = open(path, O_RDONLY);
	char control[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 0;
	struct iovec vector = { &byte, 1 };
	struct msghdr message = {
		.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &device, sizeof device);
	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	EQUAL(sendmsg(pair[0], &message, 0), 1);
	EQUAL(recvmsg(pair[1], &message, 0), 1);
	int received;
	memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
	EQUAL(read(received, found, 100), 100);
	HOLDS(holds(100));
	close(received);
	close(device);
	close(pair[0]);
	close(pair[1]);
}

static void posix_aio(void)
{
	int device = open(path, O_RDWR);
	for (int low = 0; low < 2; low++) {
		struct aiocb block = { .aio_fildes = low ? dup2(device, 22) : device, .aio_buf = found, .aio_nbytes = 512 };
		const struct aiocb *list[] = { &block };
		EQUAL(aio_read(&block), 0);
		while (aio_error(&block) == EINPROGRESS)
			aio_suspend(list, 1, NULL);
		EQUAL(aio_return(&block), 512);
		HOLDS(holds(512));
	}
	close(22);
	close(device);
}

/*
 * The device's placeholder file has no blocks. If the kernel answered these calls, they would read
 * or change that file.
 */
static void not_the_file_behind(void)
{
	int device = open(path, O_RDWR), copy = open("copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct stat before, after;
	struct open_how how = { .flags = O_RDWR | O_TRUNC };
	struct file_clone_range range = { .src_fd = device };

	EQUAL(stat(path, &before), 0);
	EQUAL(ioctl(copy, FICLONE, device), -1);
	EQUAL(errno, EOPNOTSUPP);
	EQUAL(ioctl(copy, FICLONERANGE, &range), -1);
	EQUAL(errno, EOPNOTSUPP);
	EQUAL(posix_fadvise(device, 0, 0, POSIX_FADV_WILLNEED), 0);
	EQUAL(readahead(device, 0, 4096), 0);
	EQUAL(copy_file_range(device, NULL, copy, NULL, 4096, 0), -1);
	EQUAL(errno, EINVAL);
	HOLDS(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, device, 0) == MAP_FAILED);
	EQUAL(dup2(device, 23), 23);
	HOLDS(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 23, 0) == MAP_FAILED);
	EQUAL(errno, ENODEV);
	close(23);
	int second = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
	HOLDS(second >= 0);
	EQUAL(read(second, found, 100), 100);
	HOLDS(holds(100));
	close(second);
	close(creat(path, 0600));
	EQUAL(truncate(path, 100), 0);
	EQUAL(truncate(path, SIZE + 1), -1);
	EQUAL(errno, EFBIG);
	EQUAL(stat(path, &after), 0);
	EQUAL(before.st_size, after.st_size);
	close(copy);
	close(device);
	unlink("copy");
}

/*
 * At the device's end, and with bad arguments, the answers must be those of Linux's block devices.
 */
static void edges(void)
{
	int device = open(path, O_RDWR);
	struct iovec too_long = { found, 1ul << 63 };

	/* By syscall(), because the compiler refuses such lengths in read(2). */
	EQUAL(syscall(SYS_read, device, found, 1ul << 63), -1);
	EQUAL(errno, EFAULT);
	EQUAL(syscall(SYS_pwrite64, device, found, -1L, 0L), -1);
	EQUAL(errno, EFAULT);
	EQUAL(readv(device, &too_long, 1), -1);
	EQUAL(errno, EINVAL);
	enum { PUNCH = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ZERO = FALLOC_FL_ZERO_RANGE };
	EQUAL(fallocate(device, PUNCH, SIZE - 4096, 8192), 0);
	EQUAL(fallocate(device, ZERO | FALLOC_FL_KEEP_SIZE, SIZE - 4096, 8192 + 100), 0);
	EQUAL(fallocate(device, ZERO, SIZE - 4096, 4096), 0);
	for (const int *mode = (const int[]){ ZERO, PUNCH, FALLOC_FL_KEEP_SIZE, -1 }; *mode >= 0; mode++) {
		EQUAL(fallocate(device, *mode, SIZE, 4096), -1);
		EQUAL(errno, EINVAL);
	}
	EQUAL(fallocate(device, ZERO, SIZE - 4096, 8192), -1);
	EQUAL(errno, EINVAL);
	EQUAL(fallocate(device, PUNCH, 100, 4096), -1);
	EQUAL(errno, EINVAL);
	EQUAL(fallocate(device, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -1);
	EQUAL(errno, EOPNOTSUPP);
	EQUAL(fallocate(device, PUNCH, 0x7fffffffffffffff, 4096), -1);
	EQUAL(errno, EFBIG);
	EQUAL(sync_file_range(device, 0, 4096, 7), 0);
	EQUAL(sync_file_range(device, 0, 4096, 8), -1);
	EQUAL(errno, EINVAL);
	close(device);
}

static const struct check checks[] = {
	{ "start", start },
	{ "fortified", fortified },
	{ "streams", streams },
	{ "bare instructions", bare_instructions },
	{ "a number again", a_number_again },
	{ "sent through a socket", sent_through_a_socket },
	{ "POSIX AIO", posix_aio },
	{ "not the file behind", not_the_file_behind },
	{ "edges", edges },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
