/*
 * Makes one request of each opcode that usring serves, one after the other. Prints a line for each,
 * and in the last line how many times SIGUSR1 came:
 *
 * - `NAME RESULT`. RESULT is the errno's name for an error, `77` for the result 77, and `ok`
 *   otherwise.
 * - `late` follows if the request took LATE_MS or more.
 * - With the argument `reorder`, a NOP follows each request in its batch. `overtaken` follows if
 *   the NOP's CQE came first.
 * - With `overflow`, the word `overflow` follows if the CQE went to the backlog.
 * - With `spurious`, the word `spurious` follows if the registered eventfd was signalled twice.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>

enum { LATE_MS = 20, MOST_OVERFLOW_WAIT_MS = 2000, OF_REQUEST = 1, OF_NOP = 2 };

static struct io_uring ring;
static volatile sig_atomic_t signals;
static int is_reorder, is_overflow, is_spurious, event;

static void count_signal(int signal)
{
	(void)signal;
	signals++;
}

static long milliseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void show(const char *name)
{
	struct io_uring_sqe *nop;
	unsigned count = 1;
	ring.sq.sqes[(ring.sq.sqe_tail - 1) & ring.sq.ring_mask].user_data = OF_REQUEST;
	if (is_reorder) {
		nop = request(&ring);
		io_uring_prep_nop(nop);
		named(nop, OF_NOP, 0);
		count = 2;
	}
	long begin = milliseconds();
	EQUAL(io_uring_submit(&ring), (int)count);
	const char *what = "";
	int result = 0;
	while (is_overflow && milliseconds() - begin < MOST_OVERFLOW_WAIT_MS && !io_uring_cq_ready(&ring)) {
		if (io_uring_cq_has_overflow(&ring)) {
			what = " overflow";
			break;
		}
		sched_yield();
	}
	for (unsigned number = 0; number < count; number++) {
		struct answer answer = next_answer(&ring);
		if (answer.user_data == OF_REQUEST)
			result = answer.res;
		else if (number == 0)
			what = " overtaken";
		if (answer.flags & IORING_CQE_F_MORE) {
			/*
			 * Another CQE follows: the notification of a zero-copy send, or the next
			 * one of a multishot.
			 */
			struct io_uring_cqe *cqe;
			struct __kernel_timespec moment = { 0, 200000000 };
			if (io_uring_wait_cqe_timeout(&ring, &cqe, &moment) == 0) {
				if (cqe->user_data == OF_NOP)
					number++;
				io_uring_cqe_seen(&ring, cqe);
			}
		}
	}
	const char *late = milliseconds() - begin >= LATE_MS ? " late" : "";
	if (is_spurious) {
		uint64_t raised = 0;
		if (read(event, &raised, sizeof raised) == sizeof raised && raised > 1)
			what = " spurious";
	}
	if (result < 0)
		printf("%s %s%s%s\n", name, strerrorname_np(-result), late, what);
	else
		printf("%s %s%s%s\n", name, result == 77 ? "77" : "ok", late, what);
	fflush(stdout);
}

