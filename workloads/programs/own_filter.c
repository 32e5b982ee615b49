/* A program that gives itself a seccomp filter after it has made its rings, by which a call is denied
 * that usring makes for it: each request ends, with its result or with an error, and none hangs.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void deny(int number, int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EQUAL(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), 0);
}

/* Asked before any call is denied. */
static pid_t self;

static void note(int signal)
{
	(void)signal;
}

/* What programs do with rings: files that wait, files that do not, timeouts, signals. */
static void use(struct io_uring *ring, int file, int ends[2])
{
	char byte = 0;
	struct __kernel_timespec moment = { .tv_nsec = 1000000 };
	struct io_uring_sqe *sqe;
	int result;

	sqe = request(ring);
	io_uring_prep_read(sqe, ends[0], &byte, 1, 0);
	named(sqe, 1, 0);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(write(ends[1], "x", 1), 1);
	result = answer_to(ring, 1).res;
	HOLDS(result == 1 || result == -EPERM || result == -ENOSYS);
	sqe = request(ring);
	io_uring_prep_write(sqe, file, &byte, 1, 0);
	named(sqe, 2, 0);
	EQUAL(io_uring_submit(ring), 1);
	result = answer_to(ring, 2).res;
	HOLDS(result == 1 || result == -EPERM || result == -ENOSYS);
	sqe = request(ring);
	io_uring_prep_timeout(sqe, &moment, 0, 0);
	named(sqe, 3, 0);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(answer_to(ring, 3).res, -ETIME);
	sqe = request(ring);
	io_uring_prep_poll_add(sqe, ends[0], POLLIN);
	named(sqe, 4, 0);
	EQUAL(io_uring_submit(ring), 1);
	/* Nobody is inside: who watches rings has to see it. */
	EQUAL(write(ends[1], "x", 1), 1);
	while (io_uring_cq_ready(ring) == 0)
		look_again();
	EQUAL(answer_to(ring, 4).res & POLLIN, POLLIN);
	/* A signal ends a wait. */
	sqe = request(ring);
	io_uring_prep_nop(sqe);
	named(sqe, 5, 0);
	EQUAL(kill(self, SIGUSR1), 0);
	EQUAL(io_uring_submit(ring), 1);
	EQUAL(answer_to(ring, 5).res, 0);
}

static void without(int number, int error)
{
	pid_t child = fork();
	if (child == 0) {
		alarm(SECONDS_PER_CHECK / 4);
		struct sigaction action = { .sa_handler = note };
		int ends[2], file = open(".", O_TMPFILE | O_RDWR, 0600);
		HOLDS(file >= 0);
		EQUAL(pipe(ends), 0);
		EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
		struct io_uring ring = new_ring(8, 0);
		self = getpid();
		HOLDS(self > 0);
		deny(number, error);
		use(&ring, file, ends);
		/* A ring that is made afterwards works, or is refused. */
		struct io_uring later;
		if (io_uring_queue_init(8, &later, 0) == 0) {
			char byte;
			EQUAL(read(ends[0], &byte, 1), 1);
			use(&later, file, ends);
			io_uring_queue_exit(&later);
		}
		io_uring_queue_exit(&ring);
		exit(0);
	}
	int status;
	HOLDS(child > 0);
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

#define WITHOUT(call)                                   \
	static void without_##call(void)                \
	{                                               \
		without(SYS_##call, EPERM);             \
		without(SYS_##call, ENOSYS);            \
	}
WITHOUT(epoll_pwait)
WITHOUT(epoll_pwait2)
WITHOUT(preadv2)
WITHOUT(pwritev2)
WITHOUT(membarrier)
WITHOUT(gettid)

static const struct check checks[] = {
	{ "without epoll_pwait", without_epoll_pwait },
	{ "without epoll_pwait2", without_epoll_pwait2 },
	{ "without preadv2", without_preadv2 },
	{ "without pwritev2", without_pwritev2 },
	{ "without membarrier", without_membarrier },
	{ "without gettid", without_gettid },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
