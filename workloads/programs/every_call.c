/*
 * Makes one call of each plain system call that a rule of --inject can name. With the arguments
 * here, the kernel refuses the call or does nothing. Prints a line for each: the call's name, then
 * its errno's name, `77` for the result 77, or `ok`. `late` follows if the call took LATE
 * milliseconds or more. The last line counts SIGUSR1.
 *
 * All calls are made before the first line is printed, so that printing gets no fault.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>

#include "check.h"

enum { LATE = 20 };

static volatile sig_atomic_t signals;

static void count_signal(int signal)
{
	(void)signal;
	signals++;
}

#define CALL(name) { #name, SYS_##name }

static const struct {
	const char *name;
	long number;
} calls[] = {
	CALL(read),	     CALL(write),	   CALL(pread64),      CALL(pwrite64),
	CALL(readv),	     CALL(writev),	   CALL(preadv),       CALL(pwritev),
	CALL(preadv2),	     CALL(pwritev2),	   CALL(open),	       CALL(openat),
	CALL(openat2),	     CALL(creat),	   CALL(close),	       CALL(lseek),
	CALL(fsync),	     CALL(fdatasync),	   CALL(sync_file_range), CALL(syncfs),
	CALL(sync),	     CALL(msync),	   CALL(truncate),     CALL(ftruncate),
	CALL(fallocate),     CALL(flock),	   CALL(getdents64),   CALL(rename),
	CALL(renameat),	     CALL(renameat2),	   CALL(unlink),       CALL(unlinkat),
	CALL(link),	     CALL(linkat),	   CALL(symlink),      CALL(symlinkat),
	CALL(mkdir),	     CALL(mkdirat),	   CALL(rmdir),	       CALL(mknod),
	CALL(mknodat),	     CALL(chdir),	   CALL(fchdir),       CALL(chmod),
	CALL(fchmod),	     CALL(fchmodat),	   CALL(chown),	       CALL(lchown),
	CALL(fchown),	     CALL(fchownat),	   CALL(utimensat),    CALL(statfs),
	CALL(fstatfs),	     CALL(setxattr),	   CALL(fsetxattr),    CALL(getxattr),
	CALL(fgetxattr),     CALL(sendfile),	   CALL(splice),       CALL(tee),
	CALL(copy_file_range), CALL(socket),	   CALL(socketpair),   CALL(connect),
	CALL(accept),	     CALL(accept4),	   CALL(bind),	       CALL(listen),
	CALL(sendto),	     CALL(recvfrom),	   CALL(sendmsg),      CALL(recvmsg),
	CALL(sendmmsg),	     CALL(recvmmsg),	   CALL(shutdown),     CALL(getsockopt),
	CALL(setsockopt),    CALL(getsockname),	   CALL(getpeername),  CALL(poll),
	CALL(ppoll),	     CALL(select),	   CALL(pselect6),     CALL(epoll_wait),
	CALL(epoll_pwait),   CALL(epoll_pwait2),   CALL(pipe),	       CALL(pipe2),
	CALL(eventfd2),	     CALL(memfd_create),   CALL(nanosleep),    CALL(clock_nanosleep),
	CALL(io_setup),	     CALL(io_submit),	   CALL(io_getevents), CALL(io_destroy),
	CALL(io_uring_setup), CALL(io_uring_enter), CALL(io_uring_register),
};

enum { COUNT = sizeof calls / sizeof *calls };

/* All arguments are -1: no descriptor, no address, no flags that exist. */
static long make(long number)
{
	long result;

	/* usring sees close(2) by libc's function alone. */
	if (number == SYS_close)
		result = close(-1);
	else
		result = syscall(number, -1, -1, -1, -1, -1, -1);
	return result < 0 ? -errno : result;
}

int main(void)
{
	static long results[COUNT];
	static int late[COUNT];
	int index;

	signal(SIGUSR1, count_signal);
	for (index = 0; index < COUNT; index++) {
		long long begin = milliseconds_now();

		results[index] = make(calls[index].number);
		late[index] = milliseconds_now() - begin >= LATE;
	}
	for (index = 0; index < COUNT; index++) {
		long result = results[index];
		const char *what = result == 77 ? "77" : result < 0 ? strerrorname_np(-result) : "ok";

		printf("%s %s%s\n", calls[index].name, what, late[index] ? " late" : "");
	}
	printf("signals %d\n", (int)signals);
	return 0;
}