/* Prepares a request and shows its result. */
#define SHOW(name, function, ...)                                                                                      \
	do {                                                                                                           \
		function(request(&ring), ##__VA_ARGS__);                                                                \
		show(name);                                                                                            \
	} while (0)

/* Opcodes that Debian's liburing does not know. */
enum { WAITID = 50, FIXED_FD_INSTALL = 54, FTRUNCATE, BIND, LISTEN, EPOLL_WAIT = 59, READV_FIXED, WRITEV_FIXED, PIPE };

static void prepare(struct io_uring_sqe *sqe, int opcode, int fd, const void *address, unsigned length, uint64_t offset)
{
	io_uring_prep_rw(opcode, sqe, fd, address, length, offset);
}

static void prepare_install(struct io_uring_sqe *sqe, int slot)
{
	io_uring_prep_rw(FIXED_FD_INSTALL, sqe, slot, NULL, 0, 0);
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
}

static void prepare_waitid(struct io_uring_sqe *sqe, pid_t child, siginfo_t *info)
{
	io_uring_prep_rw(WAITID, sqe, child, NULL, P_PID, (uintptr_t)info);
	sqe->file_index = WEXITED | WNOWAIT;
}

static char buffer[4096] __attribute__((aligned(4096)));
static struct iovec vector = { buffer, 512 };
static struct __kernel_timespec moment = { 0, 1000000 };

static void files(int file)
{
	struct statx found;
	struct open_how how = { .flags = O_RDONLY };
	SHOW("nop", io_uring_prep_nop);
	SHOW("readv", io_uring_prep_readv, file, &vector, 1, 0);
	SHOW("writev", io_uring_prep_writev, file, &vector, 1, 0);
	SHOW("fsync", io_uring_prep_fsync, file, 0);
	SHOW("read_fixed", io_uring_prep_read_fixed, file, buffer, 512, 0, 0);
	SHOW("write_fixed", io_uring_prep_write_fixed, file, buffer, 512, 0, 0);
	SHOW("sync_file_range", io_uring_prep_sync_file_range, file, 512, 0, 0);
	SHOW("fallocate", io_uring_prep_fallocate, file, 0, 0, 512);
	SHOW("openat", io_uring_prep_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0);
	SHOW("close", io_uring_prep_close, dup(file));
	SHOW("statx", io_uring_prep_statx, AT_FDCWD, ".", 0, STATX_SIZE, &found);
	SHOW("read", io_uring_prep_read, file, buffer, 512, 0);
	SHOW("write", io_uring_prep_write, file, buffer, 512, 0);
	SHOW("fadvise", io_uring_prep_fadvise, file, 0, 512, POSIX_FADV_NORMAL);
	SHOW("madvise", io_uring_prep_madvise, buffer, 0, MADV_NORMAL);
	SHOW("openat2", io_uring_prep_openat2, AT_FDCWD, "/dev/null", &how);
	SHOW("renameat", io_uring_prep_renameat, AT_FDCWD, "a", AT_FDCWD, "b", 0);
	SHOW("unlinkat", io_uring_prep_unlinkat, AT_FDCWD, "c", 0);
	SHOW("mkdirat", io_uring_prep_mkdirat, AT_FDCWD, "d", 0700);
	SHOW("symlinkat", io_uring_prep_symlinkat, "x", AT_FDCWD, "e");
	SHOW("linkat", io_uring_prep_linkat, AT_FDCWD, "f", AT_FDCWD, "g", 0);
	SHOW("fsetxattr", io_uring_prep_fsetxattr, file, "user.a", "1", 0, 1);
	SHOW("setxattr", io_uring_prep_setxattr, "user.a", "1", "f", 0, 1);
	SHOW("fgetxattr", io_uring_prep_fgetxattr, file, "user.a", buffer, 16);
	SHOW("getxattr", io_uring_prep_getxattr, "user.a", buffer, "f", 16);
	SHOW("readv_fixed", prepare, READV_FIXED, file, &vector, 1, 0);
	SHOW("writev_fixed", prepare, WRITEV_FIXED, file, &vector, 1, 0);
	SHOW("ftruncate", prepare, FTRUNCATE, file, NULL, 0, 4096);
}

static void others(int file)
{
	int ends[2], target[2], set = epoll_create1(0);
	struct epoll_event watched = { .events = EPOLLIN };
	new_pipe(ends);
	new_pipe(target);
	EQUAL(write(ends[1], buffer, 1024), 1024);
	SHOW("tee", io_uring_prep_tee, ends[0], target[1], 64, 0);
	SHOW("splice", io_uring_prep_splice, ends[0], -1, target[1], -1, 64, 0);
	SHOW("poll_add", io_uring_prep_poll_add, ends[0], POLLIN);
	SHOW("poll_remove", io_uring_prep_poll_remove, 77);
	SHOW("timeout", io_uring_prep_timeout, &moment, 0, 0);
	SHOW("timeout_remove", io_uring_prep_timeout_remove, 77, 0);
	SHOW("async_cancel", io_uring_prep_cancel64, 77, 0);
	SHOW("files_update", io_uring_prep_files_update, &file, 1, 1);
	SHOW("epoll_ctl", io_uring_prep_epoll_ctl, set, ends[0], EPOLL_CTL_ADD, &watched);
	SHOW("epoll_wait", prepare, EPOLL_WAIT, set, &watched, 1, 0);
	SHOW("provide_buffers", io_uring_prep_provide_buffers, buffer, 64, 1, 1, 0);
	SHOW("remove_buffers", io_uring_prep_remove_buffers, 1, 1);
	struct io_uring other = new_ring(4, 0);
	SHOW("msg_ring", io_uring_prep_msg_ring, other.ring_fd, 0, 1, 0);
	SHOW("fixed_fd_install", prepare_install, 0);
	SHOW("pipe", prepare, PIPE, 0, target, 0, 0);
	static siginfo_t info;
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	SHOW("waitid", prepare_waitid, child, &info);
}

static void sockets(void)
{
	int pair[2], listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = "socket" };
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1 };
	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	EQUAL(write(pair[0], buffer, 2048), 2048);
	SHOW("socket", io_uring_prep_socket, AF_UNIX, SOCK_STREAM, 0, 0);
	SHOW("bind", prepare, BIND, listener, &name, 0, sizeof name);
	/* A fault may have kept the socket unbound. */
	bind(listener, (struct sockaddr *)&name, sizeof name);
	SHOW("listen", prepare, LISTEN, listener, NULL, 8, 0);
	listen(listener, 8);
	SHOW("connect", io_uring_prep_connect, client, (struct sockaddr *)&name, sizeof name);
	connect(client, (struct sockaddr *)&name, sizeof name);
	SHOW("accept", io_uring_prep_accept, listener, NULL, NULL, 0);
	SHOW("send", io_uring_prep_send, pair[0], buffer, 16, 0);
	SHOW("recv", io_uring_prep_recv, pair[1], buffer, 16, 0);
	SHOW("sendmsg", io_uring_prep_sendmsg, pair[0], &message, 0);
	SHOW("recvmsg", io_uring_prep_recvmsg, pair[1], &message, 0);
	SHOW("send_zc", io_uring_prep_send_zc, pair[0], buffer, 16, 0, 0);
	SHOW("sendmsg_zc", io_uring_prep_sendmsg_zc, pair[0], &message, 0);
	SHOW("shutdown", io_uring_prep_shutdown, pair[0], SHUT_WR);
}

int main(int count, char **words)
{
	signal(SIGUSR1, count_signal);
	is_reorder = count > 1 && strcmp(words[1], "reorder") == 0;
	is_overflow = count > 1 && strcmp(words[1], "overflow") == 0;
	is_spurious = count > 1 && strcmp(words[1], "spurious") == 0;
	int file = open("f", O_RDWR | O_CREAT, 0600);
	HOLDS(file >= 0);
	EQUAL(pwrite(file, buffer, sizeof buffer, 0), (ssize_t)sizeof buffer);
	HOLDS(close(open("a", O_RDWR | O_CREAT, 0600)) == 0 && close(open("c", O_RDWR | O_CREAT, 0600)) == 0);
	ring = new_ring(8, 0);
	int files_to_register[2] = { file, -1 };
	EQUAL(io_uring_register_files(&ring, files_to_register, 2), 0);
	EQUAL(io_uring_register_buffers(&ring, &vector, 1), 0);
	if (is_spurious) {
		event = eventfd(0, EFD_NONBLOCK);
		EQUAL(io_uring_register_eventfd(&ring, event), 0);
	}
	files(file);
	others(file);
	sockets();
	printf("signals %d\n", (int)signals);
	return 0;
}
